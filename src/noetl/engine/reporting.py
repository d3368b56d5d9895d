"""What a worker's report means for the run it is about."""

from __future__ import annotations

from typing import Any

from noetl.engine import looping
from noetl.engine.failing import error_from
from noetl.engine.running import fail_run
from noetl.engine.scope import event_names, server_scope, step_view
from noetl.engine.turn import StartChild, Turn
from noetl.errors import EvaluationFailed
from noetl.model.commands import ChildRequest, Ending, Report, Suspension
from noetl.model.events import (
    ChildStarted,
    CommandClosed,
    CtxPatched,
    Event,
    IterationDone,
    IterationFailed,
    Parent,
    StepDone,
    StepWaiting,
    TimerSet,
    VarsSet,
)
from noetl.model.ids import derive
from noetl.model.outcome import TaskError
from noetl.model.state import Run, StepResult


def absorb_report(turn: Turn, report: Report) -> None:
    """Fold what the worker says. A report about a run that is over tells nothing new."""
    run = _run_of(turn, report.command_id)
    if run is None:
        return
    for event in report.events:
        if _is_news(run, event):
            turn.record(event)
    for suspension in report.suspensions:
        _suspend(turn, run, suspension)
    if report.ending is not None:
        end_run(turn, run, report.ending)
        return
    if report.closes:
        turn.record(
            CommandClosed(at=turn.at, command_id=report.command_id, step_run_id=run.step_run_id)
        )
    if run.loop is not None:
        looping.hand_out(turn, run)
        looping.finish_if_over(turn, run)


def _run_of(turn: Turn, command_id: str) -> Run | None:
    return next((run for run in turn.state.runs.values() if command_id in run.commands), None)


def _is_news(run: Run, event: Event) -> bool:
    """An iteration that was lost and done again may be reported by both; the first counts."""
    if isinstance(event, IterationDone | IterationFailed):
        loop = run.loop
        assert loop is not None
        return event.iteration not in loop.results and event.iteration not in loop.errors
    return True


def end_run(turn: Turn, run: Run, ending: Ending) -> None:
    """The pipeline has ended: write what the step keeps of its result, then end the step."""
    if ending.error is not None:
        fail_run(turn, run.step_run_id, ending.error)
        return
    try:
        keep(turn, run, ending.result, ending.tasks)
    except EvaluationFailed as error:
        fail_run(turn, run.step_run_id, error_from(error))
        return
    turn.record(
        StepDone(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            result=ending.result,
            tasks=ending.tasks,
            undo=turn.program.steps[run.step].step.compensate,
        )
    )


def keep(turn: Turn, run: Run, result: Any, tasks: dict[str, Any]) -> None:
    """`vars` and `set` of the step, rendered with its result."""
    program = turn.program.steps[run.step]
    if (not program.step.vars and not program.patch.source) or run.compensates is not None:
        return
    shown = step_view(turn.program, run.step, StepResult(value=result, tasks=tasks))
    scope = server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        run.step,
        at=turn.at,
        seed=run.step_run_id,
        args=run.args,
        names=event_names("step.done", run.step, result, None, shown)
        | {"outcome": {"status": "ok", "result": result}, "output": shown},
    )
    values = program.vars.render(scope, f"vars of step {run.step}")
    if values:
        assert isinstance(values, dict)
        turn.record(VarsSet(at=turn.at, values=values, step_run_id=run.step_run_id, step=run.step))
    patch = program.patch.render(scope, f"set of step {run.step}")
    if patch:
        assert isinstance(patch, dict)
        turn.record(
            CtxPatched(at=turn.at, values=patch, step_run_id=run.step_run_id, step=run.step)
        )


def _suspend(turn: Turn, run: Run, suspension: Suspension) -> None:
    """Let go of the worker until a moment, or until a child execution has ended."""
    child = None
    if suspension.child is not None:
        child = child_id(turn, run, suspension)
    turn.record(
        StepWaiting(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            iteration=suspension.iteration,
            until=suspension.until,
            child=child,
            progress=suspension.progress,
        )
    )
    if suspension.child is not None and child is not None:
        _start_child(turn, run, suspension.child, child, suspension.iteration)
    if suspension.until is not None:
        turn.record(
            TimerSet(
                at=turn.at,
                timer_id=derive(run.step_run_id, "wake", suspension.iteration, turn.state.seq),
                fires_at=suspension.until,
                purpose="wake",
                step_run_id=run.step_run_id,
                iteration=suspension.iteration,
            )
        )


def child_id(turn: Turn, run: Run, suspension: Suspension) -> str:
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
        execution_id=turn.execution_id, step_run_id=run.step_run_id, iteration=iteration
    )
    turn.effect(StartChild(child, request, parent))


LOST = "the workers that ran it died or lost their lease"


def lost_for_good(deliveries: int) -> TaskError:
    return TaskError(
        kind="lease_lost",
        code="poison",
        message=f"given up after {deliveries} deliveries: {LOST}. Something in this step may kill"
        " its worker; look at the workers' logs.",
    )
