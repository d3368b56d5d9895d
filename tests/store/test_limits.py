"""Limits on executions, as stores keep them: taken under a lock, freed by the end."""

from __future__ import annotations

import asyncio

from noetl.store.base import Store
from noetl.store.limits import Slot
from tests.store.making import MINUTE, NOON, ONE, THREE, TWO, more, start, summary

KEY = Slot("key a", 1)


def running(execution_id: str, *slots: Slot, **fields):
    return start(execution_id, summary=summary(execution_id, **fields), slots=slots or (KEY,))


def waiting(execution_id: str, *slots: Slot, **fields):
    return running(execution_id, *slots, status="PENDING", **fields)


def admitted(execution_id: str, *slots: Slot, seq: int = 1, **fields):
    row = summary(execution_id, **fields)
    return more(seq, execution_id, summary=row, slots=slots or (KEY,))


def ended(execution_id: str, *slots: Slot, seq: int = 1):
    row = summary(execution_id, status="COMPLETED", ended_at=NOON)
    return more(seq, execution_id, summary=row, slots=slots or (KEY,))


async def test_who_finds_no_room_is_refused_and_told_why(store: Store):
    assert await store.log.commit([running(ONE)]) == []
    write = running(TWO)

    assert await store.log.commit([write]) == [TWO]
    assert write.full == ("key a",)
    assert await store.records.summary(TWO) is None


async def test_of_one_batch_no_more_than_there_is_room_for(store: Store):
    wide = Slot("key a", 2)
    writes = [running(one, wide) for one in (ONE, TWO, THREE)]

    assert await store.log.commit(writes) == [THREE]


async def test_those_who_take_room_at_the_same_moment_do_not_both_get_it(store: Store):
    wide = Slot("key a", 3)
    writes = [running(str(number), wide) for number in range(24)]

    moved = await asyncio.gather(*[store.log.commit([write]) for write in writes])

    assert sum(not found for found in moved) == 3


async def test_the_end_frees_the_slot_in_the_same_transaction(store: Store):
    await store.log.commit([running(ONE)])
    await store.log.commit([waiting(TWO)])
    assert await store.limits.admissible() == []

    await store.log.commit([ended(ONE)])

    assert await store.limits.admissible() == [TWO]
    assert await store.log.commit([admitted(TWO)]) == []
    assert await store.limits.admissible() == []
    uses = await store.limits.slot_uses(["key a"])
    assert [(use.execution_id, use.held) for use in uses] == [(TWO, True)]


async def test_a_paused_one_keeps_its_slot_from_who_comes_and_from_who_waits(store: Store):
    await store.log.commit([running(ONE)])
    assert await store.log.commit([admitted(ONE, status="PAUSED")]) == []

    assert await store.log.commit([running(TWO)]) == [TWO]
    await store.log.commit([waiting(TWO)])
    assert await store.limits.admissible() == []
    # Nor does anybody wait for its own slot.
    assert await store.log.commit([admitted(ONE, seq=2)]) == []


async def test_those_who_wait_do_not_wait_for_each_other(store: Store):
    await store.log.commit([running(ONE)])
    await store.log.commit([waiting(TWO), waiting(THREE)])
    await store.log.commit([ended(ONE)])

    assert await store.limits.admissible() == [TWO]
    assert await store.log.commit([admitted(TWO)]) == []
    assert await store.log.commit([admitted(THREE)]) == [THREE]


async def test_a_new_one_does_not_overtake_those_that_wait(store: Store):
    await store.log.commit([running(ONE), waiting(TWO)])
    await store.log.commit([ended(ONE)])

    assert await store.log.commit([running(THREE)]) == [THREE]
    urgent = Slot("key a", 1, priority=1)
    assert await store.log.commit([running(THREE, urgent)]) == []


async def test_the_order_is_priority_then_age_and_a_full_limit_blocks_only_its_own(store: Store):
    key, path = Slot("key a", 1), Slot("playbook p", 9)
    await store.log.commit([running(ONE, key, path)])
    await store.log.commit(
        [
            waiting("9", key, path, requested_at=NOON + 1),
            waiting("8", path, requested_at=NOON + 3),
            waiting("7", path, requested_at=NOON + 2),
            waiting("6", path._replace(priority=1), requested_at=NOON + MINUTE),
        ]
    )

    assert await store.limits.admissible() == ["6", "7", "8"]
    assert await store.limits.admissible(limit=1) == ["6"]
    await store.log.commit([ended(ONE, key, path)])
    assert await store.limits.admissible() == ["6", "9", "7", "8"]


async def test_newer_ones_displace_older_ones_beyond_the_limit(store: Store):
    wide = Slot("key a", 2, replaces=True)
    await store.log.commit([running(ONE, wide, requested_at=NOON)])
    await store.log.commit([running(TWO, wide, requested_at=NOON + 1)])
    assert await store.limits.displaced() == []

    await store.log.commit([waiting(THREE, wide, requested_at=NOON + 2)])

    assert [one for one, _ in await store.limits.displaced()] == [ONE]


async def test_those_who_wait_for_their_turn_displace_nobody_and_are_shown_in_its_order(
    store: Store,
):
    await store.log.commit([running(ONE, requested_at=NOON)])
    await store.log.commit(
        [
            waiting(TWO, requested_at=NOON + 1),
            waiting(THREE, KEY._replace(priority=1), requested_at=NOON + 2),
        ]
    )

    assert await store.limits.displaced() == []
    uses = await store.limits.slot_uses(["key a"])
    assert [use.execution_id for use in uses] == [ONE, THREE, TWO]


async def test_a_refused_start_drags_what_is_tied_to_it(store: Store):
    await store.log.commit([running(ONE), start(TWO)])
    child, parent = running(THREE), more(1, TWO)

    moved = await store.log.commit([parent, child], tied=[{TWO, THREE}])

    assert set(moved) == {TWO, THREE}
    assert child.full == ("key a",)
    assert (await store.log.heads([TWO, THREE])) == {TWO: 1}
