"""Iterations of a loop on a worker: those of a chunk, or of a frame that a cursor claims.

They run in lanes. A lane runs one iteration after another until one waits: that one remains in
flight, so the lane ends.

A frame of a cursor claims its rows with the playbook's statement, and the claim is committed before
its rows are run. The engine does not hand out rows of a worker that died; they come back when the
statement claims them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from noetl.engine.elements import element
from noetl.engine.pipeline.actions import rendered
from noetl.engine.pipeline.frame import Frame
from noetl.engine.pipeline.rules import TaskProgram
from noetl.engine.routing import key_digest
from noetl.errors import EvaluationFailed
from noetl.model.chains import Progress
from noetl.model.commands import Chunk, Ending, Suspension
from noetl.model.events import (
    FrameClaimed,
    IterationDone,
    IterationFailed,
    IterationsKeyed,
    IterationStarted,
    TaskDone,
    TaskStarted,
)
from noetl.model.ids import derive
from noetl.model.net import FRAME_ROWS, NOOP, Cursor, Loop, Task, Values
from noetl.model.outcome import Outcome, TaskError, error_from, failed
from noetl.templates import Scope, compile_value

if TYPE_CHECKING:
    from noetl.worker.driver import Driver

Verdict = Literal["go on", "wait", "stop"]
CLAIM = "claim"
"""The name of the claiming call in the record."""
PAUSE = 1.0
"""Seconds before a failed claim is retried, growing with each attempt."""


async def run_chunk(driver: Driver, loop: Loop, chunk: Chunk) -> None:
    """Run what a command of a loop asks for, and report each end.

    During a pause no further iteration begins: those that have not begun are handed out after it.
    """
    if driver.is_paused() and chunk.claims:
        return
    if loop.cursor is not None and chunk.claims:
        chunk = await _claimed(driver, loop.cursor, chunk)
    ctx = dict(driver.command.ctx)
    if chunk.keys:
        _find_keys(driver, loop, chunk, ctx)
        return
    alone, reporter = driver.command.iteration, driver.reporter
    in_order = loop.mode == "sequential" and (alone is not None or not chunk.chains)
    chains: Sequence[Sequence[int]] = chunk.chains
    if alone is not None:
        chains = [[alone]]
    elif not chains:
        todo = [index for index in range(chunk.start, chunk.stop) if index not in chunk.skip]
        chains = [todo] if in_order else [[index] for index in todo]
    remaining = iter(chains)
    has_effect = any(task.kind != NOOP for task in driver.step.step.tasks)
    stop = False

    async def lane() -> None:
        """Run one chain after another: its iterations one after another.

        What an iteration did is recorded before the next of its chain begins, so that a crash
        repeats no iteration that has ended, nor one after its successor.
        """
        nonlocal stop
        for chain in remaining:
            acted = False
            for index in chain:
                # Of a loop in order, the reporter knows whether anything happened.
                if (reporter.has_effect if in_order else acted) and not await reporter.recorded():
                    return
                if driver.is_paused() or stop:
                    if index == alone and not stop:
                        progress = driver.command.progress or Progress()
                        reporter.suspend(Suspension(progress=progress, iteration=index))
                    return
                # Parallel iterations do not see each other's writes.
                own = ctx if in_order else dict(ctx)
                verdict = await _iteration(driver, loop, chunk, index, own)
                if stop or verdict != "go on":
                    stop = stop or verdict == "stop"
                    return
                acted = has_effect

    lanes = min(chunk.concurrency, len(chains))
    if lanes == 1:
        await lane()
        return
    async with asyncio.TaskGroup() as group:
        for _ in range(lanes):
            group.create_task(lane())


def _find_keys(driver: Driver, loop: Loop, chunk: Chunk, ctx: Values) -> None:
    """Report the keys of iterations of a partitioned loop."""
    command, program = driver.command, driver.step.loop
    assert program is not None
    keys, error = [], None
    try:
        for index in range(chunk.start, chunk.stop):
            scope = _frame(driver, loop, chunk, index, ctx).scope
            keys.append(key_digest(program.partition, scope, f"partition of {command.step}"))
    except EvaluationFailed as failure:
        error = error_from(failure)
    driver.reporter.say(
        IterationsKeyed(
            at=driver.now(),
            step_run_id=command.step_run_id,
            step=command.step,
            start=chunk.start,
            keys=tuple(keys),
            error=error,
        )
    )


async def _iteration(driver: Driver, loop: Loop, chunk: Chunk, index: int, ctx: Values) -> Verdict:
    """Run one iteration and report its end. Returns how the following iterations proceed."""
    command, reporter = driver.command, driver.reporter
    now = driver.now
    names: dict[str, Any] = {
        "step_run_id": command.step_run_id,
        "step": command.step,
        "iteration": index,
    }
    reporter.say(IterationStarted(at=now(), **names))
    frame = _frame(driver, loop, chunk, index, ctx)
    ended: Ending | Suspension
    try:
        if driver.step.iteration_args.source:
            # The step's args that read the iteration; those of the token take precedence.
            place = f"args of step {command.step}"
            args = rendered(driver.step.iteration_args, frame.scope, place)
            frame.names["args"] = {**args, **command.args}
        ended = await driver.drive(driver.step.tasks, frame)
    except EvaluationFailed as error:
        ended = Ending(error=error_from(error))
    writes: Values = {}
    if isinstance(ended, Suspension) or loop.mode == "parallel" or loop.reduce:
        # What it wrote to ctx is for its end, or for the reducers.
        writes, frame.ctx_writes = frame.ctx_writes, {}
    if frame.ctx_writes or frame.vars_writes:
        for fact in frame.written(now()):
            reporter.say(fact)
    if isinstance(ended, Suspension):
        progress = msgspec.structs.replace(ended.progress, writes=writes)
        reporter.suspend(msgspec.structs.replace(ended, iteration=index, progress=progress))
        return "wait"
    if ended.next is not None:
        # A rule ends the loop; the sooner the control plane knows, the less work is wasted.
        names |= {"next": ended.next, "suppressed": ended.suppressed}
        reporter.flush_soon()
    if ended.error is not None:
        reporter.say(IterationFailed(at=now(), error=ended.error, ctx=writes, **names))
        mode = driver.step.step.failure_mode
        tolerant = loop.on_error == "continue" or mode == "best_effort"
        return "go on" if tolerant else "stop"
    reporter.say(IterationDone(at=now(), result=ended.result, ctx=writes, **names))
    return "stop" if ended.next is not None else "go on"


def _frame(driver: Driver, loop: Loop, chunk: Chunk, index: int, ctx: Values) -> Frame:
    command = driver.command
    # Frames of a cursor all count from 0, so the frame is a part of the cause of call ids.
    cause = derive(command.command_id if chunk.claims else command.step_run_id, index)
    item = element(loop, index, chunk)
    frame = Frame(
        driver.program,
        command,
        ctx,
        iteration=index,
        iter={loop.iterator: item, "index": index},
        loop={"index": index, "length": chunk.total},
        start=command.progress if command.iteration == index else None,
        cause=cause,
    )
    frame.names.setdefault(loop.iterator, frame.iter[loop.iterator])
    return frame


# --- Frames of a cursor ------------------------------------------------------------------------


async def _claimed(driver: Driver, cursor: Cursor, chunk: Chunk) -> Chunk:
    """The frame with its elements: rows, or all rows together as one element."""
    command = driver.command
    frame = Frame(
        driver.program,
        command,
        dict(command.ctx),
        cause=derive(command.command_id, CLAIM),
    )
    rows: list[Any] = []
    error: TaskError | None = None
    width = 1
    try:
        width = _whole(cursor.row_concurrency, frame.scope, "row_concurrency")
        outcome = await _claim(driver, cursor, frame)
        error = outcome.error
        rows = _rows(outcome) if outcome.is_ok else []
    except EvaluationFailed as wrong:
        error = TaskError(kind="schema", code=wrong.code, message=str(wrong))
    elements = [rows] if rows and cursor.process == "frame" else rows
    driver.reporter.say(
        FrameClaimed(
            at=driver.now(),
            step_run_id=command.step_run_id,
            step=command.step,
            iterations=len(elements),
            error=error,
        )
    )
    driver.reporter.flush_soon()
    return msgspec.structs.replace(chunk, items=elements, stop=len(elements), concurrency=width)


async def _claim(driver: Driver, cursor: Cursor, frame: Frame) -> Outcome:
    """Run the statement, with retries for temporary errors."""
    if FRAME_ROWS in cursor.claim:
        frame.names[FRAME_ROWS] = _whole(cursor.max_rows, frame.scope, "max_rows")
    program = TaskProgram(_task(cursor, frame.scope))
    action_id = frame.action_id(program.task, frame.page)
    tries = _whole(cursor.max_attempts, frame.scope, "max_attempts")
    outcome = failed("unknown", "the claim statement was not tried")
    for attempt in range(1, tries + 1):
        names: dict[str, Any] = {
            "step_run_id": driver.command.step_run_id,
            "step": driver.command.step,
            "task": CLAIM,
            "attempt": attempt,
        }
        driver.reporter.say(TaskStarted(at=driver.now(), kind=cursor.kind, **names))
        ended = await driver.call(program, frame, action_id, driver.reporter)
        outcome, printed = ended.outcome, ended.printed
        again = outcome.error is not None and outcome.error.retryable and attempt < tries
        # The rows themselves are recorded with their iterations.
        shown = msgspec.structs.replace(outcome, result={"rows": len(_rows(outcome))})
        driver.reporter.say(
            TaskDone(
                at=driver.now(),
                outcome=shown if outcome.is_ok else outcome,
                directive="retry" if again else "continue" if outcome.is_ok else "fail",
                log=printed.text,
                told=printed.told,
                **names,
            )
        )
        if not again:
            break
        await asyncio.sleep(PAUSE * attempt)
    return outcome


def _task(cursor: Cursor, scope: Scope) -> Task:
    """The claim as a task. The statement may bind `max_rows` and `lease_seconds`."""
    config: dict[str, Any] = {"command": cursor.claim}
    for name in ("auth", "database"):
        if getattr(cursor, name) is not None:
            config[name] = getattr(cursor, name)
    params = cursor.params
    if params is None or isinstance(params, dict):
        ours = {
            name: _whole(getattr(cursor, name), scope, name)
            for name in ("max_rows", "lease_seconds")
            if name in cursor.claim
        }
        if FRAME_ROWS in cursor.claim:
            ours[FRAME_ROWS] = _whole(cursor.max_rows, scope, "max_rows")
        params = {**ours, **(params or {})}
    if params:
        config["params"] = params
    return Task(name=CLAIM, kind=cursor.kind, config=config, timeout=cursor.timeout)


def _rows(outcome: Outcome) -> list[Any]:
    found = outcome.result.get("rows") if isinstance(outcome.result, dict) else None
    return found if isinstance(found, list) else []


def _whole(written: Any, scope: Scope, name: str) -> int:
    found: Any = compile_value(written).render(scope, f"{name} of a cursor")
    try:
        number = int(found)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise EvaluationFailed(f"`{name}` of a cursor is {found!r:.60}; it must be at least 1.")
    return number
