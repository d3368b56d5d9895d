"""T16: an execution ends once and stays as it ended, whoever speaks at the same moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from noetl.control.clock import SystemClock
from noetl.control.live import fold
from noetl.control.orchestrator import Orchestrator
from noetl.dsl import compile_text
from noetl.errors import NoetlError
from noetl.model.commands import Ending, Lease, Report
from noetl.model.events import ExecutionRequested, IterationDone
from noetl.model.outcome import TaskError
from noetl.store.sqlite.store import SqliteStore
from noetl.templates import Views
from noetl.tools.registry import tool_of, tools
from tests.control.servers import lapse
from tests.examples.system import playbook, temporary_folder

EXECUTION = "77"
WORKFLOW = """
- { step: start, next: [a, b, each] }
- { step: a, tool: { kind: noop }, next: end }
- { step: b, tool: { kind: noop }, spec: { timeout: 300 }, next: end }
- step: each
  loop: { in: [1, 2, 3, 4], iterator: n, spec: { mode: parallel, max_in_flight: 2 } }
  tool: { kind: noop }
  next: end
- { step: end, tool: { kind: noop } }
"""
Say = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def control(folder: Path) -> AsyncIterator[tuple[Orchestrator, SqliteStore]]:
    """A control plane without workers: the test speaks for them."""
    store = await SqliteStore.open(str(folder / "noetl.db"))
    orchestrator = Orchestrator(store, SystemClock(), Views(tool_of))
    running = asyncio.create_task(orchestrator.commits.run())
    try:
        yield orchestrator, store
    finally:
        running.cancel()
        await asyncio.wait([running])
        await store.close()


def last_words(orchestrator: Orchestrator, lease: Lease, dice: random.Random) -> Say:
    """The report that closes a command: well, badly, or with every iteration done."""
    command = lease.command
    ending = None
    events: tuple[Any, ...] = ()
    if command.chunk is not None:
        names = {"at": 1.0, "step_run_id": command.step_run_id, "step": command.step}
        indices = range(command.chunk.start, command.chunk.stop)
        events = tuple(IterationDone(iteration=index, result=index, **names) for index in indices)
    elif dice.random() < 0.2:
        ending = Ending(error=TaskError(kind="exception", message="broken"))
    else:
        ending = Ending(result=1)
    report = Report(
        command_id=command.command_id,
        execution_id=EXECUTION,
        token=lease.token,
        number=1,
        events=events,
        ending=ending,
        closes=True,
    )
    return lambda: orchestrator.report(report)


async def heard(say: Say) -> None:
    """A report of a lease that was taken away is refused, which is as it should be."""
    with suppress(NoetlError):
        await say()


async def torment(orchestrator: Orchestrator, dice: random.Random) -> list[Say]:
    """Say everything at once, again and again, until the execution has ended; all that was said."""
    said: list[Say] = []
    for _ in range(50):
        if (await orchestrator.state(EXECUTION)).is_finished:
            return said
        leases = await orchestrator.leases.lease("w", pool="default", want=10, wait=0)
        words = [last_words(orchestrator, lease, dice) for lease in leases]
        for lease in leases:
            words.append(lambda lost=lease: lapse(orchestrator, lost, "w"))
        words += [lambda: orchestrator.pause(EXECUTION), lambda: orchestrator.resume(EXECUTION)]
        words += [lambda: orchestrator.cancel(EXECUTION, "enough")] * (dice.random() < 0.4)
        words += dice.sample(said, min(len(said), 3))
        dice.shuffle(words)
        said += words
        await asyncio.gather(*(heard(say) for say in words))
    raise AssertionError("it does not end")


async def story(seed: int) -> tuple[str, list[str]]:
    dice = random.Random(seed)
    with temporary_folder() as folder:
        async with control(folder) as (orchestrator, store):
            compiled = compile_text(playbook(WORKFLOW), tools=tools())
            await orchestrator.programs.keep(compiled.unwrap(), compiled.digest)
            request = ExecutionRequested(at=1.0, path="tried", digest=compiled.digest, seal="s")
            await orchestrator.start(EXECUTION, request, workload={})
            said = await torment(orchestrator, dice)
            before = await store.log.events(EXECUTION, limit=10_000)
            status = (await orchestrator.state(EXECUTION)).status
            # Whatever was ever said may come again, all of it at once.
            await asyncio.gather(*(heard(say) for say in said))
            assert await store.log.events(EXECUTION, limit=10_000) == before
            assert (await orchestrator.state(EXECUTION)).status == status
            summary = await store.records.summary(EXECUTION)
            assert summary is not None
            assert summary.status == status
            loaded = await store.log.load(EXECUTION)
            assert loaded is not None
            assert fold(loaded).status == status
            assert await store.queue.open_commands() == []
            assert await store.queue.next_timer() is None
            return status, [row.type for row in before]


@pytest.mark.parametrize("seed", range(30))
def test_t16_an_execution_that_is_cancelled_and_reported_at_once_ends_once(seed):
    status, types = asyncio.run(story(seed))

    assert status in ("COMPLETED", "FAILED", "CANCELLED")
    assert types.count("workflow.finished") == 1
    assert types[-2:] == ["workflow.finished", "playbook.processed"]


def test_t16_the_stories_come_to_different_ends():
    ends = {asyncio.run(story(seed))[0] for seed in range(12)}

    assert len(ends) >= 2, "only one of those who speak at once is ever heard"
