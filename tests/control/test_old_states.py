"""Laws 4 and 7: what a server has in memory may be old, and nothing is decided on it, nor told.

Two servers on one database that hear nothing of each other: the first knows an execution as it was
before the second went on with it.
"""

from __future__ import annotations

import asyncio
import math

import msgspec
import psycopg
import pytest

from noetl.api.services import Services
from noetl.control import peers
from noetl.control.timers import fire_timers
from noetl.engine.signals import received
from noetl.errors import LeaseLost
from noetl.model.chains import Progress
from noetl.model.commands import ChildRequest, Suspension
from noetl.model.execution_query import exactly
from noetl.store.log import Write
from tests.control.servers import (
    deaf,
    done,
    leased,
    listening,
    log,
    run,
    servers,
    started,
    working,
)
from tests.stopwatch import PATIENCE

TWO_STEPS = """
workflow:
- {step: start, tool: {kind: noop}, next: end}
- {step: end, tool: {kind: noop}}
"""
DELAYED = """
workflow:
- {step: start, tool: {kind: noop}, next: {arcs: [{step: end, spec: {delay: 3600}}]}}
- {step: end, tool: {kind: noop}}
"""
LISTENS = """
workflow:
- {step: start, tool: {kind: noop}, next: hear}
- step: hear
  spec: {eval_mode: on_event}
  case: [{when: "{{ event.name == 'go' }}", then: {result: {value: heard}}}]
"""
CALLS = """
workflow:
- {step: start, tool: {kind: noop}, next: call}
- {step: call, tool: {kind: playbook, path: tests/child}}
"""
CHILD = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: c, path: tests/child}\n"
    "workflow: [{step: start, tool: {kind: noop, result: 5}}]\n"
)


async def run_step(system: Services, result: object = None) -> None:
    """The next open command is leased and reported here."""
    [lease] = await leased(system, "w")
    await system.orchestrator.report(done(lease, "w", result=result))


async def names(system: Services, execution_id: str) -> list[str]:
    return [row.type for row in await log(system, execution_id)]


