"""The end of a step run: what the step keeps of its result, and how its end is told."""

from __future__ import annotations

from typing import Any

from noetl.engine.failing import error_from
from noetl.engine.scope import WholeResult, event_names, server_scope, shown_names, step_view
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed
from noetl.model.events import CtxPatched, StepDone, StepFailed, StepSkipped, VarsSet
from noetl.model.net import Values
from noetl.model.outcome import TaskError
from noetl.model.state import Run, StepResult


def record_done(turn: Turn, run: Run, result: Any, tasks: Values) -> None:
    """It ended well: write what the step keeps, then end the run."""
    program = turn.program.steps[run.step]
    if program.keeps and run.compensates is None:
        try:
            _keep(turn, run, result, tasks)
        except EvaluationFailed as error:
            record_failed(turn, run, error_from(error))
            return
    turn.close(run)
    step = program.step
    turn.record(
        StepDone(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            result=result,
            tasks=tasks,
            undo=step.compensate if run.compensates is None and not run.handles_failure else None,
            emitted=step.emit,
            undone=run.undoes,
        )
    )


def record_skipped(turn: Turn, run: Run, reason: str) -> None:
    """End a run as skipped: none of its arcs is taken."""
    turn.close(run)
    turn.record(StepSkipped(at=turn.at, step_run_id=run.step_run_id, step=run.step, reason=reason))


def record_failed(turn: Turn, run: Run, error: TaskError, result: Any = None) -> None:
    """End a run as failed; whatever works on it must stop."""
    turn.close(run)
    turn.record(
        StepFailed(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            error=error,
            result=result,
            emitted=turn.program.steps[run.step].step.emit,
        )
    )


def _keep(turn: Turn, run: Run, result: Any, tasks: Values) -> None:
    """`vars` and `set` of the step, rendered with its result."""
    program = turn.program.steps[run.step]
    own = StepResult(value=result, tasks=tasks)
    shown = step_view(turn.program, run.step, own, turn.state.seal)
    outcome = WholeResult(program.kind, {"status": "ok", "result": result, "error": None})
    scope = server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        run.step,
        at=turn.at,
        seed=run.step_run_id,
        args=run.args,
        names=shown_names(turn.program, run, turn.state.seal)
        | event_names("step.done", run.step, result, None, shown)
        | {"outcome": outcome, "output": outcome},
        own=own,
    )
    values = program.vars.render(scope, f"vars of step {run.step}")
    patch = program.patch.render(scope, f"set of step {run.step}")
    assert isinstance(values, dict)
    assert isinstance(patch, dict)
    if values:
        turn.record(VarsSet(at=turn.at, values=values, step_run_id=run.step_run_id, step=run.step))
    if patch:
        turn.record(
            CtxPatched(at=turn.at, values=patch, step_run_id=run.step_run_id, step=run.step)
        )
