"""Frames of a cursor: a worker claims rows by the playbook's statement, and runs what it got.

The claim is committed before its rows are run. Rows of a worker that dies are not handed out
again by us: they belong to whoever the statement gives them to next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from noetl.engine.pipeline import TaskProgram
from noetl.errors import EvaluationFailed
from noetl.model.commands import Chunk
from noetl.model.events import FrameClaimed, TaskDone, TaskStarted
from noetl.model.ids import derive
from noetl.model.net import FRAME_ROWS, Cursor, Task
from noetl.model.outcome import Outcome, TaskError, failed
from noetl.templates import Scope, compile_value
from noetl.worker.calls import action_of
from noetl.worker.frame import Frame

if TYPE_CHECKING:
    from noetl.worker.runner import Runner

CLAIM = "claim"
"""The name of the claiming call in the record."""
PAUSE = 1.0
"""Seconds before a claim that failed is tried again, growing with each try."""


async def claimed(runner: Runner, cursor: Cursor, chunk: Chunk) -> Chunk:
    """The frame with the elements it got: rows, or all rows at once as one element."""
    command = runner.command
    frame = Frame(
        runner.program,
        command,
        dict(command.ctx),
        cause=derive(command.command_id, CLAIM),
    )
    rows: list[Any] = []
    error: TaskError | None = None
    width = 1
    try:
        width = _whole(cursor.row_concurrency, frame.scope, "row_concurrency")
        outcome = await _claim(runner, cursor, frame)
        error = outcome.error
        rows = _rows(outcome) if outcome.is_ok else []
    except EvaluationFailed as wrong:
        error = TaskError(kind="schema", code=wrong.code, message=str(wrong))
    elements = [rows] if rows and cursor.process == "frame" else rows
    runner.reporter.say(
        FrameClaimed(
            at=runner.now(),
            step_run_id=command.step_run_id,
            step=command.step,
            iterations=len(elements),
            error=error,
        )
    )
    runner.reporter.flush_soon()
    return msgspec.structs.replace(chunk, items=elements, stop=len(elements), concurrency=width)


async def _claim(runner: Runner, cursor: Cursor, frame: Frame) -> Outcome:
    """Run the statement; what may go better next time is tried again."""
    if FRAME_ROWS in cursor.claim:
        frame.names[FRAME_ROWS] = _whole(cursor.max_rows, frame.scope, "max_rows")
    program = TaskProgram(_task(cursor, frame.scope))
    action_id = action_of(frame, program.task)
    tries = _whole(cursor.max_attempts, frame.scope, "max_attempts")
    outcome = failed("unknown", "the claim statement was not tried")
    for attempt in range(1, tries + 1):
        names: dict[str, Any] = {
            "step_run_id": runner.command.step_run_id,
            "step": runner.command.step,
            "task": CLAIM,
            "attempt": attempt,
        }
        runner.reporter.say(TaskStarted(at=runner.now(), kind=cursor.kind, **names))
        outcome, printed = await runner.caller.call(program, frame, action_id, runner.reporter)
        again = outcome.error is not None and outcome.error.retryable and attempt < tries
        # The rows themselves are the business of their iterations.
        shown = msgspec.structs.replace(outcome, result={"rows": len(_rows(outcome))})
        runner.reporter.say(
            TaskDone(
                at=runner.now(),
                outcome=shown if outcome.is_ok else outcome,
                directive="retry" if again else "continue" if outcome.is_ok else "fail",
                log=printed.text,
                told=printed.told,
                **names,
            )
        )
        if not again:
            break
        await runner.sleep(PAUSE * attempt)
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
    return Task(name=CLAIM, kind=cursor.kind, config=config)


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
        raise EvaluationFailed(f"`{name}` of a cursor is {found!r:.60}; 1 is the least.")
    return number
