"""Whoever waits for ever in the background ends when told to, whatever happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from noetl import wiring
from noetl.api.services import Services
from noetl.control.local import LocalControl
from noetl.control.timers import fire_timers
from noetl.dsl import compile_text
from noetl.model.commands import Lease, Orders
from noetl.model.events import ExecutionRequested
from noetl.model.ids import CommandId
from noetl.model.inputs import Cancelled, Start
from noetl.model.outcome import Outcome, ok
from noetl.settings import Settings
from noetl.tools.base import Tool, ToolConfig, ToolContext
from noetl.tools.registry import tools
from noetl.tools.resources import ToolResources
from noetl.worker.worker import Worker
from tests.control.servers import HEAD, leased, servers, started, waiting
from tests.control.servers import run as run_servers
from tests.stopwatch import PATIENCE

TURNS = range(6)
"""How many turns of the event loop lie between what is waited for and the word to end."""


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ends(task: asyncio.Task[object]) -> bool:
    """Whether a cancelled task ends."""
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE)
    has_ended = task.done()
    task.cancel()
    return has_ended


def run(story: Callable[[Services], Awaitable[None]], folder: Path, *, work: bool = True) -> None:
    settings = Settings.from_environment({"NOETL_DATABASE_URL": f"sqlite:///{folder}/noetl.db"})

    async def whole() -> None:
        async with wiring.embedded(settings, work=work) as system:
            await story(system)

    asyncio.run(whole())


@pytest.mark.parametrize("count", TURNS)
def test_timers_change_just_when_their_keeper_is_told_to_end(tmp_path: Path, count: int):
    async def story(system: Services) -> None:
        orchestrator = system.orchestrator
        keeper = asyncio.create_task(fire_timers(orchestrator, system.store.queue, system.clock))
        await asyncio.sleep(0.05)  # It waits for a timer by then; if not, that is fine, too.
        orchestrator.timer_changed.set()
        await turns(count)

        assert await ends(keeper)

    run(story, tmp_path)


@pytest.mark.parametrize("count", TURNS)
def test_work_comes_just_when_its_worker_goes(tmp_path: Path, count: int):
    async def story(system: Services) -> None:
        asked = system.orchestrator.leases.lease("w", pool="elsewhere", want=1, wait=60)
        asking = asyncio.create_task(asked)
        await asyncio.sleep(0.05)
        system.orchestrator.dispatch.wake("elsewhere")
        await turns(count)

        assert await ends(asking)

    run(story, tmp_path)


ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32])
def test_a_worker_goes_while_work_is_claimed_for_it_and_another_gets_it(
    database_url: str, count: int
):
    async def story() -> None:
        async with servers(database_url, 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            asking = asyncio.create_task(leased(system, "gone"))
            await turns(count)
            asking.cancel()
            await asyncio.wait([asking])

            # No lease has to lapse for that: it would take longer than this waits.
            [lease] = await (leased(system, "other") if asking.cancelled() else asking)
            assert lease.command.execution_id == execution_id

    run_servers(story)


def test_an_execution_is_cancelled_while_its_work_is_claimed_and_the_worker_is_told(
    tmp_path: Path,
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            queue, dispatch = system.store.queue, system.orchestrator.dispatch
            claim, found, told = queue.claim, asyncio.Event(), asyncio.Event()

            async def slow(*words: Any, **named: Any) -> list[Lease]:
                leases = await claim(*words, **named)
                if leases:
                    found.set()
                    await told.wait()
                return leases

            queue.claim = slow  # type: ignore[method-assign]
            asking = asyncio.create_task(leased(system, "w"))
            await found.wait()
            await system.executions.cancel(execution_id)
            told.set()
            [lease] = await asking

            assert (await dispatch.orders("w")).stop == {lease.command.command_id}
            assert dispatch.is_free("w"), "it runs nothing that a suspect would have to wait for"

    run_servers(story)


def test_an_execution_is_cancelled_in_the_commit_that_leases_its_work_and_nobody_gets_it(
    tmp_path: Path,
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            compiled = system.catalog.check(HEAD + ONE_STEP)
            net = compiled.unwrap()
            await system.orchestrator.programs.keep(net, compiled.digest)
            asking = await waiting(system, "w")
            at, inbox = system.clock.now(), system.orchestrator.inbox
            request = ExecutionRequested(at=at, path=net.path, digest=compiled.digest)
            await asyncio.gather(
                inbox.submit(Start(execution_id="7", at=at, request=request, workload={})),
                inbox.submit(Cancelled(execution_id="7", at=at, reason="")),
            )

            assert (await system.orchestrator.state("7")).status == "CANCELLED"
            assert system.orchestrator.dispatch.is_free("w")
            assert not asking.done()
            asking.cancel()

    run_servers(story)


FOR_EVER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: tests/for_ever}
workflow: [{step: start, tool: {kind: deaf}, next: start}]
"""


