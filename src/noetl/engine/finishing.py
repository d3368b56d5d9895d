"""The end of an execution, and what must be undone before it."""

from __future__ import annotations

from noetl.engine.running import command_for
from noetl.engine.turn import CancelChild, Close, Issue, TellParent, Turn
from noetl.model.events import (
    ExecutionProcessed,
    FinalStatus,
    StepCancelled,
    StepScheduled,
    TokenAbsorbed,
    WorkflowFinished,
)
from noetl.model.ids import derive
from noetl.model.outcome import TaskError
from noetl.model.state import StepSummary

END = "end"


def finish_if_over(turn: Turn) -> None:
    """An execution is over exactly when it has no token, no open run, no timer, no listener."""
    state = turn.state
    if state.is_finished or state.tokens or state.runs or state.timers:
        return
    if state.failure is not None:
        if not _undo_next(turn):
            finish(turn, "FAILED", error=state.failure)
        return
    finish(turn, "COMPLETED")


def _undo_next(turn: Turn) -> bool:
    """Start the newest compensation that has not run; False when there is none left."""
    state = turn.state
    if not state.undo:
        return False
    run_id, name, undoing = state.undo[-1]
    _compensate(turn, run_id, name, undoing)
    return True


def _compensate(turn: Turn, run_id: str, name: str, undoing: str) -> None:
    state = turn.state
    is_block = undoing in turn.program.blocks
    step = name if is_block else undoing
    result = state.results.get(name)
    args = {"step": name, "result": result.value if result is not None else None}
    number = state.steps.get(step, StepSummary()).runs + 1
    new_id = derive(run_id, "compensate")
    command_id = derive(new_id, 1)
    turn.record(
        StepScheduled(
            at=turn.at,
            step_run_id=new_id,
            step=step,
            number=number,
            args=args,
            command_id=command_id,
            compensates=run_id,
        )
    )
    command = command_for(turn, state.runs[new_id], command_id, block=undoing if is_block else None)
    turn.effect(Issue(command))


def finish(turn: Turn, status: FinalStatus, error: TaskError | None = None) -> None:
    """End it, once and for all."""
    state = turn.state
    last = END if END in state.results else state.last_step
    found = state.results.get(last)
    result = found.value if found is not None and status == "COMPLETED" else None
    turn.record(WorkflowFinished(at=turn.at, status=status, result=result, error=error))
    turn.record(ExecutionProcessed(at=turn.at, status=status))
    if state.parent is not None:
        turn.effect(TellParent(state.parent, status, result, error))


def absorb_tokens(turn: Turn, reason: str) -> None:
    """No waiting token will become a run any more."""
    for token_id in list(turn.state.tokens):
        turn.record(TokenAbsorbed(at=turn.at, token_id=token_id, reason=reason))


def stop_everything(turn: Turn, reason: str) -> None:
    """Cancel every open run and every token."""
    absorb_tokens(turn, reason)
    state = turn.state
    for run in list(state.runs.values()):
        for command_id in run.commands:
            turn.effect(Close(command_id))
        for child in run.children:
            turn.effect(CancelChild(child, reason))
        turn.record(
            StepCancelled(at=turn.at, step_run_id=run.step_run_id, step=run.step, reason=reason)
        )
