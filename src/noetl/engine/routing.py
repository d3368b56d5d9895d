"""The ways out of a step: which arcs fire, and what their tokens carry."""

from __future__ import annotations

from typing import Any

from noetl.engine.failing import error_from
from noetl.engine.program import ArcProgram, StepProgram
from noetl.engine.scope import event_names, server_scope, step_view
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed
from noetl.model.duration import seconds
from noetl.model.events import (
    CtxPatched,
    NextSelected,
    NextUnmatched,
    StepDone,
    StepFailed,
    TimerSet,
    TokenCreated,
    WorkflowFailing,
)
from noetl.model.ids import derive
from noetl.model.outcome import TaskError
from noetl.model.spelling import did_you_mean
from noetl.model.state import StepResult
from noetl.templates import Scope


def route(turn: Turn, ended: StepDone | StepFailed) -> None:
    """Place a token on the far end of every arc that fires, in playbook order.

    A failed step takes only arcs whose guard reads the event or the error. If none of them fires
    nothing has handled the failure, and the execution fails.
    """
    program = turn.program.steps[ended.step]
    error = ended.error if isinstance(ended, StepFailed) else None
    ignored = error is not None and program.step.on_error == "ignore"
    scope = _scope(turn, program, ended, error)
    try:
        chosen = _firing(program, scope, failed=error is not None and not ignored)
        for arc in chosen:
            _send(turn, ended, arc, scope)
    except EvaluationFailed as failure:
        turn.record(
            WorkflowFailing(at=turn.at, error=error_from(failure), step=ended.step, stop=True)
        )
        return
    if chosen:
        targets = tuple(arc.arc.step for arc in chosen)
        turn.record(
            NextSelected(
                at=turn.at, step_run_id=ended.step_run_id, step=ended.step, targets=targets
            )
        )
    elif error is not None and not ignored:
        stop = program.step.failure_mode == "fail_fast"
        turn.record(WorkflowFailing(at=turn.at, error=error, step=ended.step, stop=stop))
    elif program.arcs:
        _unmatched(turn, ended)


def _unmatched(turn: Turn, ended: StepDone | StepFailed) -> None:
    turn.record(NextUnmatched(at=turn.at, step_run_id=ended.step_run_id, step=ended.step))
    if turn.program.net.executor.no_next_is_error:
        error = TaskError(
            kind="client_error",
            code="no_next",
            message=f'no arc of step "{ended.step}" fired, and `no_next_is_error` is set.',
        )
        turn.record(WorkflowFailing(at=turn.at, error=error, step=ended.step))


def _scope(
    turn: Turn, program: StepProgram, ended: StepDone | StepFailed, error: TaskError | None
) -> Scope:
    name = "step.failed" if error is not None else "step.done"
    if program.step.loop is not None and error is None:
        name = "loop.done"
    result = StepResult(
        value=ended.result, tasks=ended.tasks if isinstance(ended, StepDone) else {}
    )
    shown = step_view(turn.program, ended.step, result)
    return server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        ended.step,
        at=turn.at,
        seed=ended.step_run_id,
        args={},
        names=event_names(name, ended.step, ended.result, error, shown),
    )


def _firing(program: StepProgram, scope: Scope, *, failed: bool) -> list[ArcProgram]:
    chosen: list[ArcProgram] = []
    for arc in program.arcs:
        if failed and not arc.arc.on_failure:
            continue
        if arc.guard is not None and not arc.guard.holds(scope):
            continue
        chosen.append(arc)
        if program.step.router.mode == "exclusive":
            break
    return chosen


def _send(turn: Turn, ended: StepDone | StepFailed, arc: ArcProgram, scope: Scope) -> None:
    target = arc.step.render(scope, f"an arc of step {ended.step}")
    if target not in turn.program.steps:
        raise EvaluationFailed(
            f'step "{ended.step}" sends its token to "{target}", which is not a step.'
            + did_you_mean(str(target), turn.program.steps)
        )
    args = arc.args.render(scope, f"args of the arc from {ended.step} to {target}")
    if arc.patch is not None:
        values = arc.patch.render(scope, f"set of the arc from {ended.step} to {target}")
        assert isinstance(values, dict)
        turn.record(
            CtxPatched(at=turn.at, values=values, step_run_id=ended.step_run_id, step=ended.step)
        )
    delay = _delay(arc, scope)
    token_id = derive(ended.step_run_id, arc.label)
    assert isinstance(args, dict)
    turn.record(
        TokenCreated(
            at=turn.at,
            token_id=token_id,
            step=str(target),
            args=args,
            source=ended.step_run_id,
            arc=arc.label,
            ready_at=turn.at + delay if delay else None,
            priority=arc.arc.priority,
            event=_token_event(ended),
        )
    )
    if delay:
        turn.record(
            TimerSet(
                at=turn.at,
                timer_id=derive(token_id, "ready"),
                fires_at=turn.at + delay,
                purpose="token",
                token_id=token_id,
            )
        )


def _delay(arc: ArcProgram, scope: Scope) -> float:
    written: Any = arc.delay.render(scope, "delay of an arc")
    if written is None:
        return 0.0
    length = seconds(written) if isinstance(written, int | float | str) else None
    if length is None:
        raise EvaluationFailed(f"the delay of an arc is {written!r}, which is no duration.")
    return length


def _token_event(ended: StepDone | StepFailed) -> dict[str, Any]:
    """What admission at the target sees as `event`: small, the result itself is elsewhere."""
    failed = isinstance(ended, StepFailed)
    return {"name": "step.failed" if failed else "step.done", "step": ended.step}
