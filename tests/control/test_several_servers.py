"""Several servers on one database: one transition, whoever is told; nothing is lost or stuck."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import psycopg
import pytest

from noetl import wiring
from noetl.api.routes.executions import WHY, WhichWhy
from noetl.control.peers import LOOK_SECONDS, News
from noetl.errors import LeaseLost
from noetl.model.commands import Report
from noetl.model.events import CommandLost, CommandPaused, decode
from noetl.model.state import ExecutionState
from tests.control.servers import (
    HEAD,
    deaf,
    done,
    lapse,
    leased,
    listening,
    log,
    run,
    servers,
    started,
    working,
)
from tests.stopwatch import PATIENCE

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"
TWO_STEPS = """
workflow:
- {step: start, tool: {kind: noop}, next: end}
- {step: end, tool: {kind: noop}}
"""


def types(rows) -> list[str]:
    return [row.type for row in rows]


def test_t15_the_same_report_to_three_servers_at_once_is_one_transition(database_url: str):
    async def story() -> None:
        async with servers(database_url, 3) as all_three:
            for _ in range(10):
                execution_id = await started(all_three[0], TWO_STEPS)
                [lease] = await leased(all_three[0], "w")
                report = done(lease, "w", result="x")

                answers = await asyncio.gather(
                    *(one.orchestrator.report(report) for one in all_three), return_exceptions=True
                )

                taken = [one for one in answers if not isinstance(one, Exception)]
                assert len(taken) == 1
                assert all(isinstance(one, LeaseLost) for one in answers if one not in taken)
                found = Counter(types(await log(all_three[1], execution_id)))
                assert found["step.done"] == 1
                assert found["next.evaluated"] + found["token.created"] <= 3
                states = [await one.orchestrator.state(execution_id) for one in all_three]
                assert states[0] == states[1] == states[2]
                assert len(await all_three[2].store.queue.open_commands(execution_id)) == 1
                await all_three[2].executions.cancel(execution_id)

    run(story)


def test_any_server_takes_the_report_of_a_worker_that_another_gave_the_work_to(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            execution_id = await started(first, ONE_STEP)
            [lease] = await leased(first, "w")

            await second.orchestrator.report(done(lease, "w", result=7))

            assert (await first.orchestrator.wait_for_end(execution_id)).result == 7

    run(story)


def test_a_server_that_was_restarted_takes_the_report_of_work_given_before(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as (before,):
            execution_id = await started(before, ONE_STEP)
            [lease] = await leased(before, "w")
        async with servers(database_url, 1) as (after,):
            await after.orchestrator.report(done(lease, "w", result=7))

            assert (await after.orchestrator.wait_for_end(execution_id)).result == 7

    run(story)


def test_t03_a_report_under_a_lost_lease_is_refused_and_recorded_once(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            execution_id = await started(first, ONE_STEP)
            [old] = await leased(first, "w-1")
            await lapse(second.orchestrator, old, "w-1")
            [new] = await leased(second, "w-2")

            for server in (first, second, first):
                with pytest.raises(LeaseLost):
                    await server.orchestrator.report(done(old, "w-1", result="stale"))
            await second.orchestrator.report(done(new, "w-2", result="right"))

            assert (await first.orchestrator.wait_for_end(execution_id)).result == "right"
            facts = [decode(row.body) for row in await log(first, execution_id)]
            lost = [fact for fact in facts if isinstance(fact, CommandLost)]
            assert [(fact.worker, fact.refused) for fact in lost] == [("w-1", False), ("w-1", True)]

    run(story)


def test_a_worker_waiting_at_one_server_gets_what_another_opens(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            waiting = asyncio.create_task(leased(second, "w", wait=30))
            await asyncio.sleep(0)
            execution_id = await started(first, ONE_STEP)

            [lease] = await waiting

            assert lease.command.execution_id == execution_id

    run(story)


def test_a_message_that_is_not_understood_is_passed_over(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            await listening(database_url, 2)
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as db:
                await db.execute("SELECT pg_notify('noetl', 'nonsense')")
            told = asyncio.Event()
            second.orchestrator.dispatch.wake = lambda pool: told.set()

            await started(first, ONE_STEP)

            async with asyncio.timeout(PATIENCE):
                await told.wait()

    run(story)


def test_only_a_new_document_wakes_what_waits_for_documents(database_url: str):
    """Not one that is registered again, and not news of more executions than a message names."""

    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            await listening(database_url, 2)
            kept: list[None] = []
            first.catalog.on_kept.append(lambda: kept.append(None))
            registered = second.triggers.registered
            for _ in range(2):
                await first.catalog.register(HEAD + ONE_STEP)
            assert len(kept) == 1
            async with asyncio.timeout(PATIENCE):
                await registered.wait()
            registered, told = second.triggers.registered, asyncio.Event()
            second.orchestrator.dispatch.wake = lambda pool: told.set()
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as db:
                news = News(sender="other", dropped=True, pools={"default"})
                text = msgspec.json.encode(news).decode()
                await db.execute("SELECT pg_notify('noetl', %s)", [text])
            async with asyncio.timeout(PATIENCE):
                await told.wait()
            assert not registered.is_set()

    run(story)


def test_a_cancel_at_one_server_stops_the_worker_of_another(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            execution_id = await started(first, ONE_STEP)
            [lease] = await leased(first, "w")
            told = asyncio.create_task(first.orchestrator.dispatch.orders("w"))

            await second.executions.cancel(execution_id)

            assert (await told).stop == {lease.command.command_id}
            assert (await first.orchestrator.state(execution_id)).status == "CANCELLED"

    run(story)


def test_t41_a_pause_at_one_server_is_confirmed_by_the_worker_of_another(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            execution_id = await started(first, ONE_STEP)
            [lease] = await leased(first, "w")
            command = lease.command
            told = asyncio.create_task(first.orchestrator.dispatch.orders("w"))
            pausing = asyncio.create_task(second.executions.pause(execution_id))

            assert (await told).pause == {command.command_id}
            assert not pausing.done()
            fact = CommandPaused(
                at=0, step_run_id=command.step_run_id, step=command.step, held=command.command_id
            )
            confirming = Report(
                command_id=command.command_id,
                execution_id=execution_id,
                token=lease.token,
                number=1,
                worker="w",
                events=(fact,),
            )
            await first.orchestrator.report(confirming)

            assert await pausing == []

    run(story)


def test_t41_a_worker_that_does_not_confirm_is_named_and_its_work_waits_for_the_resume(
    database_url: str,
):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            execution_id = await started(first, ONE_STEP)
            [lease] = await leased(first, "silent")
            await second.orchestrator.pause(execution_id)

            names = await second.orchestrator.held_back(execution_id, patience=0.2)
            assert names == ["silent"]

            await lapse(second.orchestrator, lease, "silent")
            assert await second.orchestrator.held_back(execution_id, patience=30) == []
            assert await leased(first, "w", wait=0.1) == []

            await first.executions.resume(execution_id)
            [again] = await leased(second, "w", wait=30)
            assert again.command.step_run_id == lease.command.step_run_id

    run(story)


def test_t31_when_listeners_are_silently_dead_looking_takes_over(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second), deaf(database_url, 2):
            execution_id = await started(first, ONE_STEP)
            ended = asyncio.create_task(first.orchestrator.wait_for_end(execution_id))

            [lease] = await leased(second, "w", wait=30)
            await second.orchestrator.report(done(lease, "w"))

            assert (await ended).status == "COMPLETED"

    assert LOOK_SECONDS < 1
    run(story)


def test_a_child_and_its_parent_on_different_servers_end_together(database_url: str):
    parent = "workflow: [{step: start, tool: {kind: playbook, path: tests/child}}]\n"
    child = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: c, path: tests/child}\n"
        "workflow: [{step: start, tool: {kind: noop, result: 5}}]\n"
    )

    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            await first.catalog.register(child)
            async with working(first, "w-1"), working(second, "w-2"):
                ids = [await started(one, parent) for one in (first, second) * 10]
                states = [await first.orchestrator.wait_for_end(one) for one in ids]

            assert {state.status for state in states} == {"COMPLETED"}

    run(story)


def test_each_execution_is_looked_after_by_one_server(database_url: str):
    async def story() -> None:
        async with servers(database_url, 3) as all_three:
            ids = [str(10**17 + number) for number in range(300)]
            owners = [[one.membership.owns(each) for one in all_three] for each in ids]

            assert all(sum(owned) == 1 for owned in owners)
            assert all(50 < sum(share) < 150 for share in zip(*owners, strict=True))

    run(story)


@pytest.mark.parametrize("is_reported_meanwhile", [True, False])
def test_whoever_follows_hears_of_an_end_that_another_server_stored_whatever_is_read_here(
    database_url: str, is_reported_meanwhile: bool
):
    """News of the end are lost, or come while the execution is being decided here. Then it is read
    again, for a report or for somebody who looks, and memory is as new as the store.
    """

    async def story() -> None:
        async with servers(database_url, 2) as (here, there):
            execution_id = await started(here, ONE_STEP)
            [lease] = await leased(here, "w")
            seq = (await here.orchestrator.state(execution_id)).seq

            async def streamed() -> None:
                async for _ in here.streams.frames(execution_id, seq):
                    pass

            following = [
                asyncio.create_task(streamed()),
                asyncio.create_task(here.orchestrator.wait_for_end(execution_id)),
                *(
                    asyncio.create_task(
                        here.executions.next_events(
                            execution_id, after=seq, limit=50, wait=10 * PATIENCE, types=types
                        )
                    )
                    for types in ((), ("playbook.processed",))
                ),
            ]
            await asyncio.sleep(0.1)  # They follow.
            send, commit = there.store.channel.send, here.store.log.commit

            async def lost(text: str) -> None:
                pass

            async def later(*writes: Any, **how: Any) -> Any:
                here.store.log.commit = commit
                await there.orchestrator.cancel(execution_id)
                return await commit(*writes, **how)

            there.store.channel.send = lost
            if is_reported_meanwhile:
                here.store.log.commit = later
                with pytest.raises(LeaseLost):
                    await here.orchestrator.report(done(lease, "w"))
            else:
                await there.orchestrator.cancel(execution_id)
                assert (await here.orchestrator.state(execution_id)).status == "CANCELLED"
            there.store.channel.send = send

            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*following)

    run(story)


def test_why_tells_status_and_reasons_of_one_moment(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(database_url, 2) as (here, there):
            execution_id = await started(here, ONE_STEP)
            leases = await leased(there, "w")
            look = here.orchestrator.state

            async def ends_after_the_first_look(one: str) -> ExecutionState:
                found = await look(one)
                while leases:
                    await there.orchestrator.report(done(leases.pop(), "w"))
                return found

            monkeypatch.setattr(here.orchestrator, "state", ends_after_the_first_look)
            client, _ = wiring.here(here)
            why = await client.call(WHY, execution_id=execution_id, query=WhichWhy())

            assert (why.status, why.waits_for) == ("COMPLETED", [])

    run(story)
