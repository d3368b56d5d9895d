"""What a worker's report means for the run it is about."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.engine import looping
from noetl.engine.ending import complete_run, fail_run
from noetl.engine.turn import Close, StartChild, Turn
from noetl.model.commands import ChildRequest, Report, Suspension
from noetl.model.events import (
    ChildStarted,
    CommandClosed,
    Event,
    IterationDone,
    IterationFailed,
    Parent,
    Reported,
    StepWaiting,
    TaskDone,
    TimerSet,
)
from noetl.model.ids import CommandId, derive
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState, Run


def absorb_report(turn: Turn, report: Report) -> None:
    """Fold what the worker says. What is known, or about a run that is over, is no news."""
    run = run_of(turn.state, report.command_id)
    if run is None or report.number <= run.reported.get(report.command_id, 0):
        return
    closes = report.closes or report.ending is not None
    if closes:
        turn.last_word = report.command_id
    mark = {} if closes else _mark(report)
    for event in report.events:
        if _is_news(run, event):
            turn.record(msgspec.structs.replace(event, **mark) if mark else event)
            mark = {}
    for suspension in report.suspensions:
        if run.loop is None or not looping.has_ended(run.loop, suspension.iteration or 0):
            _suspend(turn, run, suspension, {"command_id": report.command_id, **mark})
            mark = {}
    ending = report.ending
    if ending is not None and ending.error is not None:
        fail_run(turn, run.step_run_id, ending.error)
    elif ending is not None and run.loop is None:
        complete_run(turn, run, ending.result, ending.tasks)
    else:
        _go_on(turn, run, report.command_id, closes=closes, waits=bool(report.suspensions))


def _go_on(turn: Turn, run: Run, command_id: CommandId, *, closes: bool, waits: bool) -> None:
    """The run has not ended: close what is to be closed, and hand out what there is."""
    if run.loop is None:
        if waits:
            if not closes:
                # It goes on under another command, perhaps before the worker's last word.
                turn.effect(Close(command_id))
            close_command(turn, run, command_id)
        elif closes:
            fail_run(turn, run.step_run_id, NO_ENDING)
        return
    if closes:
        close_command(turn, run, command_id)
    looping.go_on(turn, run)


def close_command(turn: Turn, run: Run, command_id: CommandId) -> None:
    """The command is over. Iterations it did not get to will be handed out again."""
    rest = looping.rest_of(run.loop, command_id) if run.loop is not None else None
    turn.record(
        CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id, rest=rest)
    )


def run_of(state: ExecutionState, command_id: CommandId) -> Run | None:
    """The run this command works on, if both are still open."""
    run_id = state.holders.get(command_id)
    return state.runs[run_id] if run_id is not None else None


def _mark(report: Report) -> dict[str, Any]:
    """What tells this report from others: one of its facts will carry it."""
    settling = TaskDone | IterationDone | IterationFailed
    settled = any(isinstance(event, settling) for event in report.events)
    return {"command_id": report.command_id, "report": report.number, "settled": settled}


def _is_news(run: Run, event: Event) -> bool:
    """Workers speak of their own run only, and of each iteration until it has ended.

    An iteration that was lost and done again may be reported by both; the first counts.
    """
    if not isinstance(event, Reported) or isinstance(event, StepWaiting):
        return False
    if event.step_run_id != run.step_run_id or event.step != run.step:
        return False
    iteration = getattr(event, "iteration", None)
    if iteration is None:
        return True
    loop = run.loop
    in_loop = loop is not None and 0 <= iteration < (loop.total or 0)
    return in_loop and loop is not None and not looping.has_ended(loop, iteration)


def _suspend(turn: Turn, run: Run, suspension: Suspension, mark: dict[str, Any]) -> None:
    """Let go of the worker until a moment, or until a child execution has ended."""
    child = child_id(run, suspension) if suspension.child is not None else None
    # Whoever waits for nothing goes on at once.
    until = suspension.until if suspension.until is not None or child is not None else turn.at
    turn.record(
        StepWaiting(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            iteration=suspension.iteration,
            until=until,
            child=child,
            progress=suspension.progress,
            **mark,
        )
    )
    if suspension.child is not None and child is not None:
        _start_child(turn, run, suspension.child, child, suspension.iteration)
    if until is not None:
        turn.record(
            TimerSet(
                at=turn.at,
                timer_id=derive(run.step_run_id, "wake", suspension.iteration, turn.state.seq),
                fires_at=until,
                purpose="wake",
                step_run_id=run.step_run_id,
                iteration=suspension.iteration,
            )
        )


def child_id(run: Run, suspension: Suspension) -> str:
    """The child's execution id, derived: deciding again starts no second child."""
    text = derive(
        run.step_run_id,
        "child",
        suspension.iteration,
        suspension.progress.position,
        suspension.progress.page,
        suspension.progress.attempt,
        suspension.progress.jumps,
    )
    # 62 bits: an execution id is a positive 63-bit number.
    return str(int(text[:16], 16) >> 2)


def _start_child(
    turn: Turn, run: Run, request: ChildRequest, child: str, iteration: int | None
) -> None:
    turn.record(
        ChildStarted(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            child=child,
            path=request.path,
            iteration=iteration,
        )
    )
    parent = Parent(
        execution_id=turn.execution_id,
        step_run_id=run.step_run_id,
        iteration=iteration,
        return_step=request.return_step,
    )
    turn.effect(StartChild(child, request, parent))


NO_ENDING = TaskError(
    kind="unknown",
    code="no_ending",
    message="the worker let go of the run without saying how it ended.",
)
LOST = "the workers that ran it died or lost their lease"


def lost_for_good(deliveries: int) -> TaskError:
    return TaskError(
        kind="lease_lost",
        code="poison",
        message=f"given up after {deliveries} deliveries: {LOST}. Something in this step may kill"
        " its worker; look at the workers' logs.",
    )