def test_a_valid_report_is_taken_by_a_server_with_an_old_state(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            execution_id = await started(first, TWO_STEPS)
            await run_step(second)
            [lease] = await leased(second, "w")

            await first.orchestrator.report(done(lease, "w", result=7))

            assert (await first.orchestrator.state(execution_id)).result == 7

    run(story)


def test_a_timer_fires_at_a_server_with_an_old_state(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            execution_id = await started(first, DELAYED)
            await run_step(second)
            [(_, timer_id, _)] = await second.store.queue.due_timers(now=math.inf)

            assert await first.orchestrator.fire(execution_id, timer_id)

            assert "timer.fired" in await names(second, execution_id)
            assert await second.store.queue.next_timer() is None

    run(story)


def test_what_the_world_says_reaches_an_execution_through_a_server_with_an_old_state(
    database_url: str,
):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            execution_id = await started(first, LISTENS)
            signal = received(first.clock.now(), "once", "go", None, None)
            assert not await second.orchestrator.signal(execution_id, signal)

            assert await first.orchestrator.signal(execution_id, signal), "it is known"

            assert (await names(second, execution_id)).count("message.received") == 1

    run(story)


def test_a_pause_at_a_server_that_believes_in_an_earlier_one_counts(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            execution_id = await started(first, TWO_STEPS)
            await first.orchestrator.pause(execution_id)
            await second.orchestrator.resume(execution_id)

            await first.orchestrator.pause(execution_id)

            assert (await second.orchestrator.state(execution_id)).status == "PAUSED"

    run(story)


def test_a_parent_hears_of_its_child_from_a_server_with_an_old_state(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            # What the second worker holds when it is gone lapses soon.
            for system in (first, second):
                system.orchestrator.dispatch.lease_seconds = 1.0
            await first.catalog.register(CHILD)
            execution_id = await started(first, CALLS)
            async with working(second, "w-2"):
                await until_called(second, execution_id)
            async with working(first, "w-1"):
                state = await first.orchestrator.wait_for_end(execution_id)

            assert state.status == "COMPLETED"

    run(story)


def test_a_child_that_an_old_state_would_start_is_not_started(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            await first.catalog.register(CHILD)
            execution_id = await started(first, CALLS)
            await run_step(first)
            [lease] = await leased(first, "w")
            await second.executions.cancel(execution_id)

            # The first server decides to start the child, and to suspend a run that is over.
            asked = Suspension(progress=Progress(), child=ChildRequest(path="tests/child"))
            report = msgspec.structs.replace(done(lease, "w"), ending=None, suspensions=(asked,))
            with pytest.raises(LeaseLost):
                await first.orchestrator.report(report)

            assert (await second.orchestrator.state(execution_id)).status == "CANCELLED"
            assert await second.store.records.summaries(exactly(parent=execution_id)) == []

    run(story)


async def until_called(system: Services, execution_id: str) -> None:
    """The parent waits for its child, whose first step may or may not have been done."""
    while not (await system.store.records.summaries(exactly(parent=execution_id))):
        await asyncio.sleep(0.005)


def test_a_timer_that_nobody_waits_for_is_removed_and_not_looked_at_for_ever(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as (system,):
            execution_id = await started(system, TWO_STEPS)
            head = (await system.store.log.heads([execution_id]))[execution_id]
            stray = Write(execution_id=execution_id, seq_before=head, timers=[("stray", 1.0)])
            assert await system.store.log.commit([stray]) == []
            parts = system.orchestrator, system.store.queue, system.clock

            firing = asyncio.create_task(fire_timers(*parts))
            while await system.store.queue.next_timer() is not None:
                await asyncio.sleep(0.01)
            firing.cancel()

            assert (await system.store.log.heads([execution_id]))[execution_id] == head

    run(story)


def test_timers_that_cannot_fire_rest_and_do_not_hide_the_others(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as (system,):
            execution_id = await started(system, DELAYED)
            await run_step(system)
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as db:
                await db.execute("UPDATE noetl.timer SET fires_at = 2.0")
                await db.execute(
                    "INSERT INTO noetl.timer SELECT 'gone-' || n, 't', 1.0"
                    " FROM generate_series(1, 500) AS n"
                )
            asked, fire = [], system.orchestrator.fire

            async def counting(*timer: str) -> bool:
                asked.append(timer)
                return await fire(*timer)

            system.orchestrator.fire = counting
            firing = asyncio.create_task(
                fire_timers(system.orchestrator, system.store.queue, system.clock)
            )
            while "timer.fired" not in await names(system, execution_id):
                await asyncio.sleep(0.01)
            firing.cancel()

            assert len(asked) <= 3 * 501

    run(story)


def test_a_server_that_heard_nothing_keeps_nothing_of_what_others_went_on_with(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            ids = [await started(first, TWO_STEPS) for _ in range(20)]
            assert set(first.orchestrator.memory.busy(None)) == set(ids)
            leases = await leased(first, "w", want=20)

            for lease in leases:
                await second.orchestrator.report(done(lease, "w"))
            # Whoever looks at one of them must not hide from the rest that it has moved.
            await first.orchestrator.state(leases[0].command.execution_id)

            async with asyncio.timeout(PATIENCE):
                while first.orchestrator.dispatch.held:
                    await asyncio.sleep(0.05)
            async with working(second, "w-2", slots=8):
                for execution_id in ids:
                    await second.orchestrator.wait_for_end(execution_id)
            async with asyncio.timeout(PATIENCE):
                while first.orchestrator.memory.busy(None):
                    await asyncio.sleep(0.05)

    run(story)


def test_news_that_do_not_say_all_make_others_look_at_once(database_url: str, monkeypatch):
    monkeypatch.setattr(peers, "EXECUTIONS_MAX", 1)
    monkeypatch.setattr(peers, "LOOK_SECONDS", 3600.0)

    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            await listening(database_url, 2)
            ids = [await started(first, TWO_STEPS) for _ in range(10)]
            waiting = [asyncio.create_task(first.orchestrator.wait_for_end(one)) for one in ids]

            await asyncio.gather(*(second.orchestrator.cancel(one) for one in ids))

            async with asyncio.timeout(PATIENCE):
                states = await asyncio.gather(*waiting)
            assert {state.status for state in states} == {"CANCELLED"}

    run(story)
