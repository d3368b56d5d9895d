"""The fold: how each fact changes the state. The only place where state is written.

Every line here must give the same state whether the fact has just been decided or is read back
years later, so nothing is computed that is not in the fact, the state, or both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from noetl.engine import signal_fold
from noetl.engine.loop_fold import (
    chunk_closed,
    chunk_issued,
    chunk_moved,
    fold_iteration,
    fold_loop,
    suspended,
)
from noetl.engine.rule_fold import fold_rules
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
    FrameClaimed,
    IterationDone,
    IterationFailed,
    IterationStarted,
    LoopDone,
    LoopStarted,
    NextSelected,
    NextUnmatched,
    PolicyUnmatched,
    Progress,
    Reported,
    RequestEvaluated,
    ResultsKept,
    RetryStarted,
    RuleEvent,
    StepCancelled,
    StepDone,
    StepFailed,
    StepResumed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    StepWaiting,
    TaskDone,
    TaskLogged,
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
from noetl.model.signals import ApprovalReceived, MessageReceived, SignalConsidered
from noetl.model.state import (
    ExecutionState,
    Run,
    StepResult,
    StepSummary,
    TimerState,
    Token,
    Undo,
)

Fold = Callable[[ExecutionState, Any], None]

_folds: dict[type[Event], Fold] = {}
"""By class, what `_fold_of` found: to match takes longer than to fold."""


def evolve(state: ExecutionState, fact: Event) -> None:
    """Fold one fact into the state."""
    state.seq += 1
    if isinstance(fact, Reported) and fact.report:
        _heard(state, fact)
    fold = _folds.get(type(fact))
    if fold is None:
        fold = _folds[type(fact)] = _fold_of(fact)
    fold(state, fact)


def _fold_of(fact: Event) -> Fold:
    match fact:
        case TaskStarted() | TaskLogged() | RetryStarted() | PolicyUnmatched():
            return _nothing
        case IterationStarted() | NextSelected() | NextUnmatched() | CommandLeased():
            return _nothing
        case ExecutionProcessed():
            return _nothing
        case TaskDone() | CtxPatched() | VarsSet():
            return _call
        case TokenCreated() | TokenConsumed() | TokenAbsorbed():
            return _token
        case StepScheduled() | StepStarted() | StepSkipped() | StepWaiting() | StepResumed():
            return _run
        case StepDone() | StepFailed() | StepCancelled():
            return _run_ended
        case LoopStarted() | FrameClaimed() | ResultsKept() | LoopDone():
            return fold_loop
        case IterationDone() | IterationFailed():
            return fold_iteration
        case CommandIssued() | CommandClosed() | CommandLost() | CommandRequeued():
            return _command
        case TimerSet() | TimerFired():
            return _timer
        case ChildStarted() | ChildFinished():
            return _child
        case MessageReceived() | ApprovalReceived():
            return signal_fold.hear
        case SignalConsidered():
            return signal_fold.considered
        case ExecutionRequested() | RequestEvaluated() | WorkflowStarted():
            return _beginning
        case ExecutionPaused() | ExecutionResumed() | ExecutionCancelled():
            return _held
        case WorkflowFailing() | WorkflowFinished():
            return _end
        case _:
            _: RuleEvent = fact  # All others are matched, says mypy.
            return fold_rules


def _nothing(state: ExecutionState, fact: Event) -> None:
    """It is part of the story and changes nothing."""


def _heard(state: ExecutionState, fact: Reported) -> None:
    """Remember which report this was. A command that gets somewhere is not a poison one."""
    run = state.runs[state.holders[fact.command_id]]
    run.reported[fact.command_id] = fact.report
    if fact.settled:
        run.commands[fact.command_id] = 1


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
            state.ctx, state.vars = dict(fact.ctx), dict(fact.vars)
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
            state.failure = state.failure or fact.error
            state.tokens.clear()
            state.runs.clear()
            state.timers.clear()
            state.holders.clear()
            state.signals.clear()
            state.heard.clear()


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
                past=fact.past,
                order=state.arrivals,
            )
        case TokenConsumed() | TokenAbsorbed():
            token = state.tokens.pop(fact.token_id)
            if token.timer is not None:
                del state.timers[token.timer]


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
                block=fact.block,
                priority=fact.priority,
                past=fact.past,
                commands={fact.command_id: 1} if fact.command_id else {},
                order=state.arrivals,
            )
            if fact.command_id:
                state.holders[fact.command_id] = fact.step_run_id
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
            if fact.step_run_id in state.runs:
                _let_go(state, fact.step_run_id)
        case StepWaiting():
            run = state.runs[fact.step_run_id]
            if fact.listens is not None:
                run.waiting, run.listens = True, fact.listens
                run.yields = fact.yields or run.yields
                signal_fold.begin_listening(state, run)
            elif fact.iteration is None or run.loop is None:
                run.waiting, run.progress = True, fact.progress
            else:
                suspended(run.loop, fact, fact.iteration)
        case StepResumed():
            run = state.runs[fact.step_run_id]
            if fact.iteration is None or run.loop is None:
                run.waiting = False
            else:
                run.loop.woken.append(fact.iteration)


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


def _run_ended(state: ExecutionState, fact: StepDone | StepFailed | StepCancelled) -> None:
    run = _let_go(state, fact.step_run_id)
    summary = state.steps[fact.step]
    summary.ended_at = fact.at
    match fact:
        case StepDone():
            summary.status = "done"
            if run.compensates is None:
                state.results[fact.step] = StepResult(value=fact.result, tasks=fact.tasks)
                state.last_step = fact.step
                if fact.undo is not None:
                    state.undo.append(
                        Undo(
                            step_run_id=fact.step_run_id,
                            step=fact.step,
                            by=fact.undo,
                            result=fact.result,
                        )
                    )
        case StepFailed():
            summary.status, summary.error = "failed", fact.error
            if run.compensates is None:
                state.last_step = fact.step
            if fact.result is not None and run.compensates is None:
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
            for name in fact.removed:
                state.vars.pop(name, None)


def put(values: Values, path: str, value: object) -> None:
    """Write at a dotted path. Containers on the way are copied: others may hold the old ones."""
    head, dot, rest = path.partition(".")
    if not dot:
        values[head] = value
        return
    below = values.get(head)
    values[head] = dict(below) if isinstance(below, dict) else {}
    put(values[head], rest, value)


def _command(
    state: ExecutionState, fact: CommandIssued | CommandClosed | CommandLost | CommandRequeued
) -> None:
    if isinstance(fact, CommandLost):
        _lost(state, fact)
        return
    run = state.runs.get(fact.step_run_id)
    if run is None:
        return  # the run has ended; its commands went with it
    match fact:
        case CommandIssued():
            _open(state, run, fact.command_id, 1)
            if run.loop is not None and run.following is None:
                chunk_issued(run.loop, fact)
        case CommandClosed():
            _close(state, run, fact.command_id)
            if run.loop is not None:
                chunk_closed(run.loop, fact)
        case CommandRequeued():
            _close(state, run, fact.lost)
            _open(state, run, fact.command_id, fact.deliveries)
            if run.loop is not None:
                chunk_moved(run.loop, fact)


def _lost(state: ExecutionState, fact: CommandLost) -> None:
    """One refusal on record is enough, however often its worker repeats itself."""
    if fact.refused:
        state.lost.pop(fact.command_id, None)
    else:
        run = state.runs.get(fact.step_run_id)
        number = run.reported.get(fact.command_id, 0) if run is not None else 0
        state.lost[fact.command_id] = (fact.step_run_id, number)


def _open(state: ExecutionState, run: Run, command_id: str, deliveries: int) -> None:
    run.commands[command_id] = deliveries
    state.holders[command_id] = run.step_run_id


def _close(state: ExecutionState, run: Run, command_id: str) -> None:
    run.commands.pop(command_id, None)
    run.reported.pop(command_id, None)
    state.holders.pop(command_id, None)


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
                name=fact.name,
            )
            if fact.step_run_id is not None:
                state.runs[fact.step_run_id].timers[fact.timer_id] = None
            if fact.token_id is not None:
                state.tokens[fact.token_id].timer = fact.timer_id
        case TimerFired():
            timer = state.timers.pop(fact.timer_id)
            if timer.step_run_id is not None:
                del state.runs[timer.step_run_id].timers[fact.timer_id]
            if timer.token_id is not None:
                token = state.tokens[timer.token_id]
                token.ready_at = token.timer = None
            if timer.purpose == "listener":
                signal_fold.hear_timer(state, timer)


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
