"""Iterations of a loop on a worker: those of a chunk, or of a frame that a cursor claims.

They run in lanes. A lane takes one iteration after the other until one waits: that one keeps its
place in flight, so the lane ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from noetl.engine.failing import error_from
from noetl.engine.looping import element
from noetl.engine.pipeline import rendered
from noetl.errors import EvaluationFailed
from noetl.model.chains import Progress
from noetl.model.commands import Chunk, Ending, Suspension
from noetl.model.events import CtxPatched, IterationDone, IterationFailed, IterationStarted
from noetl.model.ids import derive
from noetl.model.net import Loop, Values
from noetl.worker.cursors import claimed
from noetl.worker.frame import Frame

if TYPE_CHECKING:
    from noetl.worker.runner import Runner

Verdict = Literal["go on", "wait", "stop"]


async def run_chunk(runner: Runner, loop: Loop, chunk: Chunk) -> None:
    """Run what a command of a loop asks for, and report each end.

    Under a pause no further iteration begins: those that have not are handed out when it is over.
    """
    if runner.is_paused() and chunk.claims:
        return
    if loop.cursor is not None and chunk.claims:
        chunk = await claimed(runner, loop.cursor, chunk)
    ctx = dict(runner.command.ctx)
    alone = runner.command.iteration
    todo = (
        [alone]
        if alone is not None
        else [index for index in range(chunk.start, chunk.stop) if index not in chunk.skip]
    )
    remaining = iter(todo)
    in_order = loop.mode == "sequential"
    lanes = 1 if in_order else min(chunk.concurrency, len(todo))
    stop = False

    async def lane() -> None:
        nonlocal stop
        for index in remaining:
            # What an iteration did is recorded before the next begins, so that a worker that dies
            # repeats no iteration that has ended.
            if in_order and runner.reporter.has_effect and not await runner.reporter.recorded():
                return
            if runner.is_paused():
                if index == alone:
                    progress = runner.command.progress or Progress()
                    runner.reporter.suspend(Suspension(progress=progress, iteration=index))
                return
            # Parallel iterations do not see each other's writes.
            own = ctx if in_order else dict(ctx)
            verdict = await _iteration(runner, loop, chunk, index, own)
            stop = stop or verdict == "stop"
            if stop or verdict == "wait":
                return

    if lanes == 1:
        await lane()
        return
    async with asyncio.TaskGroup() as group:
        for _ in range(lanes):
            group.create_task(lane())


async def _iteration(runner: Runner, loop: Loop, chunk: Chunk, index: int, ctx: Values) -> Verdict:
    """Run one iteration and report its end; what becomes of the iterations after it."""
    command = runner.command
    names: dict[str, Any] = {
        "step_run_id": command.step_run_id,
        "step": command.step,
        "iteration": index,
    }
    runner.reporter.say(IterationStarted(at=runner.now(), **names))
    frame = _frame(runner, loop, chunk, index, ctx)
    ended: Ending | Suspension
    try:
        if runner.step.iteration_args.source:
            _add_args(runner, frame)
        ended = await runner.pipeline(runner.pipelines.step(command.step), frame)
    except EvaluationFailed as error:
        ended = Ending(error=error_from(error))
    if isinstance(ended, Suspension):
        # What it wrote is for the reducers, which will hear of it at its end.
        progress = msgspec.structs.replace(ended.progress, writes=frame.ctx_writes)
        runner.reporter.suspend(msgspec.structs.replace(ended, iteration=index, progress=progress))
        return "wait"
    writes = _writes(runner, loop, frame)
    if frame.vars_writes:
        runner.report_vars(frame)
    if ended.next is not None:
        # A rule ends the loop; the sooner the control plane knows, the less is done for nothing.
        names |= {"next": ended.next, "suppressed": ended.suppressed}
        runner.reporter.flush_soon()
    if ended.error is not None:
        runner.reporter.say(
            IterationFailed(at=runner.now(), error=ended.error, ctx=writes, **names)
        )
        mode = runner.step.step.failure_mode
        tolerant = loop.on_error == "continue" or mode == "best_effort"
        return "go on" if tolerant else "stop"
    runner.reporter.say(IterationDone(at=runner.now(), result=ended.result, ctx=writes, **names))
    return "stop" if ended.next is not None else "go on"


def _frame(runner: Runner, loop: Loop, chunk: Chunk, index: int, ctx: Values) -> Frame:
    command = runner.command
    # Frames of a cursor all count from 0, so the frame is a part of what calls are named after.
    cause = derive(command.command_id if chunk.claims else command.step_run_id, index)
    item = element(loop, index, chunk)
    frame = Frame(
        runner.program,
        command,
        ctx,
        iteration=index,
        iter_values={loop.iterator: item, "index": index},
        loop={"index": index, "length": chunk.total},
        progress=command.progress if command.iteration == index else None,
        cause=cause,
    )
    frame.names.setdefault(loop.iterator, frame.iter[loop.iterator])
    return frame


def _add_args(runner: Runner, frame: Frame) -> None:
    """The step's args that read the iteration; what a token brought stands."""
    place = f"args of step {runner.command.step}"
    own = rendered(runner.step.iteration_args, frame.scope, place)
    frame.names["args"] = {**own, **runner.command.args}


def _writes(runner: Runner, loop: Loop, frame: Frame) -> Values:
    """Writes of a parallel iteration wait for the reducers; others are recorded at once."""
    if loop.mode == "parallel" or loop.reduce:
        return frame.ctx_writes
    if frame.ctx_writes:
        runner.reporter.say(
            CtxPatched(
                at=runner.now(),
                values=frame.ctx_writes,
                step_run_id=runner.command.step_run_id,
                step=runner.command.step,
                iteration=frame.iteration,
            )
        )
    return {}
