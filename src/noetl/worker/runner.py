"""Runs one command: a pipeline once, or once for each iteration of a chunk.

The runner performs what `engine.pipeline` decides. It reports every call and every iteration as
it ends, so that whoever goes on after a crash goes on behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from noetl.engine.cases import EventRuleProgram
from noetl.engine.pipeline import TaskProgram
from noetl.engine.program import Program
from noetl.errors import EvaluationFailed
from noetl.model.chains import Progress
from noetl.model.commands import Command, Ending, Suspension
from noetl.model.events import CtxPatched, VarsSet
from noetl.model.ids import derive
from noetl.model.net import Block, EventRule
from noetl.model.outcome import Outcome, TaskError
from noetl.worker.blocks import Interrupted, run_block, run_entry
from noetl.worker.bodies import Bodies
from noetl.worker.calls import Caller
from noetl.worker.control import Control
from noetl.worker.frame import Frame
from noetl.worker.hooks import with_hooks
from noetl.worker.iterations import run_chunk
from noetl.worker.passing import Passage, go
from noetl.worker.printing import Printed
from noetl.worker.reporter import Reporter


class Pipelines:
    """Compiled pipelines of one program, each made once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._steps: dict[str, tuple[TaskProgram, ...]] = {}
        self._blocks: dict[str, tuple[TaskProgram, ...]] = {}
        self._repeating: dict[tuple[TaskProgram, str], EventRuleProgram] = {}

    def step(self, name: str) -> tuple[TaskProgram, ...]:
        if name not in self._steps:
            tasks = self.program.steps[name].step.tasks
            self._steps[name] = tuple(TaskProgram(task) for task in tasks)
        return self._steps[name]

    def block(self, name: str) -> tuple[TaskProgram, ...]:
        if name not in self._blocks:
            tasks = self.program.blocks[name].tasks
            self._blocks[name] = tuple(TaskProgram(task) for task in tasks)
        return self._blocks[name]

    def repeating(self, program: TaskProgram, label: str) -> EventRuleProgram:
        """A rule of a task's `retry` that keeps or stores something, as a chain to follow."""
        if (program, label) not in self._repeating:
            rule = next(one.rule for one in program.retries if one.rule.label == label)
            whole = EventRule(label=label, actions=rule.actions)
            self._repeating[program, label] = EventRuleProgram(whole, program.task.name)
        return self._repeating[program, label]


class Runner:
    """Runs one command under one lease."""

    def __init__(
        self,
        command: Command,
        pipelines: Pipelines,
        caller: Caller,
        control: Control,
        reporter: Reporter,
        now: Callable[[], float],
        sleep: Callable[[float], Any],
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.command = command
        self.pipelines = pipelines
        self.program = pipelines.program
        self.caller = caller
        self.bodies = Bodies(control, command, caller.resources.rules.max_response_bytes)
        self.reporter = reporter
        self.now = now
        self.sleep = sleep
        self.is_paused = is_paused
        """Whether nothing more is to begin under this command."""
        self.step = self.program.steps[command.step]
        self._warned: set[str] = set()

    async def run(self) -> Ending | None:
        """How the run ended; None if it is a part of a loop, or goes on later."""
        if self.command.steps:
            await self.bodies.fetch_results(self.command)
        loop = self.step.step.loop
        if self.command.chunk is None and self.is_paused():
            self.reporter.suspend(Suspension(progress=self.command.progress or Progress()))
            return None
        if self.command.chunk is not None and loop is not None:
            await run_chunk(self, loop, await self.bodies.with_elements(self.command.chunk))
            return None
        frame = Frame(self.program, self.command, dict(self.command.ctx), self.command.progress)
        if self.command.block is not None:
            return await self._compensate(self.program.blocks[self.command.block], frame)
        ended = await self.pipeline(self.pipelines.step(self.command.step), frame, top=True)
        if isinstance(ended, Ending):
            return ended
        if frame.ctx_writes:
            self.report_ctx(frame, self.now())
        if frame.vars_writes:
            self.report_vars(frame)
        self.reporter.suspend(ended)
        return None

    async def _compensate(self, block: Block, frame: Frame) -> Ending | None:
        """Run a workbook entry in the step's place: it undoes what the step did."""
        cause = derive(self.command.step_run_id, block.name)
        try:
            outcome = await run_entry(self, block, frame, {}, cause)
        except EvaluationFailed as error:
            return Ending(error=TaskError(kind="schema", code=error.code, message=str(error)))
        except Interrupted as entry:
            self.reporter.suspend(
                Suspension(progress=Progress(inner=entry.inner), child=entry.child)
            )
            return None
        if frame.ctx_writes:
            self.report_ctx(frame, self.now())
        return Ending(error=outcome.error, result=outcome.result)

    def has_warned(self, what: str) -> bool:
        """Whether this was pointed out under this command before; from now on it was."""
        if what in self._warned:
            return True
        self._warned.add(what)
        return False

    # --- Pipelines ---

    def pipeline(
        self,
        tasks: tuple[TaskProgram, ...],
        frame: Frame,
        *,
        top: bool = False,
        inside: bool = False,
    ) -> Awaitable[Ending | Suspension]:
        """Run tasks until the pipeline ends or has to wait for long.

        `top`: not in a loop. `inside`: of a workbook entry, which can only wait where it is.
        """
        own = not inside and not self.command.undoes
        case = self.step.case if own else None
        return go(Passage(runner=self, tasks=tasks, frame=frame, case=case, top=top, inside=inside))

    def outcome(
        self, program: TaskProgram, frame: Frame, action_id: str
    ) -> Awaitable[tuple[Outcome, Printed]]:
        """One try of a task with its hooks: the outcome, and what it printed."""
        if program.before or program.after or program.finally_:
            return with_hooks(self, program, frame, action_id)
        return self.call(program, frame, action_id)

    def call(
        self, program: TaskProgram, frame: Frame, action_id: str
    ) -> Awaitable[tuple[Outcome, Printed]]:
        """One try of a task by itself."""
        if program.task.kind == "workbook":
            return run_block(self, program, frame, action_id)
        return self.caller.call(program, frame, action_id, self.reporter)

    def report_ctx(self, frame: Frame, now: float) -> None:
        self.reporter.say(self.ctx_patch(frame, now))

    def report_vars(self, frame: Frame) -> None:
        """What was written to vars since the last time."""
        command, values = self.command, dict(frame.vars_writes)
        frame.vars_writes.clear()
        self.reporter.say(
            VarsSet(
                at=self.now(), values=values, step_run_id=command.step_run_id, step=command.step
            )
        )

    def ctx_patch(self, frame: Frame, now: float) -> CtxPatched:
        """What was written to ctx since the last time."""
        values = dict(frame.ctx_writes)
        frame.ctx_writes.clear()
        command = self.command
        return CtxPatched(at=now, values=values, step_run_id=command.step_run_id, step=command.step)
