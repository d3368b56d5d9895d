"""T18: whatever breaks in a worker, each run ends exactly once, and the others do not notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.control.clock import SystemClock
from noetl.control.local import LocalControl
from noetl.control.orchestrator import Orchestrator
from noetl.control.timers import fire_timers
from noetl.dsl import compile_text
from noetl.errors import LeaseLost, StoreError
from noetl.model.events import ExecutionRequested, decode
from noetl.model.outcome import Outcome, ok
from noetl.model.state import ExecutionState
from noetl.store.sqlite.store import SqliteStore
from noetl.templates import Views
from noetl.tools.base import Tool, ToolConfig, ToolContext
from noetl.tools.registry import tool_of, tools
from noetl.tools.resources import ToolResources
from noetl.worker.worker import Worker
from tests.examples.system import playbook
from tests.stopwatch import PATIENCE

WORKFLOW = """
- { step: start, tool: { kind: noop, result: 1 }, next: each }
- step: each
  loop: { in: [1, 2, 3, 4], iterator: item, spec: { mode: parallel, max_in_flight: 2 } }
  tool: { kind: broken }
  next: last
- step: last
  tool:
    - { name: one, kind: noop, result: 2 }
    - { name: two, kind: broken }
"""
LARGE = "x" * 100_000
ENDS = ("step.done", "step.failed", "step.cancelled", "step.skipped")


class Breaking(LocalControl):
    """The way to the control plane, which breaks at one call of one method."""

    def __init__(self, *parts: Any, method: str, numbers: set[int], error: Exception) -> None:
        super().__init__(*parts)
        self._method = method
        self._numbers = numbers
        self._error = error
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name != self._method:
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls in self._numbers:
                raise self._error
            return await found(*arguments, **named)

        return call


def broken_tool(run: Callable[[Any, ToolContext], Awaitable[Outcome]]) -> Tool:
    return Tool(kind="broken", summary="For this test.", config=ToolConfig, run=run)


async def fine(config: Any, context: ToolContext) -> Outcome:
    return ok(LARGE if context.task == "two" else 1)


async def played(
    folder: Path,
    tool: Tool,
    workflow: str = WORKFLOW,
    control: type[Breaking] = Breaking,
    **breaks: Any,
) -> tuple[ExecutionState, list[Any], int]:
    """Run the workflow with a worker that breaks; its state, its events, calls of the method."""
    store = await SqliteStore.open(str(folder / "noetl.db"))
    clock = SystemClock()
    orchestrator = Orchestrator(store, clock, Views(tool_of), lease_seconds=0.6)
    kinds = {**tools(), "broken": tool}

    compiled = compile_text(playbook(workflow), tools=kinds)
    net = compiled.unwrap()
    await orchestrator.programs.keep(net, compiled.digest)

    async def no_credentials(name: str) -> None:
        return None

    way = control(orchestrator, store.bodies, store.credentials, no_credentials, **breaks)
    resources = ToolResources()
    worker = Worker(way, kinds, resources, worker_id="w", slots=2, renew_every=0.1, now=clock.now)
    jobs = [
        asyncio.create_task(job)
        for job in (
            orchestrator.commits.run(),
            worker.run(),
            fire_timers(orchestrator, store.queue, clock),
            orchestrator.leases.requeue_lapsed(),
        )
    ]
    try:
        request = ExecutionRequested(at=clock.now(), path=net.path, digest=compiled.digest)
        await orchestrator.start("77", request, workload={})
        async with asyncio.timeout(PATIENCE):
            await orchestrator.wait_for_end("77")
        assert not any(job.done() for job in jobs), "a part of the system broke down"
        state = await orchestrator.state("77")
        rows = await store.log.events("77", limit=10_000)
        assert await store.queue.open_commands() == []
        return state, [decode(row.body) for row in rows], way.calls
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await resources.close()
        await store.close()


def check_ends(events: list[Any]) -> None:
    tags = [type(event).__struct_config__.tag for event in events]
    ends = Counter(
        event.step_run_id for event, tag in zip(events, tags, strict=True) if tag in ENDS
    )
    begun = {e.step_run_id for e, tag in zip(events, tags, strict=True) if tag == "step.scheduled"}
    assert ends == Counter(begun), "a run ended never, or twice"
    assert tags.count("playbook.processed") == 1


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "error", [StoreError("no disk"), RuntimeError("a bug"), LeaseLost("taken over")], ids=repr
)
@pytest.mark.parametrize("method", ["report", "program", "put_result", "renew", "lease"])
def test_a_call_that_breaks_costs_at_most_time(tmp_path, caplog, method, error, number):
    if method == "lease" and isinstance(error, RuntimeError):
        pytest.skip("without leases there is nothing to end")
    if method == "renew" and isinstance(error, RuntimeError):
        pytest.skip("a bug there ends the worker, and its leases lapse")
    breaks = {"method": method, "numbers": {number}, "error": error}

    state, events, _ = asyncio.run(played(tmp_path, broken_tool(fine), **breaks))

    check_ends(events)
    # What breaks before a task runs may fail its step; it is never silent.
    assert state.status == "COMPLETED" or state.failure is not None
    if method == "lease":
        assert not any(one.exc_info for one in caplog.records), "it is foreseen: a sentence says it"


def test_reports_that_are_not_taken_for_long_are_given_up_and_the_work_is_done_again(tmp_path):
    numbers = set(range(2, 8))
    breaks = {"method": "report", "numbers": numbers, "error": StoreError("no disk")}

    state, events, calls = asyncio.run(played(tmp_path, broken_tool(fine), **breaks))

    check_ends(events)
    assert state.status == "COMPLETED"
    assert calls > max(numbers)


@pytest.mark.parametrize(
    ("loop", "error"),
    [
        ("", LeaseLost("taken over")),
        ("", StoreError("no disk")),
        ("loop: {in: [1, 2], iterator: n, spec: {mode: parallel}}", LeaseLost("taken over")),
    ],
    ids=["a lost lease", "no store", "in a loop"],
)
def test_no_call_is_made_that_could_not_be_counted(tmp_path, loop, error):
    workflow = f"- step: start\n  {loop}\n  spec: {{policy: {{quotas: {{max_calls: 3}}}}}}\n"
    workflow += "  tool: {kind: broken}"
    counted: list[bool] = []
    is_taken = False

    async def call(config: Any, context: ToolContext) -> Outcome:
        counted.append(is_taken)
        return ok()

    class Lost(Breaking):
        """The first reports, which say that a call begins, are not taken."""

        async def report(self, *arguments: Any, **named: Any) -> Any:
            nonlocal is_taken
            self.calls += 1
            if self.calls <= (1 if isinstance(error, LeaseLost) else 5):
                raise error
            is_taken = True
            return await super().report(*arguments, **named)

    breaks = {"method": "none", "numbers": set(), "error": error}
    state, events, _ = asyncio.run(
        played(tmp_path, broken_tool(call), workflow, control=Lost, **breaks)
    )

    check_ends(events)
    assert state.status == "COMPLETED"
    assert counted
    assert all(counted)


async def _raises(error: BaseException) -> Outcome:
    raise error


def _returns(value: Any) -> Callable[..., Awaitable[Any]]:
    async def run(config: Any, context: ToolContext) -> Any:
        return value

    return run


@pytest.mark.parametrize(
    "run",
    [
        lambda config, context: _raises(ValueError("plain")),
        lambda config, context: _raises(RecursionError("deep")),
        lambda config, context: _raises(MemoryError()),
        lambda config, context: _raises(asyncio.CancelledError()),
        lambda config, context: _raises(SystemExit(3)),
        lambda config, context: _raises(ExceptionGroup("two", [ValueError("a"), KeyError("b")])),
        _returns(None),
        _returns("no outcome"),
        _returns(ok(object())),
        _returns(ok({1: 2, "x": {3}})),
        _returns(ok(float("nan"))),
        lambda config, context: 1,
    ],
)
def test_a_tool_that_breaks_fails_its_step_once(tmp_path, run):
    breaks = {"method": "none", "numbers": set(), "error": RuntimeError()}

    state, events, _ = asyncio.run(played(tmp_path, broken_tool(run), **breaks))

    check_ends(events)
    assert state.status in ("FAILED", "COMPLETED")
