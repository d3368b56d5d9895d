"""The kinds that the system itself runs keep the contract of `noetl.tools.testing`."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec
import pytest

from noetl.model.events import ChildStarted
from noetl.model.outcome import Outcome, TaskError, ok
from noetl.tools import playbook as playbook_kind
from noetl.tools import workbook
from noetl.tools.base import TaskLog
from noetl.tools.resources import ToolResources
from noetl.tools.testing import CANARY, ToolContract, Trial, Trials
from tests.canaries import assert_clean
from tests.examples.system import Bench, Run, on_bench, playbook, running
from tests.stopwatch import PATIENCE

CHILDREN = {
    "greets": "- { step: start, tool: { kind: noop, result: hello } }",
    "waits": "- { step: start, tool: { kind: shell, cmd: sleep 3600 } }",
    "refused": '- { step: start, tool: { kind: shell, cmd: "echo $S; exit 3", env: { S: '
    '"{{ keychain.key.token }}" } } }',
}
BOOK = """
greets: { tool: { kind: noop, result: hello } }
waits: { tool: { kind: shell, cmd: sleep 3600 } }
refused:
  tool: { kind: shell, cmd: "echo $S; exit 3", env: { S: "{{ keychain.key.token }}" } }
"""
KEYCHAIN = "- { name: key, kind: credential }"


def outcome_of(run: Run) -> Outcome:
    if run.document["status"] == "COMPLETED":
        return ok(run.result)
    error = msgspec.convert(run.error, TaskError, strict=False)
    return Outcome(status="error", error=error)


async def prepare(bench: Bench) -> None:
    """What the calls below find: playbooks to call, and a secret."""
    await bench.system.keys.put("key", "bearer", {"token": CANARY})
    for name, flow in CHILDREN.items():
        text = playbook(flow, keychain=KEYCHAIN).replace("path: tried", f"path: {name}")
        await bench.system.catalog.register(text)


class InASystem(ToolContract):
    """Called by a playbook of one step, in a system of its own that keeps no secret (S6)."""

    __test__ = False
    seconds_to_stop = 60.0  # with all that it takes to start and stop a system

    async def call(
        self, trial: Trial, resources: ToolResources, log: TaskLog, timeout: float | None = None
    ) -> Outcome:
        tool = {"kind": self.tool.kind, **trial.config}
        step = {
            "step": "start",
            "tool": tool,
            "spec": {} if timeout is None else {"timeout": timeout},
        }
        text = playbook(msgspec.json.encode([step]).decode(), keychain=KEYCHAIN, workbook=BOOK)
        async with running() as bench:
            await prepare(bench)
            run = await bench.run(text)
            assert_clean((CANARY,), bench.folder, repr(run))
            return outcome_of(run)


def test_a_child_that_is_cancelled_is_told_as_such():
    async def work(bench: Bench) -> Outcome:
        await prepare(bench)
        parent = await bench.start(playbook("- {step: start, tool: {kind: playbook, path: waits}}"))
        async with asyncio.timeout(PATIENCE):
            while not (
                started := [
                    one for one in await bench.events(parent) if isinstance(one, ChildStarted)
                ]
            ):
                await asyncio.sleep(0.02)
        await bench.system.executions.cancel(started[0].child, "enough")
        return outcome_of(await bench.ended(parent))

    error = on_bench(work).error
    assert error is not None
    assert error.kind == "cancelled"


class TestPlaybook(InASystem):
    __test__ = True
    tool = playbook_kind.TOOL
    shown_by: ClassVar = {"cancelled": test_a_child_that_is_cancelled_is_told_as_such}

    @pytest.fixture
    def trials(self):
        return Trials(
            good=Trial({"path": "greets", "return_step": "start"}),
            failing=(
                Trial({"path": "nowhere"}, fails="not_found"),
                Trial({"path": "greets", "return_step": "gone"}, fails="not_found"),
            ),
            endless=Trial({"path": "waits"}),
        )

    def test_an_error_of_the_child_is_the_tasks_error(self):
        ran = self.ran(Trial({"path": "refused"}))

        assert ran.outcome.error is not None
        assert ran.outcome.error.kind == "exception"
        assert CANARY not in str(ran)


class TestWorkbook(InASystem):
    __test__ = True
    tool = workbook.TOOL

    @pytest.fixture
    def trials(self):
        return Trials(good=Trial({"task": "greets"}), failing=(), endless=Trial({"task": "waits"}))

    def test_an_error_of_the_entry_is_the_tasks_error(self):
        ran = self.ran(Trial({"task": "refused"}))

        assert ran.outcome.error is not None
        assert ran.outcome.error.kind == "exception"
        assert CANARY not in str(ran)
