"""Commands, leases and timers."""

from __future__ import annotations

import asyncio

from noetl.model.commands import Command, Lease
from noetl.model.ids import derive
from noetl.store.base import Store
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
)


async def claim(
    store: Store, worker_id: str = "w1", *, pool: str = "default", limit: int = 9, now: float = NOON
) -> list[Lease]:
    return await store.claim(worker_id, pool=pool, limit=limit, now=now, expires_at=now + MINUTE)


def names(leases: list[Lease]) -> list[str]:
    return [lease.command.command_id for lease in leases]


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
    await store.commit([start(commands=[(whole, None, None, None)])])

    assert await claim(store, pool="gpu") == [
        Lease(command=whole, token=derive("a", 1), expires_at=NOON + MINUTE)
    ]


async def test_a_command_is_leased_to_one_worker_until_its_lease_lapses(store: Store):
    await store.commit([start(commands=free("a"))])

    [first] = await claim(store, "w1")
    just_before = await claim(store, "w2", now=NOON + MINUTE - 0.001)
    [taken_over] = await claim(store, "w2", now=NOON + MINUTE)

    assert just_before == []
    assert taken_over.command.command_id == first.command.command_id
    assert taken_over.expires_at == NOON + 2 * MINUTE


async def test_each_delivery_has_a_number_and_a_token_of_its_own(store: Store):
    await store.commit([start(commands=free("a"))])

    leases = []
    for number in range(3):
        leases += await claim(store, now=NOON + number * MINUTE)

    assert [lease.command.deliveries for lease in leases] == [1, 2, 3]
    assert [lease.token for lease in leases] == [derive("a", number) for number in (1, 2, 3)]


async def test_highest_priority_first_then_oldest(store: Store):
    await store.commit([start(commands=free("a", "b") + free("c", priority=5))])
    await store.commit([start(TWO, commands=free("d", execution_id=TWO, priority=5))])
    await store.commit([more(1, commands=free("e", priority=-1) + free("f"))])

    assert names(await claim(store, limit=3)) == ["c", "d", "a"]
    assert names(await claim(store, limit=3)) == ["b", "f", "e"]


async def test_a_lapsed_command_takes_its_place_by_priority_and_age(store: Store):
    await store.commit([start(commands=free("a", "b"))])
    await claim(store, limit=1)
    await store.commit([more(1, commands=free("c") + free("urgent", priority=1))])

    again = await claim(store, now=NOON + MINUTE)

    assert names(again) == ["urgent", "a", "b", "c"]


async def test_a_claim_takes_no_more_than_its_limit_and_only_of_its_pool(store: Store):
    await store.commit([start(commands=free("a", "b", "c") + free("g", pool="gpu"))])

    assert names(await claim(store, limit=2)) == ["a", "b"]
    assert names(await claim(store, pool="gpu")) == ["g"]
    assert await claim(store, limit=0) == []
    assert await claim(store, pool="none") == []
    assert names(await claim(store)) == ["c"]


async def test_claims_at_the_same_time_never_share_a_command(store: Store):
    await store.commit([start(commands=free(*(f"c{n}" for n in range(100))))])

    taken = await asyncio.gather(*(claim(store, f"w{n}", limit=7) for n in range(20)))

    found = [name for leases in taken for name in names(leases)]
    assert len(found) == 100
    assert len(set(found)) == 100


async def test_a_command_born_leased_is_not_to_be_claimed_before_it_lapses(store: Store):
    await store.commit([start(commands=[born_leased("a", "w1", NOON + MINUTE)])])

    assert await claim(store, "w2") == []
    [lease] = await claim(store, "w2", now=NOON + MINUTE)
    assert lease.token == derive("a", 2)


async def test_a_closed_command_is_over(store: Store):
    await store.commit([start(commands=free("a", "b"))])
    [a, _] = await claim(store)
    await store.commit([more(1, closed=["a", "unknown"])])

    assert await store.renew([a.token], now=NOON, expires_at=NOON + 9) == []
    assert names(await claim(store, now=NOON + MINUTE)) == ["b"]


async def test_closing_reaches_only_commands_of_its_own_execution(store: Store):
    await store.commit([start(ONE, commands=free("a")), start(TWO)])
    await store.commit([more(1, TWO, closed=["a"])])

    assert names(await claim(store)) == ["a"]


async def test_leases_that_hold_can_be_renewed_up_to_the_moment_they_lapse(store: Store):
    await store.commit([start(commands=free("a", "b", "c"))])
    leases = await claim(store)
    tokens = [lease.token for lease in leases]

    held = await store.renew(
        [tokens[1], "unknown", tokens[0]], now=NOON + 59, expires_at=NOON + 119
    )

    assert held == [tokens[1], tokens[0]]
    assert await store.renew([tokens[2]], now=NOON + MINUTE, expires_at=NOON + 999) == []
    assert names(await claim(store, "w2", now=NOON + 118)) == ["c"]
    assert names(await claim(store, "w2", now=NOON + 119)) == ["a", "b"]
    assert await store.renew([], now=NOON, expires_at=NOON) == []


async def test_a_lease_that_was_taken_over_cannot_be_renewed(store: Store):
    await store.commit([start(commands=free("a"))])
    [old] = await claim(store, "w1")
    [new] = await claim(store, "w2", now=NOON + MINUTE)

    held = await store.renew([old.token, new.token], now=NOON + MINUTE, expires_at=NOON + 200)

    assert held == [new.token]


