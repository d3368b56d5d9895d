"""Commands, leases and timers."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from noetl.errors import Corrupted, StoreError
from noetl.model.commands import Command, Lease
from noetl.model.ids import token_of
from noetl.store.base import Store
from noetl.store.postgres import PostgresStore
from noetl.store.queue import Claim, Holder, LapsedLease, NewCommand
from tests.store.making import (
    MINUTE,
    NOON,
    ONE,
    TWO,
    born_leased,
    command,
    free,
    more,
    start,
    summary,
    unreadable,
)


async def claim(
    store: Store, worker_id: str = "w1", *, pool: str = "default", limit: int = 9, now: float = NOON
) -> list[Lease]:
    return await store.queue.claim(worker_id, pool=pool, limit=limit, expires_at=now + MINUTE)


def names(leases: list[Lease]) -> list[str]:
    return [lease.command.command_id for lease in leases]


def lost(lapsed: list[LapsedLease]) -> list[str]:
    return [one.command.command_id for one in lapsed]


async def test_a_claimed_command_is_what_was_inserted(store: Store):
    whole = Command(
        command_id="a",
        execution_id=ONE,
        digest="d1",
        step="fetch",
        step_run_id="run-1",
        args={"ü": [1, None, {"x": 0.5}]},
        pool="gpu",
        priority=-3,
        at=NOON,
    )
    await store.log.commit([start(commands=[NewCommand(whole)])])

    assert await claim(store, pool="gpu") == [
        Lease(command=whole, token=token_of("a"), expires_at=NOON + MINUTE)
    ]


async def test_a_command_is_leased_once(store: Store):
    await store.log.commit([start(commands=free("a"))])

    [lease] = await claim(store, "w1")

    assert lease.token == token_of("a")
    assert await claim(store, "w2") == []
    assert await claim(store, "w2", now=NOON + 9 * MINUTE) == []


async def test_who_holds_a_command_is_known_until_it_is_closed(store: Store):
    await store.log.commit([start(commands=[*free("a", "free"), born_leased("b", "w2", NOON)])])
    [lease] = await claim(store, "w1", limit=1)

    held = await store.queue.holders(["a", "b", "free", "unknown"])
    assert held == {"a": Holder(ONE, "w1"), "b": Holder(ONE, "w2")}
    assert lease.command.command_id == "a"
    await store.log.commit([more(1, closed=["a"])])
    assert await store.queue.holders(["a", "b"]) == {"b": Holder(ONE, "w2")}
    assert await store.queue.holders([]) == {}


async def test_highest_priority_first_then_oldest(store: Store):
    await store.log.commit([start(commands=free("a", "b") + free("c", priority=5))])
    await store.log.commit([start(TWO, commands=free("d", execution_id=TWO, priority=5))])
    await store.log.commit([more(1, commands=free("e", priority=-1) + free("f"))])

    assert names(await claim(store, limit=3)) == ["c", "d", "a"]
    assert names(await claim(store, limit=3)) == ["b", "f", "e"]


async def test_of_equal_priority_the_lowest_turn_goes_first(store: Store):
    await store.log.commit([start(commands=[*free("a", turn=1), *free("b", turn=2), *free("c")])])
    await store.log.commit([start(TWO, commands=free("d", execution_id=TWO, turn=1))])
    await store.log.commit([more(1, commands=free("e", turn=9, priority=1))])

    assert await store.queue.free_pools() == {"default": 9}
    assert names(await claim(store, limit=3)) == ["e", "c", "a"]
    assert await store.queue.free_pools() == {"default": 1}
    assert names(await claim(store, limit=3)) == ["d", "b"]


async def test_a_process_claims_its_own_unless_others_have_a_higher_priority(database_url: str):
    ours, theirs = [await PostgresStore.open(database_url) for _ in range(2)]
    whole = {"pool": "default", "limit": 2, "expires_at": NOON + MINUTE}
    await theirs.log.commit([start(commands=free("a", "b"))])
    await ours.log.commit([start(TWO, commands=free("c", "d", "e", execution_id=TWO))])

    assert names(await ours.queue.claim("w", **whole, own=True)) == ["c", "d"]
    await theirs.log.commit([more(1, commands=free("urgent", priority=1))])
    assert names(await ours.queue.claim("w", **whole, own=True)) == []
    assert names(await ours.queue.claim("w", **whole)) == ["urgent", "a"]
    assert names(await ours.queue.claim("w", **whole, own=True)) == ["e"]
    assert names(await ours.queue.claim("w", **whole, own=True)) == []
    assert names(await ours.queue.claim("w", **whole)) == ["b"]
    await ours.close()
    await theirs.close()


async def test_a_claim_takes_no_more_than_its_limit_and_only_of_its_pool(store: Store):
    await store.log.commit([start(commands=free("a", "b", "c") + free("g", pool="gpu"))])

    assert names(await claim(store, limit=2)) == ["a", "b"]
    assert names(await claim(store, pool="gpu")) == ["g"]
    assert await claim(store, limit=0) == []
    assert await claim(store, pool="none") == []
    assert names(await claim(store)) == ["c"]


async def test_a_claim_that_goes_along_with_a_commit_finds_what_that_opened(store: Store):
    await store.log.commit([start(commands=[*free("a"), born_leased("b", "w1", NOON)])])
    along = Claim("w1", "default", 2, NOON + MINUTE)

    moved = await store.log.commit(
        [more(1, closed=["b"], commands=free("c", "d")), more(7, execution_id=TWO)], claims=[along]
    )

    assert moved == [TWO]
    assert names(along.found) == (["a", "c"] if store.queue.goes_along else [])
    assert names(await claim(store, "w2")) == [
        one for one in ("a", "c", "d") if one not in names(along.found)
    ]


async def test_a_claim_finds_nothing_if_its_commit_fails(store: Store):
    await store.log.commit([start(commands=free("a"))])
    along = Claim("w1", "default", 2, NOON + MINUTE)

    with pytest.raises(StoreError, match="Nothing was kept"):
        await store.log.commit([more(1), start(TWO, summary=None)], claims=[along])

    assert along.found == []
    assert names(await claim(store, "w2")) == ["a"]


async def test_a_claim_may_name_the_commands_it_is_about(store: Store):
    await store.log.commit([start(commands=free("a", "b", "c") + free("g", pool="gpu"))])
    whole = {"pool": "default", "limit": 9, "expires_at": NOON + MINUTE}

    assert await store.queue.claim_of("w1", [], **whole) == []
    assert names(await store.queue.claim_of("w1", ["c", "a", "g", "?"], **whole)) == ["a", "c"]
    assert names(await store.queue.claim_of("w1", ["a"], **whole)) == []
    assert names(await claim(store)) == ["b"]


@pytest.mark.parametrize("way", ["the pool", "own", "named"])
async def test_what_another_server_is_claiming_just_now_is_passed_over(database_url: str, way: str):
    ours = await PostgresStore.open(database_url)
    await ours.log.commit([start(commands=free("a", "b"))])
    whole: dict[str, Any] = {"pool": "default", "limit": 9, "expires_at": NOON + MINUTE}

    async def claimed() -> list[str]:
        if way == "named":
            return names(await ours.queue.claim_of("w1", ["a", "b"], **whole))
        return names(await ours.queue.claim("w1", **whole, own=way == "own"))

    with psycopg.connect(database_url) as theirs:
        theirs.execute(
            "UPDATE noetl.queue SET worker_id = 'w2', lease_expires_at = 1 WHERE command_id = 'a'"
        )
        assert await claimed() == ["b"]
    assert await claimed() == []
    assert await ours.queue.holders(["a", "b"]) == {"a": Holder(ONE, "w2"), "b": Holder(ONE, "w1")}
    await ours.close()


async def test_claims_at_the_same_time_never_share_a_command(store: Store):
    await store.log.commit([start(commands=free(*(f"c{n}" for n in range(100))))])

    taken = await asyncio.gather(*(claim(store, f"w{n}", limit=7) for n in range(20)))

    found = [name for leases in taken for name in names(leases)]
    assert len(found) == 100
    assert len(set(found)) == 100


async def test_commands_of_a_paused_execution_wait_until_it_goes_on(store: Store):
    await store.log.commit([start(ONE, commands=free("a")), start(TWO)])
    await store.log.commit([more(1, TWO, commands=free("b", execution_id=TWO))])
    await store.log.commit([more(1, summary=summary(status="PAUSED"))])

    assert [one.command_id for one in await store.queue.free("default", limit=9)] == ["b"]
    assert names(await claim(store)) == ["b"]
    await store.log.commit([more(2, summary=summary())])
    assert names(await claim(store)) == ["a"]


async def test_a_command_born_leased_is_not_to_be_claimed(store: Store):
    await store.log.commit([start(commands=[born_leased("a", "w1", NOON + MINUTE)])])

    assert await claim(store, "w2", now=NOON + MINUTE) == []


async def test_a_closed_command_is_over(store: Store):
    await store.log.commit([start(commands=free("a", "b"))])
    await claim(store, limit=1)
    await store.log.commit([more(1, closed=["a", "unknown"])])

    assert await store.queue.renew(["a"], now=NOON, expires_at=NOON + 9) == set()
    assert await store.queue.lapsed(now=NOON + MINUTE) == []
    assert names(await claim(store)) == ["b"]


async def test_closing_reaches_only_commands_of_its_own_execution(store: Store):
    await store.log.commit([start(ONE, commands=free("a")), start(TWO)])
    await store.log.commit([more(1, TWO, closed=["a"])])
    await store.log.commit([more(2, TWO, closed=["a", "unknown"])])

    assert names(await claim(store)) == ["a"]


async def test_leases_that_hold_can_be_renewed_up_to_the_moment_they_lapse(store: Store):
    await store.log.commit([start(commands=free("a", "b", "c", "free"))])
    await claim(store, limit=3)

    held = await store.queue.renew(
        ["b", "unknown", "a", "free"], now=NOON + 59, expires_at=NOON + 119
    )

    assert held == {"a", "b"}
    assert await store.queue.renew(["c"], now=NOON + MINUTE, expires_at=NOON + 999) == set()
    assert lost(await store.queue.lapsed(now=NOON + 118)) == ["c"]
    assert lost(await store.queue.lapsed(now=NOON + 119)) == ["c", "a", "b"]
    assert await store.queue.renew([], now=NOON, expires_at=NOON) == set()


async def test_lapsed_leases_are_named_oldest_first_and_left_as_they_are(store: Store):
    born = [born_leased(name, "w1", NOON + late) for name, late in [("a", 3), ("b", 1), ("c", 2)]]
    await store.log.commit([start(commands=born + free("free"))])

    lapsed = await store.queue.lapsed(now=NOON + 2)

    assert lapsed == [(command("b"), "w1", NOON + 1), (command("c"), "w1", NOON + 2)]
    assert await store.queue.lapsed(now=NOON + 2) == lapsed
    assert lost(await store.queue.lapsed(now=NOON + 9, limit=1)) == ["b"]


async def test_pools_with_free_commands_are_known(store: Store):
    assert set(await store.queue.free_pools()) == set()
    both = free("a", "b") + free("c", pool="gpu") + free("d", pool="")
    await store.log.commit([start(commands=[*both, born_leased("e", "w1", NOON)])])
    assert set(await store.queue.free_pools()) == {"default", "gpu", ""}

    await claim(store, limit=1)
    await claim(store, pool="gpu")

    assert set(await store.queue.free_pools()) == {"default", ""}


async def test_open_commands_of_one_execution_or_all(store: Store):
    await store.log.commit([start(commands=free("a", "b"))])
    await store.log.commit([start(TWO, commands=free("c", execution_id=TWO))])
    await claim(store, "w7", limit=1)

    of_one = [(command("a"), "w7", NOON + MINUTE), (command("b"), None, None)]
    assert await store.queue.open_commands(ONE) == of_one
    assert await store.queue.open_commands() == [*of_one, (command("c", TWO), None, None)]
    assert await store.queue.open_commands("3") == []


async def test_a_command_that_cannot_be_read_is_nobodys_work_and_in_nobodys_way(store: Store):
    damaged = [unreadable("damaged"), unreadable("another", pool="z")]
    await store.log.commit([start(ONE, commands=[NewCommand(one) for one in damaged])])
    await store.log.commit([start(TWO, commands=free("a", "b", "c", execution_id=TWO))])

    assert await claim(store, pool="z") == []
    assert names(await claim(store, limit=2)) == ["a", "b"]
    assert [one.command_id for one in await store.queue.free("default", limit=9)] == ["c"]
    assert await store.queue.waiting_commands(limit=1) == [command("c", TWO)]
    assert [one.command.command_id for one in await store.queue.open_commands()] == ["a", "b", "c"]
    assert names(await claim(store)) == ["c"]
    assert await claim(store) == []
    assert await store.queue.free_pools() == {}
    assert await store.queue.holders(["damaged"]) == {}
    with pytest.raises(Corrupted, match=r"Command (damaged|another)"):
        await store.queue.open_commands(ONE)
    with pytest.raises(Corrupted, match=r"Command (damaged|another)"):
        await store.log.load(ONE)
    # Nor does it hide what comes after its pool.
    await store.log.commit([more(1, TWO, commands=free("g", execution_id=TWO, pool="gpu"))])
    assert await store.queue.free_pools() == {"gpu": 0}


async def test_commands_wait_oldest_first_and_are_counted_by_pool(store: Store):
    await store.log.commit(
        [start(commands=[*free("a", "b", "c"), *free("g", pool="gpu", priority=1)])]
    )
    await claim(store, limit=1)

    waiting = await store.queue.waiting_commands(limit=2)
    assert [one.command_id for one in waiting] == ["b", "c"]
    assert len(await store.queue.waiting_commands(limit=9)) == 3
    assert await store.queue.sizes() == {"default": (2, 1), "gpu": (1, 0)}


async def test_timers_are_due_at_their_moment_earliest_first_and_stay_until_cleared(store: Store):
    await store.log.commit([start(timers=[("late", NOON + 9), ("soon", NOON + 1)])])
    await store.log.commit([start(TWO, timers=[("soon", NOON + 2)])])

    assert await store.queue.next_timer() == NOON + 1
    assert await store.queue.due_timers(now=NOON + 0.9) == []
    assert await store.queue.due_timers(now=NOON + 1) == [(ONE, "soon", NOON + 1)]
    due = [(ONE, "soon", NOON + 1), (TWO, "soon", NOON + 2), (ONE, "late", NOON + 9)]
    assert await store.queue.due_timers(now=NOON + 9) == due
    assert await store.queue.due_timers(now=NOON + 9, limit=2) == due[:2]

    await store.log.commit([more(1, timers_cleared=["soon", "unknown"])])
    assert await store.queue.due_timers(now=NOON + 9) == due[1:]
    assert await store.queue.next_timer() == NOON + 2


async def test_setting_a_timer_again_moves_it(store: Store):
    await store.log.commit([start(timers=[("t", NOON + 1)])])
    await store.log.commit([more(1, timers=[("t", NOON + 5)])])

    assert await store.queue.due_timers(now=NOON + 9) == [(ONE, "t", NOON + 5)]


async def test_without_timers_nothing_fires_next(store: Store):
    assert await store.queue.next_timer() is None


async def test_what_a_claim_would_find_is_shown_in_its_order(store: Store):
    await store.log.commit(
        [
            start(ONE, commands=free("a", "b") + free("g", pool="gpu")),
            start(TWO, commands=free("c", execution_id=TWO, priority=1)),
        ]
    )

    first, *others = await store.queue.free("default", limit=9)
    assert (first.execution_id, first.command_id) == (TWO, "c")
    assert [one.command_id for one in others] == ["a", "b"]
    assert [one.command_id for one in await store.queue.free("default", limit=2)] == ["c", "a"]
    assert names(await claim(store, limit=2)) == ["c", "a"]
    assert [one.command_id for one in await store.queue.free("default", limit=9)] == ["b"]
