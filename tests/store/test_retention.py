"""Executions that are not kept any more: which may go, what goes with them, and what stays."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from noetl.control.clock import SystemClock
from noetl.control.retention import Retention
from noetl.errors import Conflict
from noetl.model.retention import keep_rules
from noetl.store.base import Store
from noetl.store.log import Write
from noetl.store.retention import Ended, Forgotten, Hold, Member
from noetl.store.sqlite import SqliteStore
from noetl.store.sqlite.bodies import ROW_MAX, SETTLED_SECONDS
from tests.store.making import MINUTE, NOON, ONE, THREE, TWO, free, start, summary

DAY = int(NOON // 86400)


def ended(
    execution_id: str, *, at: float = NOON, status: str = "COMPLETED", **fields: Any
) -> Write:
    """An execution with something in every table, which has ended."""
    row = summary(execution_id, status=status, ended_at=at, labels={"team": "x"}, **fields)
    return start(
        execution_id,
        summary=row,
        count=3,
        timers=[("t", NOON)],
        results=[("k", b'"body"')],
        vars={"a": b"1"},
        snapshot=b"{}",
        commands=free("c" + execution_id, execution_id=execution_id),
    )


async def test_only_what_nobody_called_is_listed_page_by_page(store: Store):
    await store.log.commit(
        [
            ended(ONE, at=NOON + MINUTE, requested_at=NOON + 1),
            ended(TWO, at=NOON, path="shop/orders", status="FAILED"),
            ended(THREE, at=NOON, parent_execution_id=ONE),
            start("7000000000000000009"),
        ]
    )
    first = Ended(TWO, "shop/orders", "FAILED", NOON, NOON)
    second = Ended(ONE, "orders/sync", "COMPLETED", NOON + 1, NOON + MINUTE)

    assert await store.retention.ended(before=NOON + 2 * MINUTE) == [first, second]
    assert await store.retention.ended(before=NOON + MINUTE) == [first]
    assert await store.retention.ended(before=NOON + 2 * MINUTE, prefix="shop/") == [first]
    assert await store.retention.ended(before=NOON + 2 * MINUTE, prefix="_hop/") == []
    assert await store.retention.ended(before=NOON + 2 * MINUTE, since=NOON + 1) == [second]
    assert await store.retention.ended(before=NOON + 2 * MINUTE, after=first) == [second]
    assert await store.retention.ended(before=NOON + 2 * MINUTE, after=second) == []
    assert await store.retention.ended(before=NOON + 2 * MINUTE, limit=1) == [first]


async def test_pages_lose_nothing_that_was_requested_and_ended_at_the_same_moment(store: Store):
    await store.log.commit([ended(one) for one in (ONE, TWO, THREE)])
    pages: list[Ended] = []
    after = None
    while page := await store.retention.ended(before=NOON + 1, after=after, limit=1):
        pages += page
        after = page[-1]

    assert [one.execution_id for one in pages] == [ONE, TWO, THREE]


async def test_what_ended_in_a_stretch_of_time_is_listed_with_what_was_called(store: Store):
    await store.log.commit(
        [
            ended(ONE, at=NOON + MINUTE),
            ended(TWO, at=NOON),
            ended(THREE, at=NOON, parent_execution_id=ONE),
            start("7000000000000000009"),
        ]
    )
    every = [*sorted([(NOON, TWO), (NOON, THREE)]), (NOON + MINUTE, ONE)]
    until = NOON + 2 * MINUTE

    assert await store.records.ended(after=(NOON - 1, ""), before=until, limit=9) == every
    assert await store.records.ended(after=(NOON - 1, ""), before=until, limit=1) == every[:1]
    assert await store.records.ended(after=every[0], before=until, limit=9) == every[1:]
    assert await store.records.ended(after=(0.0, ""), before=NOON + MINUTE, limit=9) == every[:2]


async def test_a_tree_stays_whole_until_the_last_of_it_has_ended(store: Store):
    caller, called = ended(ONE), ended(THREE, parent_execution_id=ONE)
    still = start(TWO, summary=summary(TWO, parent_execution_id=THREE))
    await store.log.commit([caller, called, still])
    retention = Retention(store, SystemClock(), keep_rules("1ms"))

    pruned = await retention.prune()

    assert (pruned.executions, dict(pruned.kept)) == (0, {"running": 1})
    assert len(await store.retention.tree(ONE)) == 3
    with pytest.raises(Conflict, match="has not ended"):
        await retention.delete(ONE)


async def test_a_tree_lists_what_was_called_before_who_called_it(store: Store):
    await store.log.commit(
        [
            ended(ONE),
            ended(TWO, parent_execution_id=ONE),
            start(THREE, summary=summary(THREE, parent_execution_id=TWO)),
        ]
    )

    assert await store.retention.tree(ONE) == [
        Member(THREE, has_ended=False, is_held=False, is_reused=False, seq=1),
        Member(TWO, has_ended=True, is_held=False, is_reused=False, seq=3),
        Member(ONE, has_ended=True, is_held=False, is_reused=False, seq=3),
    ]
    assert await store.retention.tree("nobody") == []


async def test_what_others_stand_on_is_marked_as_long_as_they_exist(store: Store):
    await store.log.commit([ended(ONE), ended(TWO), ended(THREE, parent_execution_id=ONE)])
    await store.retention.reuse(TWO, ONE)
    await store.retention.reuse(TWO, ONE)
    await store.retention.reuse(THREE, ONE)
    await store.retention.reuse("never started", TWO)

    assert [member.is_reused for member in await store.retention.tree(ONE)] == [False, True]
    assert [member.is_reused for member in await store.retention.tree(TWO)] == [False]
    several = await store.retention.trees([TWO, ONE, "nobody"])
    assert {root: [one.is_reused for one in tree] for root, tree in several.items()} == {
        TWO: [False],
        ONE: [False, True],
        "nobody": [],
    }
    assert await store.retention.forget([TWO]) == [TWO]
    assert [member.is_reused for member in await store.retention.tree(ONE)] == [False, False]


async def test_nothing_is_left_of_what_is_forgotten_but_a_count(store: Store):
    await store.log.commit([ended(ONE), ended(TWO)])

    assert await store.retention.forget([ONE, "nobody"]) == [ONE]
    assert await store.retention.forget([ONE]) == []

    assert await store.records.summary(ONE) is None
    assert await store.log.load(ONE) is None
    assert await store.log.events(ONE) == []
    assert await store.bodies.get(ONE, "k") is None
    assert await store.log.variables(ONE) == {}
    assert await store.queue.timers(ONE) == {}
    assert await store.queue.open_commands(ONE) == []
    assert dict(await store.records.label_counts("team")) == {"x": 1}
    assert await store.retention.forgotten() == [Forgotten(DAY, "orders/sync", "COMPLETED", 1)]
    # What is beside it is whole.
    assert len(await store.log.events(TWO)) == 3
    assert await store.bodies.get(TWO, "k") == b'"body"'
    assert [problem for problem in await store.check() if ONE in problem] == []


async def test_counts_add_up_by_day_path_and_status(store: Store):
    await store.log.commit([ended(ONE), ended(TWO), ended(THREE, status="FAILED")])
    await store.retention.forget([ONE])
    await store.retention.forget([TWO, THREE])

    found = await store.retention.forgotten(since_day=DAY)
    assert found == [
        Forgotten(DAY, "orders/sync", "COMPLETED", 2),
        Forgotten(DAY, "orders/sync", "FAILED", 1),
    ]
    assert await store.retention.forgotten(since_day=DAY + 1) == []


async def test_what_has_not_ended_or_is_held_is_not_forgotten(store: Store):
    await store.log.commit([start(ONE), ended(TWO)])
    assert await store.retention.hold(Hold(TWO, "for the audit", "ann", NOON))

    assert await store.retention.forget([ONE, TWO]) == []
    assert await store.retention.forgotten() == []
    assert await store.retention.release(TWO)
    assert await store.retention.forget([ONE, TWO]) == [TWO]


async def test_a_hold_is_listed_replaced_and_released_once(store: Store):
    await store.log.commit([ended(ONE), ended(TWO)])
    await store.retention.hold(Hold(ONE, "a", "ann", NOON))
    await store.retention.hold(Hold(TWO, "b", "bob", NOON + 1))
    await store.retention.hold(Hold(ONE, "c", "zoe", NOON + 2))

    assert await store.retention.holds() == [
        Hold(ONE, "c", "zoe", NOON + 2),
        Hold(TWO, "b", "bob", NOON + 1),
    ]
    await store.retention.hold(Hold(TWO, "", "zoe", NOON + 3))
    assert (await store.retention.holds())[0] == Hold(TWO, "b", "zoe", NOON + 3)
    assert not await store.retention.hold(Hold("nobody", "", "", NOON))
    assert await store.retention.release(ONE)
    assert not await store.retention.release(ONE)
    assert [held.execution_id for held in await store.retention.holds()] == [TWO]


@pytest.mark.parametrize("threads", [True, False])
async def test_files_of_bodies_go_when_nobody_refers_to_them_and_they_are_old(tmp_path, threads):
    store = await SqliteStore.open(f"sqlite:///{tmp_path}/noetl.db", threads=threads)
    large = b'"' + b"x" * ROW_MAX + b'"'
    await store.log.commit([ended(ONE), ended(TWO)])
    await store.bodies.put(ONE, "large", large)
    await store.bodies.put(TWO, "large", large)
    await store.bodies.put(ONE, "own", large[:-1] + b'y"')
    folder = tmp_path / "noetl.db.results"
    old = time.time() - 2 * SETTLED_SECONDS

    async def kept() -> int:
        await store.retention.forget_files()
        return len(list(folder.iterdir()))

    assert len(list(folder.iterdir())) == 2
    await store.retention.forget([ONE])
    assert await kept() == 2, "a new file may be one that is about to be referred to"
    for file in folder.iterdir():
        os.utime(file, (old, old))
    assert await store.retention.forget_files() == len(large) + 1
    assert await store.bodies.get(TWO, "large") == large
    await store.retention.forget([TWO])
    assert await kept() == 0
    await store.close()
