"""The fold: how each fact changes the state. The only place where state is written.

Every line here must give the same state whether the fact has just been decided or is read back
years later, so nothing is computed that is not in the fact, the state, or both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from noetl.engine import run_fold, signal_fold
from noetl.engine.loop_fold import (
    chunk_closed,
    chunk_issued,
    chunk_moved,
    fold_loop,
    iteration_done,
    iteration_failed,
)
from noetl.engine.rule_fold import fold_rules
from noetl.model.events import (
    ChildFinished,
    ChildStarted,
    CommandClosed,
    CommandIssued,
    CommandLeased,
    CommandLost,
    CommandPaused,
    CommandRequeued,
    CtxPatched,
    Event,
    ExecutionBounded,
    ExecutionCancelled,
    ExecutionForked,
    ExecutionPaused,
    ExecutionProcessed,
    ExecutionQueued,
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
    TaskWaiting,
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
    Queued,
    Run,
    StepResult,
    StepSummary,
    TimerState,
    Token,
    WarnedAbout,
)

Fold = Callable[[ExecutionState, Any], None]

_folds: dict[type[Event], tuple[Fold, ...]] = {}
"""By class, what `_folds_of` found: to match takes longer than to fold."""


def evolve(state: ExecutionState, fact: Event) -> None:
    """Fold one fact into the state."""
    state.seq += 1
    try:
        folds = _folds[type(fact)]
    except KeyError:
        folds = _folds[type(fact)] = _folds_of(fact)
    for fold in folds:
        fold(state, fact)


def _folds_of(fact: Event) -> tuple[Fold, ...]:
    """What facts of this class do to the state, in order."""
    own = _fold_of(fact)
    heard = (_heard,) if isinstance(fact, Reported) else ()
    return (*heard, own) if own is not None else heard


def _fold_of(fact: Event) -> Fold | None:
    match fact:
        case TaskStarted() | TaskLogged() | TaskWaiting() | RetryStarted():
            return None
        case IterationStarted() | NextSelected() | CommandLeased():
            return None
        case ExecutionProcessed():
            return None  # the end of each run and of the execution are facts of their own
        case TaskDone():
            return _called
        case NextUnmatched() | PolicyUnmatched():
            return _unmatched
        case CtxPatched() | VarsSet():
            return _written
        case TokenCreated():
            return _token_created
        case TokenConsumed() | TokenAbsorbed():
            return _token_gone
        case StepScheduled():
            return run_fold.scheduled
        case StepStarted():
            return run_fold.started
        case StepSkipped():
            return run_fold.skipped
        case StepWaiting() | StepResumed():
            return run_fold.waited
        case StepDone():
            return run_fold.done
        case StepFailed():
            return run_fold.failed
        case StepCancelled():
            return run_fold.cancelled
        case LoopStarted() | FrameClaimed() | ResultsKept() | LoopDone():
            return fold_loop
        case IterationDone():
            return iteration_done
        case IterationFailed():
            return iteration_failed
        case CommandPaused():
            return _paused
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
        case (
            ExecutionRequested()
            | RequestEvaluated()
            | ExecutionBounded()
            | ExecutionQueued()
            | WorkflowStarted()
        ):
            return _beginning
        case ExecutionForked():
            return _forked
        case ExecutionPaused() | ExecutionResumed():
            return _held
        case ExecutionCancelled():
            return _cancelled
        case WorkflowFailing() | WorkflowFinished():
            return _end
        case _:
            _: RuleEvent = fact  # All others are matched, says mypy.
            return fold_rules


def _heard(state: ExecutionState, fact: Reported) -> None:
    """Remember which report this was. A command that gets somewhere is not a poison one."""
    if not fact.report:
        return
    run = state.runs[state.holders[fact.command_id]]
    run.reported[fact.command_id] = fact.report
    if fact.settled:
        run.commands[fact.command_id] = 1
        run.alone.pop(fact.command_id, None)


def _unmatched(state: ExecutionState, fact: NextUnmatched | PolicyUnmatched) -> None:
    about: WarnedAbout = "arcs" if isinstance(fact, NextUnmatched) else "policy"
    state.warn(about, fact.step, fact.undefined)


def _beginning(
    state: ExecutionState,
    fact: ExecutionRequested
    | RequestEvaluated
    | ExecutionBounded
    | ExecutionQueued
    | WorkflowStarted,
) -> None:
    match fact:
        case ExecutionRequested():
            state.path, state.digest, state.version = fact.path, fact.digest, fact.version
            state.parent, state.payload = fact.parent, fact.payload
            state.seal, state.source, state.labels = fact.seal, fact.source, fact.labels
            state.requested_at, state.actor = fact.at, fact.actor
        case RequestEvaluated():
            state.workload = fact.workload
            state.entry = fact.entry or ""
            state.ctx, state.vars = dict(fact.ctx), dict(fact.vars)
            for step, value in fact.reused.items():
                state.results[step] = StepResult(value=value)
                state.steps[step] = StepSummary(status="done")
        case ExecutionBounded():
            state.slots, state.priority = fact.slots, fact.priority
            state.replaces = fact.replaces
        case ExecutionQueued():
            state.queued = Queued(since=fact.at, is_fork=fact.is_fork, ended=fact.ended)
        case WorkflowStarted():
            state.queued = None
            state.status = "RUNNING"
            state.started_at = fact.at


TAKEN_OVER = (
    *("ctx", "vars", "runs", "timers", "results", "steps", "arc_keys", "arrivals", "last_step"),
    *("signals", "heard", "undo", "failure", "failed_step", "failure_handled", "compensating"),
    "cancelling",
)
"""Fields that a fork takes over; its tokens are placed by facts of their own."""
_state = msgspec.json.Decoder(ExecutionState).decode


def _forked(state: ExecutionState, fact: ExecutionForked) -> None:
    taken = _state(msgspec.json.encode(fact.state))
    for name in TAKEN_OVER:
        setattr(state, name, getattr(taken, name))


def _held(state: ExecutionState, fact: ExecutionPaused | ExecutionResumed) -> None:
    if isinstance(fact, ExecutionPaused):
        state.status = "PAUSED"
        state.acted(fact.at, "playbook.paused", fact.actor, fact.reason)
    else:
        state.status = "RUNNING"
        state.acted(fact.at, "playbook.resumed", fact.actor)


def _cancelled(state: ExecutionState, fact: ExecutionCancelled) -> None:
    state.cancelling = True
    if state.status == "PAUSED":
        state.status = "RUNNING"
    state.acted(fact.at, "playbook.cancelled", fact.actor, fact.reason)


def _end(state: ExecutionState, fact: WorkflowFailing | WorkflowFinished) -> None:
    match fact:
        case WorkflowFailing():
            state.failure = state.failure or fact.error
            state.failed_step = state.failed_step or fact.step
        case WorkflowFinished():
            state.queued = None
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


def _token_created(state: ExecutionState, fact: TokenCreated) -> None:
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
        partition=fact.partition,
    )
    if fact.dedupe:
        state.arc_keys.setdefault(fact.arc, {})[fact.dedupe] = None


def _token_gone(state: ExecutionState, fact: TokenConsumed | TokenAbsorbed) -> None:
    token = state.tokens.pop(fact.token_id)
    if token.timer is not None:
        del state.timers[token.timer]


def _called(state: ExecutionState, fact: TaskDone) -> None:
    state.steps[fact.step].attempts += 1
    if fact.iteration is None:
        state.runs[fact.step_run_id].progress = fact.progress


def _written(state: ExecutionState, fact: CtxPatched | VarsSet) -> None:
    match fact:
        case CtxPatched():
            for path, value in fact.values.items():
                put(state.ctx, path, value)
        case VarsSet():
            state.vars.update(fact.values)
            for name in fact.removed:
                state.vars.pop(name, None)
            state.acted(fact.at, "vars.set", fact.actor, ", ".join([*fact.values, *fact.removed]))


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
            if fact.alone:
                run.alone[fact.command_id] = fact.alone
            if run.loop is not None:
                chunk_moved(run.loop, fact)


def _paused(state: ExecutionState, fact: CommandPaused) -> None:
    run = state.runs[fact.step_run_id]
    if fact.held in run.commands:
        run.paused[fact.held] = None


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
    run.alone.pop(command_id, None)
    run.reported.pop(command_id, None)
    run.paused.pop(command_id, None)
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
    if isinstance(fact, ChildStarted):
        state.children += 1
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


CHILD_TIMEOUT = "child_timeout"
"""Of a child that its caller's `spec.timeout` has stopped."""


def child_outcome(fact: ChildFinished) -> Outcome:
    """What a child's end is to the task that called it."""
    if fact.status == "COMPLETED":
        return Outcome(status="ok", result=fact.result)
    cause = fact.error or TaskError(kind="cancelled", message=f"it was {fact.status}")
    error = TaskError(
        kind=cause.kind,
        code=cause.code,
        message=f"child execution {fact.child} failed: {cause.message}",
        # The caller's own limit may be reached again or not; what broke a child breaks it again.
        retryable=cause.code == CHILD_TIMEOUT,
        # Where the child's code broke, or what it was answered, with the id of the child itself.
        details={
            **(cause.details if isinstance(cause.details, dict) else {}),
            "execution_id": fact.child,
        },
    )
    return Outcome(status="error", error=error)
