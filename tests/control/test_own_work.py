"""A visitor works off what is started or continued in it, and leaves everything else alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from noetl import wiring
from noetl.api.services import Services
from noetl.control.own_work import OwnWork
from noetl.settings import Settings
from noetl.store.records import Summary
from tests.control.servers import HEAD, leased, log, run, servers, started, working
from tests.server.processes import SECRET_KEY

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"
DELAYED = """
workflow:
- {step: start, tool: {kind: noop}, next: {arcs: [{step: end, spec: {delay: 0.2}}]}}
- {step: end, tool: {kind: noop}}
"""
BOUNDED = "executor: {spec: {concurrency: {key: one, limit: 1}}}\n" + ONE_STEP
CHILD = HEAD.replace("tests/servers", "tests/child") + DELAYED
CALLS = """
workflow:
- step: start
  loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
  tool: {kind: playbook, path: tests/child}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/noetl.db"
    return request.getfixturevalue("database_url")


def settings_of(url: str) -> Settings:
    given = {"NOETL_DATABASE_URL": url, "NOETL_SECRET_KEY": SECRET_KEY}
    return Settings.from_environment(given)


@asynccontextmanager
async def visitor(url: str, *executions: str) -> AsyncIterator[Services]:
    """As `noetl run` is one, working off these."""
    settings = settings_of(url)
    async with (
        wiring.embedded(settings, work=False) as system,
        wiring.working(system, executions),
    ):
        yield system


async def left_behind(url: str) -> list[str]:
    """Executions that wait for a timer, for a lease to lapse, for children with timers, and for a
    worker."""
    async with servers(url, 1) as (system,):
        await system.catalog.register(CHILD)
        async with working(system, "gone", slots=4):
            calls = await started(system, CALLS)
            timed = await started(system, DELAYED)
            while len(await system.store.queue.due_timers(now=math.inf)) < 4:
                await asyncio.sleep(0.01)
        system.orchestrator.dispatch.lease_seconds = 0.1
        held = await started(system, ONE_STEP)
        await leased(system, "gone")
        return [timed, held, calls, await started(system, ONE_STEP)]


async def seqs(system: Services) -> dict[str, int]:
    return await system.store.log.heads(await system.store.records.unfinished())


async def ended(system: Services, executions: list[str]) -> set[str]:
    found = [await system.executions.wait(one) for one in executions]
    return {one["status"] for one in found}


def test_what_was_left_behind_stays_as_it_is_until_somebody_continues_it(url: str):
    async def story() -> None:
        left = await left_behind(url)
        async with visitor(url) as system:
            before = await seqs(system)
            assert len(before) == len(left) + 3
            # Its own timers fire, its own children run, and what it runs makes way for the next.
            own = [await started(system, text) for text in (DELAYED, CALLS, BOUNDED, BOUNDED)]
            assert await ended(system, own) == {"COMPLETED"}
            assert await seqs(system) == before

            for one in left:
                await system.executions.resume(one)
            assert await ended(system, left) == {"COMPLETED"}

    run(story)


def test_a_visitor_goes_on_with_what_it_came_for_and_all_that_this_called(url: str):
    async def story() -> None:
        *others, calls, alone = await left_behind(url)
        async with visitor(url, calls) as system:
            assert await ended(system, [calls]) == {"COMPLETED"}
            assert sorted(await seqs(system)) == sorted([*others, alone])

    run(story)


def test_own_commands_are_found_behind_many_of_others(tmp_path: Path):
    async def story() -> None:
        url = f"sqlite:///{tmp_path}/noetl.db"
        async with servers(url, 1) as (system,):
            for _ in range(300):
                await started(system, ONE_STEP)
            last = await started(system, ONE_STEP)
        async with visitor(url, last) as system:
            assert await ended(system, [last]) == {"COMPLETED"}
            assert await system.store.queue.sizes() == {"default": (300, 0)}

    run(story)


def test_a_server_works_off_everything(url: str):
    async def story() -> None:
        left = await left_behind(url)
        async with wiring.embedded(settings_of(url)) as system:
            assert await ended(system, left) == {"COMPLETED"}

    run(story)


def test_to_resume_one_of_many_reads_no_others(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            ids = [await started(system, ONE_STEP) for _ in range(50)]
            await system.executions.pause(ids[0])
            asked: list[str] = []
            summary = system.store.records.summary

            async def counted(execution_id: str) -> Summary | None:
                asked.append(execution_id)
                return await summary(execution_id)

            system.store.records.summary = counted
            await system.executions.resume(ids[0])

            assert set(asked) <= {ids[0]}
            types = [row.type for row in await log(system, ids[0])]
            assert types[-1] == "playbook.resumed"

    run(story)


def test_a_worker_that_is_there_keeps_what_it_has_when_another_execution_is_continued(
    tmp_path: Path,
):
    async def story() -> None:
        url, gate = f"sqlite:///{tmp_path}/noetl.db", tmp_path / "go"
        [*_, left] = await left_behind(url)
        code = f"import os, time\nwhile not os.path.exists('{gate}'): time.sleep(0.01)"
        tool = msgspec.json.encode({"kind": "python", "code": code}).decode()
        async with visitor(url) as system:
            own = await started(system, f"workflow: [{{step: start, tool: {tool}}}]\n")
            while not await system.store.queue.lapsed(now=math.inf):
                await asyncio.sleep(0.01)
            await system.executions.resume(left)
            assert await ended(system, [left]) == {"COMPLETED"}
            gate.write_text("")
            assert await ended(system, [own]) == {"COMPLETED"}
            types = [row.type for row in await log(system, own)]
            assert "command.lost" not in types
            assert types.count("step.started") == 1

    run(story)


def test_what_is_taken_while_somebody_asks_whose_it_is_is_our_own(tmp_path: Path):
    async def story() -> None:
        url = f"sqlite:///{tmp_path}/noetl.db"
        timed, *_ = await left_behind(url)
        async with wiring.embedded(settings_of(url), work=False) as system:
            records, asked, may_go = system.store.records, asyncio.Event(), asyncio.Event()
            summary = records.summary

            async def held_up(execution_id: str) -> Summary | None:
                asked.set()
                await may_go.wait()
                return await summary(execution_id)

            records.summary = held_up
            own = OwnWork(system.store.queue, system.store.limits, records)
            looking = asyncio.create_task(own.next_timer())
            await asked.wait()
            own.take([timed])
            may_go.set()

            assert await looking is not None
            found = await own.due_timers(now=math.inf)
            assert [execution_id for execution_id, *_ in found] == [timed]

    run(story)