def test_a_worker_ends_although_its_tool_does_not_notice(tmp_path: Path):
    async def story(system: Services) -> None:
        begun = asyncio.Event()

        async def deaf(config: Any, context: ToolContext) -> Outcome:
            begun.set()
            with suppress(asyncio.CancelledError):  # as a library may that waits with `wait_for`
                await asyncio.sleep(0.01)
            return ok(1)

        kinds = {
            **tools(),
            "deaf": Tool(kind="deaf", summary="For this test.", config=ToolConfig, run=deaf),
        }
        compiled = compile_text(FOR_EVER, tools=kinds)
        net = compiled.unwrap()
        await system.orchestrator.programs.keep(net, compiled.digest)
        resources = ToolResources()
        control = LocalControl(
            system.orchestrator,
            system.store.bodies,
            system.store.credentials,
            system.keys.credential,
        )
        worker = Worker(control, kinds, resources, worker_id="w", now=system.clock.now)
        working = asyncio.create_task(worker.run())
        await system.executions.start(compiled.digest, net.path, None, {})
        await begun.wait()

        assert await ends(working)
        await resources.close()

    run(story, tmp_path, work=False)


def test_a_worker_whose_orders_do_not_arrive_stops_what_it_has_lost_and_lets_it_clean_up(
    tmp_path: Path,
):
    async def story(system: Services) -> None:
        begun, cleaned, renewed = asyncio.Event(), asyncio.Event(), asyncio.Condition()

        class Unheard(LocalControl):
            """The orders of the server do not come through."""

            async def orders(self, worker_id: str) -> Orders:
                await asyncio.Event().wait()
                return Orders()

            async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
                lost = await super().renew(tokens)
                async with renewed:
                    renewed.notify_all()
                return lost

        async def slow(config: Any, context: ToolContext) -> Outcome:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(3):
                    async with renewed:
                        await renewed.wait()
                cleaned.set()
            return ok(1)

        kinds = {
            **tools(),
            "deaf": Tool(kind="deaf", summary="For this test.", config=ToolConfig, run=slow),
        }
        compiled = compile_text(FOR_EVER, tools=kinds)
        net = compiled.unwrap()
        await system.orchestrator.programs.keep(net, compiled.digest)
        resources = ToolResources()
        control = Unheard(
            system.orchestrator,
            system.store.bodies,
            system.store.credentials,
            system.keys.credential,
        )
        worker = Worker(
            control, kinds, resources, worker_id="w", now=system.clock.now, renew_every=0.01
        )
        working = asyncio.create_task(worker.run())
        one = await system.executions.start(compiled.digest, net.path, None, {})
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            # What it has to report is recorded: no answer to a report tells it, either.
            await system.executions.next_events(
                one, after=0, limit=1, wait=PATIENCE, types=("task.started",)
            )
            await system.executions.cancel(one)
            await cleaned.wait()
        assert await ends(working)
        await resources.close()

    run(story, tmp_path, work=False)


def test_a_command_that_is_stopped_before_it_began_frees_its_slot(tmp_path: Path):
    async def story(system: Services) -> None:
        asked_again = asyncio.Event()

        class Stopping(LocalControl):
            """Has the worker stopped just when it is given its first command."""

            stop: asyncio.Task[None] | None = None

            async def lease(self, worker_id: str, **wish: Any) -> list[Lease]:
                if self.stop is not None:
                    asked_again.set()
                found = await super().lease(worker_id, **wish)
                self.stop = asyncio.create_task(worker.stop())
                return found

        compiled = compile_text(FOR_EVER.replace("deaf", "noop"), tools=tools())
        net = compiled.unwrap()
        await system.orchestrator.programs.keep(net, compiled.digest)
        resources = ToolResources()
        control = Stopping(
            system.orchestrator,
            system.store.bodies,
            system.store.credentials,
            system.keys.credential,
        )
        worker = Worker(control, tools(), resources, worker_id="w", slots=1, now=system.clock.now)
        await system.executions.start(compiled.digest, net.path, None, {})
        working = asyncio.create_task(worker.run())

        # It has one slot: it asks again only if that is free.
        async with asyncio.timeout(PATIENCE):
            await asked_again.wait()
        assert await ends(working)
        await resources.close()

    run(story, tmp_path, work=False)
