"""The end of an execution, and what must be undone before it."""

from __future__ import annotations

from typing import Literal

from noetl.engine.entering import start_handling, start_undoing
from noetl.engine.turn import TellParent, Turn
from noetl.model.events import (
    ExecutionProcessed,
    FinalStatus,
    StepCancelled,
    TokenAbsorbed,
    WorkflowFinished,
)
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState

END = "end"


def finish_if_over(turn: Turn) -> bool:
    """An execution is over exactly when it has no token, no open run, no timer, no listener.

    Says whether it was: then it has ended, begins to undo, or does what its playbook says for a
    failure.
    """
    state = turn.state
    if state.runs or state.tokens or state.timers or state.queued is not None:
        return False
    if state.failure is None:
        finish(turn, "COMPLETED")
        return True
    undoes = bool(state.undo) and _end_of(state) in turn.program.net.executor.compensate_on
    handler = None if state.failure_handled or state.cancelling else turn.program.on_failure
    if not undoes and handler is None:
        finish(turn, "CANCELLED" if state.cancelling else "FAILED", error=state.failure)
    elif state.status == "PAUSED":
        return False
    elif undoes:
        start_undoing(turn, state.undo[-1])
    elif handler is not None:
        start_handling(turn, handler, state.failure)
    return True


def _end_of(state: ExecutionState) -> Literal["failure", "cancel"]:
    return "cancel" if state.cancelling else "failure"


def finish(turn: Turn, status: FinalStatus, error: TaskError | None = None) -> None:
    """End it, once and for all."""
    state = turn.state
    last = END if END in state.results else state.last_step
    found = state.results.get(last)
    result = found.value if found is not None and status == "COMPLETED" else None
    turn.record(WorkflowFinished(at=turn.at, status=status, result=result, error=error))
    turn.record(ExecutionProcessed(at=turn.at, status=status))
    if state.parent is not None:
        told = TellParent(state.parent, status, result, error)
        turn.effect(_of_its_step(told, state) if status == "COMPLETED" else told)


def _of_its_step(told: TellParent, state: ExecutionState) -> TellParent:
    """With the result of the one step that the parent wants to hear of, if it names one."""
    step = told.parent.return_step
    if step is None:
        return told
    if found := state.results.get(step):
        return TellParent(told.parent, told.status, found.value, None)
    missing = TaskError(
        kind="not_found",
        code="no_return_step",
        message=f'it has no result of "{step}", its `return_step`: no such step has ended in it.',
    )
    return TellParent(told.parent, "FAILED", None, missing)


def absorb_tokens(turn: Turn, reason: str) -> None:
    """No waiting token will become a run any more."""
    for token_id in list(turn.state.tokens):
        turn.record(TokenAbsorbed(at=turn.at, token_id=token_id, reason=reason))


def stop_everything(turn: Turn, reason: str) -> None:
    """Cancel every open run and every token."""
    absorb_tokens(turn, reason)
    state = turn.state
    for run in list(state.runs.values()):
        turn.close(run, reason)
        turn.record(
            StepCancelled(at=turn.at, step_run_id=run.step_run_id, step=run.step, reason=reason)
        )
