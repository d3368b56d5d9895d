"""Runs one command: a pipeline once, or once for each iteration of a chunk.

The runner performs what `engine.pipeline` decides. It reports every call and every iteration as
it ends, so that whoever goes on after a crash goes on behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from noetl.engine.looping import element
from noetl.engine.pipeline import Directive, TaskProgram, decide, rendered
from noetl.engine.program import Program
from noetl.errors import EvaluationFailed
from noetl.model import refs
from noetl.model.commands import ChildRequest, Chunk, Command, Ending, Suspension
from noetl.model.events import (
    CtxPatched,
    IterationDone,
    IterationFailed,
    IterationStarted,
    PolicyUnmatched,
    RetryStarted,
    TaskDone,
    TaskStarted,
)
from noetl.model.ids import derive
from noetl.model.net import Block, Loop, Values
from noetl.model.outcome import Outcome, TaskError
from noetl.templates import MASK, Tainted
from noetl.worker.blocks import run_block, run_entry
from noetl.worker.calls import Caller, action_of
from noetl.worker.control import Control
from noetl.worker.frame import Frame
from noetl.worker.reporter import Reporter

SLEEP_MAX = 5.0
"""Waits up to this long keep the slot; longer ones give it back."""


class Pipelines:
    """Compiled pipelines of one program, each made once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._steps: dict[str, tuple[TaskProgram, ...]] = {}
        self._blocks: dict[str, tuple[TaskProgram, ...]] = {}

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
    ) -> None:
        self.command = command
        self.pipelines = pipelines
        self.program = pipelines.program
        self.caller = caller
        self._control = control
        self.reporter = reporter
        self.now = now
        self.sleep = sleep
        self._step = self.program.steps[command.step].step

    async def run(self) -> Ending | None:
        """How the run ended; None if it is a part of a loop, or goes on later."""
        await self._fetch_results()
        loop = self._step.loop
        if self.command.chunk is not None and loop is not None:
            await self._run_chunk(loop, self.command.chunk)
            return None
        frame = Frame(
            self.program, self.command, dict(self.command.ctx), progress=self.command.progress
        )
        if self.command.block is not None:
            return await self._compensate(self.program.blocks[self.command.block], frame)
        ended = await self.pipeline(self.pipelines.step(self.command.step), frame, top=True)
        if isinstance(ended, Suspension):
            self.reporter.suspend(ended)
            return None
        return ended

    async def _compensate(self, block: Block, frame: Frame) -> Ending:
        """Run a workbook entry in the step's place: it undoes what the step did."""
        cause = derive(self.command.step_run_id, block.name)
        try:
            outcome = await run_entry(self, block, frame, {}, cause)
        except EvaluationFailed as error:
            return Ending(error=TaskError(kind="schema", code=error.code, message=str(error)))
        if frame.ctx_writes:
            self._report_ctx(frame, self.now())
        return Ending(error=outcome.error, result=outcome.result)

    # --- Loops ---

    async def _run_chunk(self, loop: Loop, chunk: Chunk) -> None:
        ctx = dict(self.command.ctx)
        alone = self.command.iteration
        todo = (
            [alone]
            if alone is not None
            else [index for index in range(chunk.start, chunk.stop) if index not in chunk.skip]
        )
        remaining = iter(todo)
        lanes = 1 if loop.mode == "sequential" else min(chunk.concurrency, len(todo))
        stop = False

        async def lane() -> None:
            """One iteration after the other, until one waits: it keeps its place in flight."""
            nonlocal stop
            for index in remaining:
                # Parallel iterations do not see each other's writes.
                own = ctx if lanes == 1 else dict(ctx)
                verdict = await self._iteration(loop, chunk, index, own)
                stop = stop or verdict == "stop"
                if stop or verdict == "wait":
                    return

        if lanes == 1:
            await lane()
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(lane())

    async def _iteration(
        self, loop: Loop, chunk: Chunk, index: int, ctx: Values
    ) -> Literal["go on", "wait", "stop"]:
        """Run one iteration and report its end; what becomes of the iterations after it."""
        command = self.command
        names: dict[str, Any] = {
            "step_run_id": command.step_run_id,
            "step": command.step,
            "iteration": index,
        }
        self.reporter.say(IterationStarted(at=self.now(), **names))
        item = element(loop, index, chunk)
        frame = Frame(
            self.program,
            command,
            ctx,
            iteration=index,
            iter_values={loop.iterator: item, "index": index},
            loop={"index": index, "length": chunk.total},
            progress=command.progress if command.iteration == index else None,
        )
        frame.scope.roots.setdefault(loop.iterator, item)
        ended = await self.pipeline(self.pipelines.step(command.step), frame)
        if isinstance(ended, Suspension):
            self.reporter.suspend(msgspec.structs.replace(ended, iteration=index))
            return "wait"
        writes = self._iteration_writes(loop, frame)
        if ended.error is not None:
            self.reporter.say(
                IterationFailed(at=self.now(), error=ended.error, ctx=writes, **names)
            )
            tolerant = loop.on_error == "continue" or self._step.failure_mode == "best_effort"
            return "go on" if tolerant else "stop"
        self.reporter.say(IterationDone(at=self.now(), result=ended.result, ctx=writes, **names))
        return "go on"

    def _iteration_writes(self, loop: Loop, frame: Frame) -> Values:
        """Writes of a parallel iteration wait for the reducers; others are recorded at once."""
        if loop.mode == "parallel" or loop.reduce:
            return frame.ctx_writes
        if frame.ctx_writes:
            self.reporter.say(
                CtxPatched(
                    at=self.now(),
                    values=frame.ctx_writes,
                    step_run_id=self.command.step_run_id,
                    step=self.command.step,
                    iteration=frame.iteration,
                )
            )
        return {}

    # --- Pipelines ---

    async def pipeline(
        self,
        tasks: tuple[TaskProgram, ...],
        frame: Frame,
        *,
        top: bool = False,
        inside: bool = False,
    ) -> Ending | Suspension:
        """Run tasks until the pipeline ends or has to wait for long.

        `top`: not in a loop. `inside`: of a workbook entry, which can only wait where it is.
        """
        await self._recall(tasks, frame)
        places = {program.task.name: index for index, program in enumerate(tasks)}
        while frame.position < len(tasks):
            program = tasks[frame.position]
            frame.enter(program.task.name)
            if frame.pending is None and program.task.kind == "playbook":
                return self._child(program, frame)
            outcome, log = await self._outcome(program, frame)
            outcome, stored = await self._stored(outcome, action_of(frame, program.task))
            try:
                directive = await self._judge(program, frame, outcome)
            except EvaluationFailed as error:
                wrong = TaskError(kind="schema", code=error.code, message=str(error))
                directive = Directive(kind="fail", error=wrong)
            call = (frame.attempt, action_of(frame, program.task), log)
            ended = self._follow(program, frame, outcome, stored, directive, places)
            self._report(program, frame, stored, directive, call, top=top)
            if ended is not None:
                return self._with_tasks(ended, frame, len(tasks))
            if directive.kind == "retry" and directive.delay > 0:
                if directive.delay > SLEEP_MAX and not inside:
                    return Suspension(progress=frame.progress(), until=self.now() + directive.delay)
                await self.sleep(directive.delay)
        return self._with_tasks(Ending(result=frame.stored_previous), frame, len(tasks))

    async def _outcome(self, program: TaskProgram, frame: Frame) -> tuple[Outcome, str]:
        task = program.task
        if frame.pending is not None:
            outcome, frame.pending = frame.pending, None
            return outcome, ""
        self.reporter.say(
            TaskStarted(
                at=self.now(),
                step_run_id=self.command.step_run_id,
                step=self.command.step,
                task=task.name,
                kind=task.kind,
                attempt=frame.attempt,
                action_id=action_of(frame, task),
                iteration=frame.iteration,
                page=frame.page,
            )
        )
        if program.before or program.after or program.finally_:
            return await self._with_hooks(program, frame)
        return await self._call(program, frame)

    async def _call(self, program: TaskProgram, frame: Frame) -> tuple[Outcome, str]:
        if program.task.kind == "workbook":
            return await run_block(self, program, frame), ""
        return await self.caller.call(program, frame)

    async def _with_hooks(self, program: TaskProgram, frame: Frame) -> tuple[Outcome, str]:
        """`before`, the task, `after`; `finally` whatever happens, also on cancellation."""
        try:
            broken = await self._hooks(program.before, frame)
            if broken is not None:
                return broken, ""
            outcome, log = await self._call(program, frame)
            frame.show_outcome(program.task.kind, outcome)
            if outcome.is_ok:
                outcome = await self._hooks(program.after, frame) or outcome
        finally:
            broken = await self._hooks(program.finally_, frame)
        return (broken if broken is not None and outcome.is_ok else outcome), log

    async def _hooks(self, hooks: tuple[TaskProgram, ...], frame: Frame) -> Outcome | None:
        for hook in hooks:
            outcome, _ = await self._call(hook, frame)
            if not outcome.is_ok:
                return outcome
        return None

    async def _judge(self, program: TaskProgram, frame: Frame, outcome: Outcome) -> Directive:
        """What the policy makes of the outcome, with the task's own `set` on success."""
        frame.show_outcome(program.task.kind, outcome)
        directive = decide(
            program,
            outcome,
            frame.scope,
            attempt=frame.attempt,
            seed=action_of(frame, program.task),
            limits=self.program.net.executor.limits,
        )
        if outcome.is_ok and program.task.patch is not None:
            frame.show_result(program.task.kind)
            place = f"set of task {program.task.name}"
            frame.write(*(rendered(part, frame.scope, place) for part in program.patch))
        return directive

    def _follow(
        self,
        program: TaskProgram,
        frame: Frame,
        outcome: Outcome,
        stored: Outcome,
        directive: Directive,
        places: dict[str, int],
    ) -> Ending | None:
        """Move to where the directive says; an ending if there is nowhere to go."""
        frame.write(directive.ctx, directive.iter, directive.local)
        if outcome.is_ok and directive.kind != "retry":
            frame.keep(program.task.name, program.task.kind, outcome.result, stored.result)
        frame.hide_outcome()
        if directive.kind == "retry":
            frame.attempt += 1
            frame.overrides = directive.overrides
            return None
        frame.attempt, frame.overrides = 1, {}
        match directive.kind:
            case "jump":
                return self._jump(program, frame, places[directive.to])
            case "break":
                frame.position = len(places)
                return Ending(result=frame.stored_previous)
            case "fail":
                error = directive.error or TaskError(kind="unknown", message="failed")
                return Ending(error=error)
            case _:
                frame.position += 1
        return None

    def _jump(self, program: TaskProgram, frame: Frame, target: int) -> Ending | None:
        frame.jumps += 1
        limit = program.task.max_jumps
        if target <= frame.position and isinstance(limit, int) and frame.jumps > limit:
            message = f'task "{program.task.name}" jumped more than {limit} times (`max_jumps`)'
            return Ending(error=TaskError(kind="client_error", code="jumps", message=message))
        frame.position = target
        return None

    def _report(
        self,
        program: TaskProgram,
        frame: Frame,
        outcome: Outcome,
        directive: Directive,
        call: tuple[int, str, str],
        *,
        top: bool,
    ) -> None:
        attempt, action_id, log = call
        names: dict[str, Any] = {
            "step_run_id": self.command.step_run_id,
            "step": self.command.step,
            "task": program.task.name,
            "iteration": frame.iteration,
        }
        now = self.now()
        self.reporter.say(
            TaskDone(
                at=now,
                outcome=outcome,
                attempt=attempt,
                action_id=action_id,
                page=frame.page,
                directive=directive.kind,
                log=log,
                progress=frame.progress() if top else None,
                **names,
            )
        )
        if directive.unmatched:
            self.reporter.say(PolicyUnmatched(at=now, status=outcome.status, **names))
        if directive.kind == "retry":
            self.reporter.say(
                RetryStarted(at=now, attempt=frame.attempt, delay=directive.delay, **names)
            )
        if (top and directive.ctx) or (top and frame.ctx_writes):
            self._report_ctx(frame, now)
        if top and program.task.kind != "noop":
            self.reporter.flush_soon()

    def _report_ctx(self, frame: Frame, now: float) -> None:
        self.reporter.say(
            CtxPatched(
                at=now,
                values=dict(frame.ctx_writes),
                step_run_id=self.command.step_run_id,
                step=self.command.step,
            )
        )
        frame.ctx_writes.clear()

    def _child(self, program: TaskProgram, frame: Frame) -> Suspension | Ending:
        """A sub-playbook holds no slot: the run waits for it, not the worker."""
        try:
            config = rendered(program.config, frame.scope, f"task {program.task.name}")
            inputs = rendered(program.inputs, frame.scope, f"args of {program.task.name}")
        except EvaluationFailed as error:
            return Ending(error=TaskError(kind="schema", code=error.code, message=str(error)))
        request = ChildRequest(
            path=str(config.get("path", "")),
            version=config.get("version"),
            workload={**(config.get("payload") or {}), **inputs},
            return_step=config.get("return_step"),
        )
        return Suspension(progress=frame.progress(), child=request)

    def _with_tasks(self, ended: Ending, frame: Frame, tasks: int) -> Ending:
        """Of several tasks, the step also yields the result of each."""
        if ended.error is not None or tasks < 2:
            return ended
        return msgspec.structs.replace(ended, tasks=dict(frame.stored))

    # --- Large values ---

    async def _fetch_results(self) -> None:
        """Results that came as references are read before the first template needs them."""
        for result in self.command.steps.values():
            result.value = await self._real(result.value)
            result.tasks = {name: await self._real(one) for name, one in result.tasks.items()}
            each = result.value.get("results") if isinstance(result.value, dict) else None
            if isinstance(each, list) and any(refs.key_of(one) for one in each):
                # A loop whose iterations left large results of their own.
                real = [await self._real(one) for one in each]
                result.value = {**result.value, "results": real}

    async def _recall(self, tasks: tuple[TaskProgram, ...], frame: Frame) -> None:
        """After an interruption: the results of the tasks that were done before it."""
        if not frame.stored and frame.stored_previous is None:
            return
        kinds = {program.task.name: program.task.kind for program in tasks}
        values = {name: await self._real(stored) for name, stored in frame.stored.items()}
        frame.recall(kinds, values, await self._real(frame.stored_previous))

    async def _real(self, value: Any) -> Any:
        """The value that a reference stands for; any other value as it is."""
        key = refs.key_of(value)
        if key is None:
            return value
        owner = refs.owner_of(value, self.command.execution_id)
        return refs.decode(await self._control.get_result(owner, key))

    async def _stored(self, outcome: Outcome, action_id: str) -> tuple[Outcome, Outcome]:
        """The outcome, and how it is recorded: a large result is kept by reference.

        A result that has no form in JSON is an error of the task, whatever the tool thought.
        """
        if outcome.result is None:
            return outcome, outcome
        if isinstance(outcome.result, Tainted):
            return outcome, msgspec.structs.replace(outcome, result=MASK)
        try:
            body = refs.encode(outcome.result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"the result cannot be recorded as JSON: {error}"
            wrong = TaskError(kind="schema", code="not_json", message=message)
            bad = msgspec.structs.replace(outcome, status="error", result=None, error=wrong)
            return bad, bad
        if len(body) <= refs.INLINE_MAX:
            return outcome, outcome
        key = derive(action_id, "result")
        await self._control.put_result(self.command.execution_id, key, body)
        reference = refs.reference(self.command.execution_id, key, body, outcome.result)
        return outcome, msgspec.structs.replace(outcome, result=reference)
