"""Drives the machine of a step run (`engine.pipeline.machine`): performs what it asks for, tells it
what happened, and reports its facts.

A command is one pipeline, one for each iteration of a chunk, or a workbook entry that undoes a
step. Every call and every iteration is reported as it ends, so that the next worker continues after
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from functools import cached_property

from noetl.engine.pipeline.frame import Frame
from noetl.engine.pipeline.machine import (
    Asked,
    Call,
    CallEnded,
    Cancelled,
    ChildAsked,
    End,
    Entered,
    Fetch,
    Fetched,
    Flush,
    Happened,
    Keep,
    Kept,
    Pipeline,
    Record,
    Say,
    StepRun,
    Suspend,
    Wait,
    Woken,
)
from noetl.engine.pipeline.rules import TaskProgram
from noetl.engine.program import BlockProgram, Program
from noetl.errors import EvaluationFailed
from noetl.model.chains import Progress
from noetl.model.commands import Command, Ending, Suspension
from noetl.model.ids import CommandId, derive
from noetl.model.net import WORKBOOK
from noetl.model.outcome import error_from
from noetl.tools.playbook import TOOL as PLAYBOOK
from noetl.worker.bodies import Bodies
from noetl.worker.calls import Caller
from noetl.worker.entries import Interrupted, run_entry, run_task
from noetl.worker.loops import run_chunk
from noetl.worker.reporter import Reporter

ENTERED, WOKEN, KEPT, CANCELLED = Entered(), Woken(), Kept(), Cancelled()


class Driver:
    """Runs one command under one lease."""

    def __init__(
        self,
        command: Command,
        program: Program,
        caller: Caller,
        reporter: Reporter,
        paused: Container[CommandId],
    ) -> None:
        self.command = command
        self.program = program
        self.caller = caller
        self.call: Callable[..., Awaitable[CallEnded]] = caller.call
        self.reporter = reporter
        self.now = caller.now
        self._paused = paused
        """The commands of this worker under which nothing new may begin."""
        self.step_run = StepRun(
            program, command, PLAYBOOK, caller.resources.rules.max_response_bytes, self.now()
        )
        self.step = self.step_run.step

    @cached_property
    def bodies(self) -> Bodies:
        return Bodies(self.caller.control, self.command)

    def is_paused(self) -> bool:
        """Whether nothing new may begin under this command."""
        return self.command.command_id in self._paused

    async def run(self) -> Ending | None:
        """How the run ended; None if it is a part of a loop, or continues later."""
        command = self.command
        if command.steps:
            await self.bodies.fetch_results(command)
        loop = self.step.step.loop
        if command.chunk is None and self.is_paused():
            self.reporter.suspend(Suspension(progress=command.progress or Progress()))
            return None
        if command.chunk is not None and loop is not None:
            await run_chunk(self, loop, await self.bodies.with_elements(command.chunk))
            return None
        frame = Frame(self.program, command, dict(command.ctx), command.progress)
        if command.block is not None:
            return await self._compensate(self.program.blocks[command.block], frame)
        ended = await self.drive(self.step.tasks, frame, top=True)
        if isinstance(ended, Ending):
            return ended
        self.reporter.suspend(ended)
        return None

    async def drive(
        self,
        tasks: tuple[TaskProgram, ...],
        frame: Frame,
        *,
        top: bool = False,
        inside: bool = False,
    ) -> Ending | Suspension:
        """One pass through a pipeline, from the position of the frame. See `Pipeline`.

        An exception that ends a call (a cancellation, a lost lease) is raised when the machine has
        ended, after the `finally` hooks.
        """
        machine = Pipeline(self.step_run, tasks, frame, top=top, inside=inside)
        reporter, call = self.reporter, self.call
        command_id, paused = self.command.command_id, self._paused
        happened: Happened = ENTERED
        at = self.now()
        stopped: BaseException | None = None
        while True:
            for do in machine.on(happened, at, command_id in paused):
                if isinstance(do, Say):
                    if do.held:
                        reporter.hold(do.fact)
                    else:
                        reporter.say(do.fact)
                elif isinstance(do, Flush):
                    reporter.flush_soon()
                elif isinstance(do, End):
                    if stopped is not None:
                        raise stopped
                    return do.ending
                elif isinstance(do, Suspend):
                    return do.suspension
                else:
                    asked = do
            try:
                if isinstance(asked, Call) and asked.program.task.kind != WORKBOOK:
                    ended = await call(asked.program, asked.frame, asked.action_id, reporter)
                    happened, at = ended, ended.outcome.meta.ended_at
                    continue
                happened = await self._performed(asked)
            except BaseException as error:  # noqa: BLE001  it is raised when the machine has ended
                happened, stopped = CANCELLED, error
            at = self.now()

    async def _performed(self, do: Asked) -> Happened:
        if type(do) is Call:  # of a workbook entry
            try:
                return CallEnded(await run_task(self, do.program, do.frame, do.action_id))
            except Interrupted as entry:
                return ChildAsked(entry.child, entry.inner)
        if type(do) is Wait:
            await asyncio.sleep(do.seconds)
            return WOKEN
        if type(do) is Fetch:
            return Fetched(await self.bodies.real(do.value))
        if type(do) is Record:
            await self.reporter.recorded()
        else:
            assert type(do) is Keep
            await self.bodies.keep(do.body)
        return KEPT

    async def _compensate(self, block: BlockProgram, frame: Frame) -> Ending | None:
        """Run a workbook entry in the step's place: it undoes what the step did."""
        cause = derive(self.command.step_run_id, block.name)
        ended: Ending | None = None
        try:
            outcome = await run_entry(self, block, frame, {}, cause, frame.inner)
            ended = Ending(error=outcome.error, result=outcome.result)
        except EvaluationFailed as error:
            ended = Ending(error=error_from(error))
        except Interrupted as entry:
            progress = Progress(inner=entry.inner)
            self.reporter.suspend(Suspension(progress=progress, child=entry.child))
        for fact in frame.written(self.now()):
            self.reporter.say(fact)
        return ended