async def test_renewing_and_claiming_at_the_moment_of_lapse_have_one_winner(store: Store):
    await store.commit([start(commands=free("a"))])
    [lease] = await claim(store, "w1")

    async def renew() -> bool:
        moment = NOON + MINUTE - 0.5
        return bool(await store.renew([lease.token], now=moment, expires_at=moment + MINUTE))

    async def take_over() -> bool:
        return bool(await claim(store, "w2", now=NOON + MINUTE))

    assert await asyncio.gather(renew(), take_over()) == [True, False]


async def test_lapsed_leases_are_named_oldest_first_and_left_as_they_are(store: Store):
    born = [born_leased(name, "w1", NOON + late) for name, late in [("a", 3), ("b", 1), ("c", 2)]]
    await store.commit([start(commands=born + free("free"))])

    lapsed = await store.lapsed(now=NOON + 2)

    assert lapsed == [
        Lease(command=command("b"), token=derive("b", 1), expires_at=NOON + 1),
        Lease(command=command("c"), token=derive("c", 1), expires_at=NOON + 2),
    ]
    assert await store.lapsed(now=NOON + 2) == lapsed
    assert names(await store.lapsed(now=NOON + 9, limit=1)) == ["b"]


async def test_a_released_command_is_open_again_under_its_new_number(store: Store):
    await store.commit([start(commands=free("a"))])
    [old] = await claim(store, "w1")
    await store.commit([more(1, released=[("a", 2)])])

    [new] = await claim(store, "w2")

    assert new.command.deliveries == 2
    assert new.token == derive("a", 2) != old.token
    assert await store.renew([old.token], now=NOON, expires_at=NOON + 9) == []


async def test_releasing_does_not_void_a_lease_given_out_since(store: Store):
    await store.commit([start(commands=free("a"))])
    await claim(store, "w1")
    [new] = await claim(store, "w2", now=NOON + MINUTE)
    await store.commit([more(1, released=[("a", 2)])])

    assert await claim(store, "w3", now=NOON + MINUTE) == []
    assert await store.renew([new.token], now=NOON + 61, expires_at=NOON + 200) == [new.token]


async def test_open_commands_of_one_execution_or_all(store: Store):
    await store.commit([start(commands=free("a", "b"))])
    await store.commit([start(TWO, commands=free("c", execution_id=TWO))])
    await claim(store, "w7", limit=1)

    of_one = [(command("a"), "w7", NOON + MINUTE), (command("b"), None, None)]
    assert await store.open_commands(ONE) == of_one
    assert await store.open_commands() == [*of_one, (command("c", TWO), None, None)]
    assert await store.open_commands("3") == []


async def test_leases_of_workers_that_are_gone_can_be_voided(store: Store):
    born = [born_leased(name, name, NOON + MINUTE) for name in ("pid7-1", "pid7-2", "pid8-1")]
    await store.commit([start(commands=born)])

    assert await store.void_leases(worker_prefix="pid7-") == 2
    again = await claim(store)

    assert names(again) == ["pid7-1", "pid7-2"]
    assert [lease.token for lease in again] == [derive("pid7-1", 2), derive("pid7-2", 2)]
    assert await store.void_leases(worker_prefix="%") == 0
    assert await store.void_leases() == 3
    assert await store.void_leases() == 0


async def test_timers_are_due_at_their_moment_earliest_first_and_stay_until_cleared(store: Store):
    await store.commit([start(timers=[("late", NOON + 9), ("soon", NOON + 1)])])
    await store.commit([start(TWO, timers=[("soon", NOON + 2)])])

    assert await store.next_timer() == NOON + 1
    assert await store.due_timers(now=NOON + 0.9) == []
    assert await store.due_timers(now=NOON + 1) == [(ONE, "soon", NOON + 1)]
    due = [(ONE, "soon", NOON + 1), (TWO, "soon", NOON + 2), (ONE, "late", NOON + 9)]
    assert await store.due_timers(now=NOON + 9) == due
    assert await store.due_timers(now=NOON + 9, limit=2) == due[:2]

    await store.commit([more(1, timers_cleared=["soon", "unknown"])])
    assert await store.due_timers(now=NOON + 9) == due[1:]
    assert await store.next_timer() == NOON + 2


async def test_setting_a_timer_again_moves_it(store: Store):
    await store.commit([start(timers=[("t", NOON + 1)])])
    await store.commit([more(1, timers=[("t", NOON + 5)])])

    assert await store.due_timers(now=NOON + 9) == [(ONE, "t", NOON + 5)]


async def test_without_timers_nothing_fires_next(store: Store):
    assert await store.next_timer() is None


async def test_a_claim_may_be_for_some_executions_only(store: Store):
    await store.commit(
        [start(ONE, commands=free("a", "b")), start(TWO, commands=free("c", execution_id=TWO))]
    )

    async def claim_of(*executions: str) -> list[str]:
        return names(
            await store.claim(
                "w1",
                pool="default",
                limit=9,
                now=NOON,
                expires_at=NOON + MINUTE,
                executions=executions,
            )
        )

    assert await claim_of() == []
    assert await claim_of(TWO, "no such execution") == ["c"]
    assert await claim_of(ONE, TWO) == ["a", "b"]
