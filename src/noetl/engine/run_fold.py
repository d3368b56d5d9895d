"""The fold of a step run's facts: a part of `engine.evolve`, and under the same rule."""

from __future__ import annotations

from typing import Literal

from noetl.engine import signal_fold
from noetl.engine.loop_fold import suspended
from noetl.model.events import (
    StepCancelled,
    StepDone,
    StepFailed,
    StepResumed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    StepWaiting,
)
from noetl.model.state import ExecutionState, Run, StepResult, StepSummary, Undo


def scheduled(state: ExecutionState, fact: StepScheduled) -> None:
    """There is a run; everything else about it is still to come."""
    state.arrivals += 1
    state.runs[fact.step_run_id] = Run(
        step_run_id=fact.step_run_id,
        step=fact.step,
        number=fact.number,
        args=fact.args,
        scheduled_at=fact.at,
        compensates=fact.compensates,
        block=fact.block,
        handles_failure=fact.handles_failure,
        priority=fact.priority,
        past=fact.past,
        commands={fact.command_id: 1} if fact.command_id else {},
        order=state.arrivals,
        partition=fact.partition,
    )
    if fact.command_id:
        state.holders[fact.command_id] = fact.step_run_id
    summary = state.steps.get(fact.step)
    if summary is None:
        summary = state.steps[fact.step] = StepSummary()
    summary.runs, summary.status = fact.number, "running"
    summary.started_at, summary.ended_at, summary.error = fact.at, None, None
    if fact.handles_failure:
        state.failure_handled = True
    if fact.compensates is not None:
        state.compensating = True
        state.runs[fact.step_run_id].undoes = state.undo.pop().step
        summary.undoes += 1


def started(state: ExecutionState, fact: StepStarted) -> None:
    """A worker has its first command."""
    state.runs[fact.step_run_id].started = True


def skipped(state: ExecutionState, fact: StepSkipped) -> None:
    """It was not admitted, and there is no run; or a rule ended the run so."""
    summary = state.steps.setdefault(fact.step, StepSummary(status="skipped"))
    summary.status, summary.ended_at = "skipped", fact.at
    state.warn("admission", fact.step, fact.undefined)
    if fact.step_run_id in state.runs:
        _let_go(state, fact.step_run_id)


def waited(state: ExecutionState, fact: StepWaiting | StepResumed) -> None:
    """The run, or one iteration of it, begins or ceases to wait."""
    run = state.runs[fact.step_run_id]
    match fact:
        case StepWaiting():
            if fact.listens is not None:
                run.waiting, run.listens = True, fact.listens
                run.yields = fact.yields or run.yields
                signal_fold.begin_listening(state, run)
            elif fact.iteration is None or run.loop is None:
                run.waiting, run.progress = True, fact.progress
            else:
                suspended(run.loop, fact, fact.iteration)
        case StepResumed():
            if fact.iteration is None or run.loop is None:
                run.waiting = False
            else:
                run.loop.woken.append(fact.iteration)


def done(state: ExecutionState, fact: StepDone) -> None:
    """It ended well: its result is there to be read, and perhaps to be undone."""
    run = _ended(state, fact, "done")
    if run.compensates is not None:
        state.steps[run.undoes or fact.step].undone += 1
        return
    state.results[fact.step] = StepResult(value=fact.result, tasks=fact.tasks)
    state.last_step = fact.step
    if fact.undo is not None:
        state.undo.append(
            Undo(step_run_id=fact.step_run_id, step=fact.step, by=fact.undo, result=fact.result)
        )


def failed(state: ExecutionState, fact: StepFailed) -> None:
    """It failed, perhaps with a result all the same."""
    run = _ended(state, fact, "failed")
    state.steps[fact.step].error = fact.error
    if run.compensates is not None:
        return
    state.last_step = fact.step
    if fact.result is not None:
        state.results[fact.step] = StepResult(value=fact.result)


def cancelled(state: ExecutionState, fact: StepCancelled) -> None:
    """Nobody wants it any more."""
    _ended(state, fact, "cancelled")


def _ended(
    state: ExecutionState,
    fact: StepDone | StepFailed | StepCancelled,
    status: Literal["done", "failed", "cancelled"],
) -> Run:
    summary = state.steps[fact.step]
    summary.status, summary.ended_at = status, fact.at
    return _let_go(state, fact.step_run_id)


def _let_go(state: ExecutionState, run_id: str) -> Run:
    """The run is over, and with it all that waits for it or works on it."""
    run = state.runs.pop(run_id)
    for command_id in run.commands:
        del state.holders[command_id]
    for timer_id in run.timers:
        del state.timers[timer_id]
    if run.listens is not None:
        signal_fold.stop_listening(state, run)
    return run
