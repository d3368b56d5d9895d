"""The fold: how each fact changes the state. The only place where state is written.

Every line here must give the same state whether the fact has just been decided or is read back
years later, so nothing is computed that is not in the fact, the state, or both.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from noetl.model.events import (
    ChildFinished,
    ChildStarted,
    CommandClosed,
    CommandIssued,
    CommandLeased,
    CommandLost,
    CommandRequeued,
    CtxPatched,
    Event,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionProcessed,
    ExecutionRequested,
    ExecutionResumed,
    IterationDone,
    IterationFailed,
    IterationStarted,
    LoopDone,
    LoopStarted,
    NextSelected,
    NextUnmatched,
    PolicyUnmatched,
    Progress,
    RequestEvaluated,
    RetryStarted,
    StepCancelled,
    StepDone,
    StepFailed,
    StepResumed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    StepWaiting,
    TaskDone,
    TaskStarted,
    TimerFired,
    TimerSet,
    TokenAbsorbed,
    TokenConsumed,
    TokenCreated,
    VarsSet,
    WorkflowFailing,
    WorkflowFinished,
    WorkflowStarted,
)
from noetl.model.net import Values
from noetl.model.outcome import Outcome, TaskError
from noetl.model.state import (
    ExecutionState,
    LoopState,
    Run,
    StepResult,
    StepSummary,
    TimerState,
    Token,
)


def evolve(state: ExecutionState, fact: Event) -> None:
    """Fold one fact into the state."""
    state.seq += 1
    match fact:
        case TaskStarted() | RetryStarted() | PolicyUnmatched() | IterationStarted():
            pass
        case NextSelected() | NextUnmatched() | CommandLeased() | ExecutionProcessed():
            pass
        case TaskDone() | CtxPatched() | VarsSet():
            _call(state, fact)
        case TokenCreated() | TokenConsumed() | TokenAbsorbed():
            _token(state, fact)
        case StepScheduled() | StepStarted() | StepSkipped() | StepWaiting() | StepResumed():
            _run(state, fact)
        case StepDone() | StepFailed() | StepCancelled():
            _run_ended(state, fact)
        case LoopStarted() | IterationDone() | IterationFailed() | LoopDone():
            _loop(state, fact)
        case CommandIssued() | CommandClosed() | CommandLost() | CommandRequeued():
            _command(state, fact)
        case TimerSet() | TimerFired():
            _timer(state, fact)
        case ChildStarted() | ChildFinished():
            _child(state, fact)
        case ExecutionRequested() | RequestEvaluated() | WorkflowStarted():
            _beginning(state, fact)
        case ExecutionPaused() | ExecutionResumed() | ExecutionCancelled():
            _held(state, fact)
        case WorkflowFailing() | WorkflowFinished():
            _end(state, fact)
        case _:
            assert_never(fact)


def _beginning(
    state: ExecutionState, fact: ExecutionRequested | RequestEvaluated | WorkflowStarted
) -> None:
    match fact:
        case ExecutionRequested():
            state.path, state.digest, state.version = fact.path, fact.digest, fact.version
            state.parent, state.payload = fact.parent, fact.payload
            state.requested_at = fact.at
        case RequestEvaluated():
            state.workload = fact.workload
            state.entry = fact.entry or ""
            for step, value in fact.reused.items():
                state.results[step] = StepResult(value=value)
                state.steps[step] = StepSummary(status="done")
        case WorkflowStarted():
            state.status = "RUNNING"
            state.started_at = fact.at


def _held(
    state: ExecutionState, fact: ExecutionPaused | ExecutionResumed | ExecutionCancelled
) -> None:
    match fact:
        case ExecutionPaused():
            state.status = "PAUSED"
        case ExecutionResumed():
            state.status = "RUNNING"
        case ExecutionCancelled():
            pass  # the end of each run and of the execution follow as facts of their own


def _end(state: ExecutionState, fact: WorkflowFailing | WorkflowFinished) -> None:
    match fact:
        case WorkflowFailing():
            state.failure = state.failure or fact.error
            state.failed_step = state.failed_step or fact.step
        case WorkflowFinished():
            state.status = fact.status
            state.ended_at = fact.at
            state.result = fact.result
            state.tokens.clear()
            state.runs.clear()
            state.timers.clear()


def _token(state: ExecutionState, fact: TokenCreated | TokenConsumed | TokenAbsorbed) -> None:
    match fact:
        case TokenCreated():
            state.arrivals += 1
            state.tokens[fact.token_id] = Token(
                token_id=fact.token_id,
                step=fact.step,
                args=fact.args,
                arc=fact.arc,
                ready_at=fact.ready_at,
                priority=fact.priority,
                event=fact.event,
                order=state.arrivals,
            )
        case TokenConsumed():
            token = state.tokens.pop(fact.token_id)
            state.seen[token.step] = [token.arc]
        case TokenAbsorbed():
            token = state.tokens.pop(fact.token_id)
            state.seen.setdefault(token.step, []).append(token.arc)
            _drop_timers(state, token_id=fact.token_id)


def _run(
    state: ExecutionState,
    fact: StepScheduled | StepStarted | StepSkipped | StepWaiting | StepResumed,
) -> None:
    match fact:
        case StepScheduled():
            state.arrivals += 1
            state.runs[fact.step_run_id] = Run(
                step_run_id=fact.step_run_id,
                step=fact.step,
                number=fact.number,
                args=fact.args,
                scheduled_at=fact.at,
                compensates=fact.compensates,
                commands={fact.command_id: 1} if fact.command_id else {},
                order=state.arrivals,
            )
            summary = state.steps.setdefault(fact.step, StepSummary())
            summary.runs, summary.status = fact.number, "running"
            summary.started_at, summary.ended_at, summary.error = fact.at, None, None
            if fact.compensates is not None:
                state.compensating = True
                state.undo.pop()
        case StepStarted():
            state.runs[fact.step_run_id].started = True
        case StepSkipped():
            summary = state.steps.setdefault(fact.step, StepSummary(status="skipped"))
            summary.status, summary.ended_at = "skipped", fact.at
        case StepWaiting():
            run = state.runs[fact.step_run_id]
            if fact.iteration is None or run.loop is None:
                run.waiting, run.progress = True, fact.progress
            else:
                run.loop.suspended[fact.iteration] = fact.progress
        case StepResumed():
            run = state.runs[fact.step_run_id]
            if fact.iteration is None:
                run.waiting = False


def _run_ended(state: ExecutionState, fact: StepDone | StepFailed | StepCancelled) -> None:
    run = state.runs.pop(fact.step_run_id)
    _drop_timers(state, step_run_id=fact.step_run_id)
    summary = state.steps[fact.step]
    summary.ended_at = fact.at
    match fact:
        case StepDone():
            summary.status = "done"
            if run.compensates is None:
                state.results[fact.step] = StepResult(value=fact.result, tasks=fact.tasks)
                state.last_step = fact.step
                if fact.undo is not None:
                    state.undo.append((fact.step_run_id, fact.step, fact.undo))
        case StepFailed():
            summary.status, summary.error = "failed", fact.error
            state.last_step = fact.step
            if fact.result is not None:
                state.results[fact.step] = StepResult(value=fact.result)
        case StepCancelled():
            summary.status = "cancelled"


def _call(state: ExecutionState, fact: TaskDone | CtxPatched | VarsSet) -> None:
    match fact:
        case TaskDone():
            state.steps[fact.step].attempts += 1
            if fact.iteration is None:
                state.runs[fact.step_run_id].progress = fact.progress
        case CtxPatched():
            for path, value in fact.values.items():
                put(state.ctx, path, value)
        case VarsSet():
            state.vars.update(fact.values)


def put(values: Values, path: str, value: object) -> None:
    """Write at a dotted path. Containers on the way are copied: others may hold the old ones."""
    head, dot, rest = path.partition(".")
    if not dot:
        values[head] = value
        return
    below = values.get(head)
    values[head] = dict(below) if isinstance(below, dict) else {}
    put(values[head], rest, value)


def _loop(
    state: ExecutionState, fact: LoopStarted | IterationDone | IterationFailed | LoopDone
) -> None:
    run = state.runs[fact.step_run_id]
    summary = state.steps[fact.step]
    if isinstance(fact, LoopStarted):
        run.loop = LoopState(total=fact.total, items=fact.items)
        summary.loop_total, summary.loop_success, summary.loop_failed = fact.total, 0, 0
        return
    loop = run.loop
    assert loop is not None
    match fact:
        case IterationDone():
            loop.success += 1
            loop.results[fact.iteration] = fact.result
            summary.loop_success = loop.success
        case IterationFailed():
            loop.failed += 1
            loop.errors[fact.iteration] = fact.error
            summary.loop_failed = loop.failed
        case LoopDone():
            loop.stopping = True
            return
    loop.suspended.pop(fact.iteration, None)
    if fact.ctx:
        loop.patches[fact.iteration] = fact.ctx


def _command(
    state: ExecutionState, fact: CommandIssued | CommandClosed | CommandLost | CommandRequeued
) -> None:
    run = state.runs.get(fact.step_run_id)
    if run is None:
        return  # the run has ended; its commands went with it
    match fact:
        case CommandIssued():
            run.commands[fact.command_id] = 1
            if run.loop is not None and fact.start is not None and fact.stop is not None:
                run.loop.chunks[fact.command_id] = (fact.start, fact.stop)
                run.loop.given = max(run.loop.given, fact.stop)
        case CommandClosed():
            run.commands.pop(fact.command_id, None)
            if run.loop is not None:
                run.loop.chunks.pop(fact.command_id, None)
        case CommandLost():
            pass
        case CommandRequeued():
            run.commands.pop(fact.lost, None)
            run.commands[fact.command_id] = fact.deliveries
            if run.loop is not None and fact.lost in run.loop.chunks:
                run.loop.chunks[fact.command_id] = run.loop.chunks.pop(fact.lost)


def _drop_timers(
    state: ExecutionState, *, step_run_id: str | None = None, token_id: str | None = None
) -> None:
    """What a timer was set for is gone, and so is the timer."""
    for timer in list(state.timers.values()):
        if (step_run_id is not None and timer.step_run_id == step_run_id) or (
            token_id is not None and timer.token_id == token_id
        ):
            del state.timers[timer.timer_id]


def _timer(state: ExecutionState, fact: TimerSet | TimerFired) -> None:
    match fact:
        case TimerSet():
            state.timers[fact.timer_id] = TimerState(
                timer_id=fact.timer_id,
                fires_at=fact.fires_at,
                purpose=fact.purpose,
                step_run_id=fact.step_run_id,
                token_id=fact.token_id,
                iteration=fact.iteration,
            )
        case TimerFired():
            timer = state.timers.pop(fact.timer_id)
            if timer.token_id is not None and timer.token_id in state.tokens:
                state.tokens[timer.token_id].ready_at = None


def _child(state: ExecutionState, fact: ChildStarted | ChildFinished) -> None:
    run = state.runs.get(fact.step_run_id)
    if run is None:
        return
    match fact:
        case ChildStarted():
            run.children[fact.child] = fact.iteration
        case ChildFinished():
            run.children.pop(fact.child, None)
            _hand_over(run, fact.iteration, child_outcome(fact))


def _hand_over(run: Run, iteration: int | None, outcome: Outcome) -> None:
    """The outcome the pipeline waited for: whoever goes on with it finds it in the progress."""
    if iteration is not None and run.loop is not None:
        waited = run.loop.suspended.get(iteration) or Progress()
        run.loop.suspended[iteration] = msgspec.structs.replace(waited, pending=outcome)
    else:
        run.progress = msgspec.structs.replace(run.progress or Progress(), pending=outcome)


def child_outcome(fact: ChildFinished) -> Outcome:
    """What a child's end is to the task that called it."""
    if fact.status == "COMPLETED":
        return Outcome(status="ok", result=fact.result)
    cause = fact.error or TaskError(kind="cancelled", message=f"it was {fact.status}")
    error = TaskError(
        kind=cause.kind,
        code=cause.code,
        message=f"child execution {fact.child} failed: {cause.message}",
        details={"execution_id": fact.child},
    )
    return Outcome(status="error", error=error)
