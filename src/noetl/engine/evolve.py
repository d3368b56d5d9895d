"""The fold: how each fact changes the state. The only place where state is written.

Every line here must give the same state whether the fact has just been decided or is read back
years later, so nothing is computed that is not in the fact, the state, or both.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from noetl.model import events, refs
from noetl.model.chains import Progress
from noetl.model.events import Event
from noetl.model.facts import ReportedFact, ReportedStepFact, StepFact
from noetl.model.net import Values
from noetl.model.outcome import LOOP_ERRORS_MAX, Outcome, TaskError, loop_error
from noetl.model.signals import TIMER, TIMER_KEYS
from noetl.model.state import (
    ExecutionState,
    LoopState,
    Partitions,
    Queued,
    Run,
    Signal,
    StepResult,
    StepSummary,
    TimerState,
    Token,
    Undo,
    Used,
)

Fold = Callable[[ExecutionState, Any], None]


def evolve(state: ExecutionState, fact: Event) -> None:
    """Fold one fact into the state."""
    state.seq += 1
    fold = FOLDS[type(fact)]
    if fold is not None:
        fold(state, fact)


Followed = events.StepDone | events.StepFailed | events.WorkflowFailing
"""Facts from which others follow at once. Nothing follows from most facts."""
_FOLLOWED = frozenset(get_args(Followed))


class Recorder(msgspec.Struct, eq=False, kw_only=True):
    """A state, and the facts that were decided and folded into it."""

    state: ExecutionState
    events: list[Event] = []
    pending: list[Followed] = []
    """Facts whose consequences are still to follow, oldest first."""

    def record(self, fact: Event) -> None:
        """Fold a fact, add it to `events`, and to `pending` if others follow from it."""
        kind, state = type(fact), self.state
        # As `evolve` does, without a call: this happens several times in every step.
        state.seq += 1
        fold = FOLDS[kind]
        if fold is not None:
            fold(state, fact)
        self.events.append(fact)
        if kind in _FOLLOWED:
            self.pending.append(fact)  # type: ignore[arg-type]


# --- The execution as a whole -------------------------------------------------------------------


def _requested(state: ExecutionState, fact: events.ExecutionRequested) -> None:
    state.path, state.digest, state.version = fact.path, fact.digest, fact.version
    state.parent, state.payload = fact.parent, fact.payload
    state.seal, state.source, state.labels = fact.seal, fact.source, fact.labels
    state.requested_at, state.actor = fact.at, fact.actor


def _request_evaluated(state: ExecutionState, fact: events.RequestEvaluated) -> None:
    state.workload = fact.workload
    state.entry = fact.entry or ""
    state.ctx, state.vars = dict(fact.ctx), dict(fact.vars)
    for step, value in fact.reused.items():
        state.results[step] = StepResult(value=value)
        state.steps[step] = StepSummary(status="done")


def _bounded(state: ExecutionState, fact: events.ExecutionBounded) -> None:
    state.slots, state.priority, state.replaces = fact.slots, fact.priority, fact.replaces


def _queued(state: ExecutionState, fact: events.ExecutionQueued) -> None:
    state.queued = Queued(since=fact.at, is_fork=fact.is_fork, ended=fact.ended)


def _started(state: ExecutionState, fact: events.WorkflowStarted) -> None:
    state.queued = None
    state.status = "RUNNING"
    state.started_at = fact.at


TAKEN_OVER = (
    *("ctx", "vars", "runs", "timers", "results", "steps", "arc_keys", "arrivals", "last_step"),
    *("signals", "heard", "undo", "failure", "failed_step", "failure_handled", "compensating"),
    "cancelling",
)
"""Fields that a fork takes over; its tokens are placed by facts of their own."""


def _forked(state: ExecutionState, fact: events.ExecutionForked) -> None:
    taken = msgspec.json.decode(msgspec.json.encode(fact.state), type=ExecutionState)
    for name in TAKEN_OVER:
        setattr(state, name, getattr(taken, name))


def _paused(state: ExecutionState, fact: events.ExecutionPaused) -> None:
    state.status = "PAUSED"
    state.acted(fact.at, "playbook.paused", fact.actor, fact.reason)


def _resumed(state: ExecutionState, fact: events.ExecutionResumed) -> None:
    state.status = "RUNNING"
    state.acted(fact.at, "playbook.resumed", fact.actor)


def _cancelled(state: ExecutionState, fact: events.ExecutionCancelled) -> None:
    state.cancelling = True
    if state.status == "PAUSED":
        state.status = "RUNNING"
    state.acted(fact.at, "playbook.cancelled", fact.actor, fact.reason, fact.key)


def _failing(state: ExecutionState, fact: events.WorkflowFailing) -> None:
    state.failure = state.failure or fact.error
    state.failed_step = state.failed_step or fact.step


def _finished(state: ExecutionState, fact: events.WorkflowFinished) -> None:
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


# --- Tokens -------------------------------------------------------------------------------------


def _token_created(state: ExecutionState, fact: events.TokenCreated) -> None:
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


def _token_gone(state: ExecutionState, fact: events.TokenConsumed | events.TokenAbsorbed) -> None:
    token = state.tokens.pop(fact.token_id)
    if token.timer is not None:
        del state.timers[token.timer]


# --- Step runs ----------------------------------------------------------------------------------


def _step_scheduled(state: ExecutionState, fact: events.StepScheduled) -> None:
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


def _step_started(state: ExecutionState, fact: events.StepStarted) -> None:
    """A worker has its first command."""
    state.runs[fact.step_run_id].started = True


def _next_selected(state: ExecutionState, fact: events.NextSelected) -> None:
    """The tokens of the arcs have facts of their own."""
    if fact.undefined:
        state.warn("guard", fact.step, fact.undefined)


def _next_unmatched(state: ExecutionState, fact: events.NextUnmatched) -> None:
    state.steps[fact.step].unmatched += 1
    state.warn("arcs", fact.step, fact.undefined)


def _step_skipped(state: ExecutionState, fact: events.StepSkipped) -> None:
    """It was not admitted, and there is no run; or a rule ended the run so."""
    summary = state.steps.setdefault(fact.step, StepSummary(status="skipped"))
    summary.status, summary.ended_at = "skipped", fact.at
    state.warn("admission", fact.step, fact.undefined)
    if fact.step_run_id in state.runs:
        _remove_run(state, fact.step_run_id)


def _step_waiting(state: ExecutionState, fact: events.StepWaiting) -> None:
    """The run, or one iteration of it, begins to wait."""
    run = state.runs[fact.step_run_id]
    if fact.listens is not None:
        run.waiting, run.listens = True, fact.listens
        run.yields = fact.yields or run.yields
        _begin_listening(state, run)
    elif fact.iteration is None or run.loop is None:
        run.waiting, run.progress = True, fact.progress
    else:
        _suspended(run.loop, fact, fact.iteration)


def _step_resumed(state: ExecutionState, fact: events.StepResumed) -> None:
    run = state.runs[fact.step_run_id]
    if fact.iteration is None or run.loop is None:
        run.waiting = False
    else:
        run.loop.woken.append(fact.iteration)


def _step_done(state: ExecutionState, fact: events.StepDone) -> None:
    """It ended well: its result is there to be read, and perhaps to be undone."""
    run = _run_ended(state, fact, "done")
    if run.compensates is not None:
        state.steps[run.undoes or fact.step].undone += 1
        return
    state.results[fact.step] = StepResult(value=fact.result, tasks=fact.tasks)
    state.last_step = fact.step
    if fact.undo is not None:
        state.undo.append(
            Undo(step_run_id=fact.step_run_id, step=fact.step, by=fact.undo, result=fact.result)
        )


def _step_failed(state: ExecutionState, fact: events.StepFailed) -> None:
    """It failed, perhaps with a result all the same."""
    run = _run_ended(state, fact, "failed")
    state.steps[fact.step].error = fact.error
    if run.compensates is not None:
        return
    state.last_step = fact.step
    if fact.result is not None:
        state.results[fact.step] = StepResult(value=fact.result)


def _step_cancelled(state: ExecutionState, fact: events.StepCancelled) -> None:
    """The run was stopped: it ends without a result."""
    _run_ended(state, fact, "cancelled")


def _run_ended(
    state: ExecutionState,
    fact: events.StepDone | events.StepFailed | events.StepCancelled,
    status: Literal["done", "failed", "cancelled"],
) -> Run:
    summary = state.steps[fact.step]
    summary.status, summary.ended_at = status, fact.at
    return _remove_run(state, fact.step_run_id)


def _remove_run(state: ExecutionState, run_id: str) -> Run:
    """The run is over, and with it all that waits for it or works on it."""
    run = state.runs.pop(run_id)
    for command_id in run.commands:
        del state.holders[command_id]
    for timer_id in run.timers:
        del state.timers[timer_id]
    if run.listens is not None:
        _stop_listening(state, run)
    return run


def _task_done(state: ExecutionState, fact: events.TaskDone) -> None:
    state.steps[fact.step].attempts += 1
    # Calls of hooks and workbook entries say nothing of where the run stands: they are a part of
    # the call that it stands before.
    if fact.iteration is None and fact.progress is not None:
        state.runs[fact.step_run_id].progress = fact.progress


def _quota_used(state: ExecutionState, fact: events.QuotaUsed) -> None:
    run = state.runs[fact.step_run_id]
    run.used = _added(run.used, fact)
    if not (run.handles_failure or run.compensates):
        state.used = _added(state.used, fact)


def _added(used: Used, fact: events.QuotaUsed) -> Used:
    return Used(
        calls=used.calls + fact.calls,
        bytes=used.bytes + fact.bytes,
        seconds=used.seconds + fact.seconds,
    )


def _ctx_patched(state: ExecutionState, fact: events.CtxPatched) -> None:
    for path, value in fact.values.items():
        put(state.ctx, path, value)


def _vars_set(state: ExecutionState, fact: events.VarsSet) -> None:
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


# --- Commands: those of a run that has ended went with it ----------------------------------------


def _command_issued(state: ExecutionState, fact: events.CommandIssued) -> None:
    run = state.runs.get(fact.step_run_id)
    if run is not None:
        _open(state, run, fact.command_id, 1)
        loop = run.open_loop
        if loop is not None:
            _chunk_issued(loop, fact)


def _command_closed(state: ExecutionState, fact: events.CommandClosed) -> None:
    run = state.runs.get(fact.step_run_id)
    if run is not None:
        _close(state, run, fact.command_id)
        if run.loop is not None:
            _chunk_closed(run.loop, fact)


def _command_requeued(state: ExecutionState, fact: events.CommandRequeued) -> None:
    run = state.runs.get(fact.step_run_id)
    if run is None:
        return
    _close(state, run, fact.lost)
    _open(state, run, fact.command_id, fact.deliveries)
    if fact.alone:
        run.alone[fact.command_id] = fact.alone
    if run.loop is not None:
        _chunk_moved(run.loop, fact)


def _command_paused(state: ExecutionState, fact: events.CommandPaused) -> None:
    run = state.runs[fact.step_run_id]
    if fact.held in run.commands:
        run.paused[fact.held] = None


def _command_lost(state: ExecutionState, fact: events.CommandLost) -> None:
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


# --- Timers and children ------------------------------------------------------------------------


def _timer_set(state: ExecutionState, fact: events.TimerSet) -> None:
    fields = {name: getattr(fact, name) for name in TimerState.__struct_fields__}
    state.timers[fact.timer_id] = TimerState(**fields)
    if fact.step_run_id is not None:
        state.runs[fact.step_run_id].timers[fact.timer_id] = None
    if fact.token_id is not None:
        state.tokens[fact.token_id].timer = fact.timer_id


def _timer_fired(state: ExecutionState, fact: events.TimerFired) -> None:
    timer = state.timers.pop(fact.timer_id)
    if timer.step_run_id is not None:
        del state.runs[timer.step_run_id].timers[fact.timer_id]
    if timer.token_id is not None:
        token = state.tokens[timer.token_id]
        token.ready_at = token.timer = None
    if timer.purpose == "listener":
        _timer_heard(state, timer)


def _child_started(state: ExecutionState, fact: events.ChildStarted) -> None:
    state.children += 1
    run = state.runs.get(fact.step_run_id)
    if run is not None:
        run.children[fact.child] = fact.iteration


def _child_finished(state: ExecutionState, fact: events.ChildFinished) -> None:
    run = state.runs.get(fact.step_run_id)
    if run is not None:
        run.children.pop(fact.child, None)
        _put_pending(run, fact.iteration, child_outcome(fact))
        for one in fact.warnings:
            origin = one.execution_id or fact.child
            state.keep_warning(msgspec.structs.replace(one, execution_id=origin, caller=run.step))


def _put_pending(run: Run, iteration: int | None, outcome: Outcome) -> None:
    """The outcome that the pipeline waited for: the next worker finds it in the progress."""
    if iteration is not None and run.loop is not None:
        waited = run.loop.suspended.get(iteration) or Progress()
        run.loop.suspended[iteration] = msgspec.structs.replace(waited, pending=outcome)
    else:
        run.progress = msgspec.structs.replace(run.progress or Progress(), pending=outcome)


CHILD_TIMEOUT = "child_timeout"
"""Of a child that its caller's `spec.timeout` has stopped."""


NOT_STARTED = {"started": False}
"""The details of a child that was refused before it began: there is no such execution."""


def never_began(fact: events.ChildFinished) -> bool:
    """Whether the child was refused before it began."""
    return fact.error is not None and fact.error.details == NOT_STARTED


def child_outcome(fact: events.ChildFinished) -> Outcome:
    """What a child's end is to the task that called it."""
    if fact.status == "COMPLETED":
        return Outcome(status="ok", result=fact.result)
    cause = fact.error or TaskError(kind="cancelled", message=f"it was {fact.status}")
    if never_began(fact):
        return Outcome(status="error", error=msgspec.structs.replace(cause, details=None))
    message = cause.message
    # However deep it is, one execution failed by itself: those between only passed it on.
    if not CHILD_FAILED.match(message):
        message = f"child execution {fact.child} failed: {message}"
    error = TaskError(
        kind=cause.kind,
        code=cause.code,
        message=message,
        # The caller's own limit may be reached again or not; what broke a child breaks it again.
        retryable=cause.code == CHILD_TIMEOUT,
        # Where the code of the child broke, or the response it got, with the id of the child.
        details={
            **(cause.details if isinstance(cause.details, dict) else {}),
            "execution_id": fact.child,
        },
    )
    return Outcome(status="error", error=error)


# --- Loops --------------------------------------------------------------------------------------
# Each end of an iteration costs the same however many there are. Results gather in the state only
# until a segment of them is put away.

REASONS_MAX = 20
REASON_MAX = 200
CHILD_FAILED = re.compile(r"\bchild execution \d+ failed\b")
DRY = -1
"""Stands for the first iteration of a frame that found nothing left."""


def _loop_started(state: ExecutionState, fact: events.LoopStarted) -> None:
    state.runs[fact.step_run_id].loop = LoopState(
        total=fact.total,
        items=fact.items,
        begin=fact.begin,
        by=fact.by,
        in_flight=fact.in_flight,
        lanes=fact.lanes,
        size=fact.size,
        segment=fact.segment,
        max_pending=fact.max_pending,
        parts=Partitions() if fact.partitioned else None,
    )
    summary = state.steps[fact.step]
    summary.loop_total, summary.loop_success, summary.loop_failed = fact.total, 0, 0
    summary.loop_errors = {}


def _loop_done(state: ExecutionState, fact: events.LoopDone) -> None:
    _loop_of(state, fact).stopping = True


def _loop_of(state: ExecutionState, fact: StepFact | ReportedStepFact) -> LoopState:
    loop = state.runs[fact.step_run_id].loop
    assert loop is not None
    return loop


def _iteration_done(state: ExecutionState, fact: events.IterationDone) -> None:
    loop = state.runs[fact.step_run_id].loop
    assert loop is not None  # `_loop_of`, without a call: this happens in every iteration
    loop.success += 1
    state.steps[fact.step].loop_success = loop.success
    _iteration_ended(loop, fact, fact.result)


def _iteration_failed(state: ExecutionState, fact: events.IterationFailed) -> None:
    loop = _loop_of(state, fact)
    loop.failed += 1
    state.steps[fact.step].loop_failed = loop.failed
    _iteration_ended(loop, fact, None)
    insort(loop.errors, loop_error(fact.iteration, fact.error), key=lambda one: one["index"])
    del loop.errors[LOOP_ERRORS_MAX:]
    _count_reason(state.steps[fact.step], fact.error)
    if loop.first_error is None or fact.iteration < loop.first_error[0]:
        loop.first_error = (fact.iteration, fact.error)


def _count_reason(summary: StepSummary, error: TaskError) -> None:
    """Failed iterations by reason, for people: the first line of each message."""
    reason = _reason(error.message)
    if reason in summary.loop_errors or len(summary.loop_errors) < REASONS_MAX:
        summary.loop_errors[reason] = summary.loop_errors.get(reason, 0) + 1


def discount_reason(summary: StepSummary, message: str) -> None:
    """An iteration that failed for this reason has not been."""
    reason = _reason(message)
    if reason in summary.loop_errors:
        summary.loop_errors[reason] -= 1
        if not summary.loop_errors[reason]:
            del summary.loop_errors[reason]


def _reason(message: str) -> str:
    """Without the ids of child executions: each iteration has its own."""
    reason = CHILD_FAILED.sub("child execution failed", message)
    return reason.strip().partition("\n")[0][:REASON_MAX]


def _iteration_ended(
    loop: LoopState, fact: events.IterationDone | events.IterationFailed, result: Any
) -> None:
    iteration = fact.iteration
    loop.results[iteration] = result
    loop.weight += refs.weight(result)
    number = iteration // loop.segment
    loop.filled[number] = loop.filled.get(number, 0) + 1
    if iteration in loop.suspended:
        del loop.suspended[iteration]
    elif loop.claimed:
        _no_longer_claimed(loop, iteration)
    if loop.parts is not None:
        _next_of_key(loop, loop.parts, iteration)
    if fact.ctx:
        loop.patches[iteration] = fact.ctx


# An iteration of a partitioned loop is ready, or handed out, or follows one that has not ended.


def _iterations_keyed(state: ExecutionState, fact: events.IterationsKeyed) -> None:
    loop = _loop_of(state, fact)
    parts = loop.parts
    if parts is None or fact.start != parts.keyed:
        return  # known: it was found twice
    for iteration, key in enumerate(fact.keys, fact.start):
        before = parts.tails.get(key)
        if before is None or loop.has_ended(before):
            parts.ready[iteration] = None
        else:
            parts.followers[before] = iteration
        parts.tails[key] = iteration
    parts.keyed += len(fact.keys)
    # All of them together cost no more than the keys.
    if len(parts.tails) > 2 * (parts.keyed - loop.ended) + len(fact.keys):
        parts.tails = {key: one for key, one in parts.tails.items() if not loop.has_ended(one)}


def _next_of_key(loop: LoopState, parts: Partitions, iteration: int) -> None:
    """It has ended: the next with its key may run, if its chain does not go on with that."""
    command_id = parts.handed.pop(iteration, None)
    following = parts.followers.pop(iteration, None)
    if following is not None and following not in parts.handed:
        parts.ready[following] = None
    goes_on = following is not None and parts.handed.get(following) == command_id
    if command_id in parts.left and not goes_on:
        parts.left[command_id] -= 1
        width = loop.widths[command_id]
        loop.widths[command_id] = min(width, parts.left[command_id])


def release(loop: LoopState, parts: Partitions, chains: tuple[tuple[int, ...], ...]) -> None:
    """No command has these chains any more. Iterations that wait for no other are ready again."""
    for chain in chains:
        for iteration in chain:
            parts.handed.pop(iteration, None)
        rest = next((one for one in chain if not loop.has_ended(one)), None)
        if rest is not None and rest not in loop.suspended:
            parts.ready[rest] = None
    parts.ready = dict.fromkeys(sorted(parts.ready))


def _frame_claimed(state: ExecutionState, fact: events.FrameClaimed) -> None:
    loop = _loop_of(state, fact)
    loop.frames[fact.command_id] = loop.given if fact.iterations else DRY
    loop.given += fact.iterations
    if loop.max_pending is not None:
        loop.claimed[fact.command_id] = fact.iterations
    state.steps[fact.step].loop_total = loop.given


def _no_longer_claimed(loop: LoopState, iteration: int) -> None:
    """An element of an open frame has ended, or waits: elements are numbered frame by frame."""
    firsts = {command: first for command, first in loop.frames.items() if first is not None}
    ahead = [command for command in loop.claimed if firsts.get(command, DRY) <= iteration]
    if ahead:
        command = max(ahead, key=lambda one: firsts.get(one, DRY))
        loop.claimed[command] = max(0, loop.claimed[command] - 1)


def _results_kept(state: ExecutionState, fact: events.ResultsKept) -> None:
    loop = _loop_of(state, fact)
    loop.segments[fact.segment] = fact.checksum
    loop.kept += fact.size
    loop.filled.pop(fact.segment, None)
    first = fact.segment * loop.segment
    for iteration in range(first, first + loop.segment):
        if iteration in loop.results:
            loop.weight -= refs.weight(loop.results.pop(iteration))


def _suspended(loop: LoopState, fact: events.StepWaiting, iteration: int) -> None:
    """A waiting iteration is still in flight: its chunk runs one less beside it."""
    if loop.claimed and iteration not in loop.suspended:
        _no_longer_claimed(loop, iteration)
    loop.suspended[iteration] = fact.progress
    loop.suspends = True
    if fact.command_id in loop.widths:
        loop.widths[fact.command_id] = max(0, loop.widths[fact.command_id] - 1)


def _chunk_issued(loop: LoopState, fact: events.CommandIssued) -> None:
    if fact.iteration is not None:
        loop.resuming[fact.command_id] = fact.iteration
        loop.woken.remove(fact.iteration)
        return
    parts = loop.parts
    if parts is not None:
        if fact.keys:
            parts.keying = fact.command_id
        else:
            loop.widths[fact.command_id] = fact.width
            _hand_out(parts, fact.command_id, fact.chains)
        return
    if fact.start is None or fact.stop is None:
        loop.frames[fact.command_id] = None
        return
    loop.chunks[fact.command_id] = (fact.start, fact.stop)
    loop.widths[fact.command_id] = fact.width
    if fact.start >= loop.given:
        loop.given = fact.stop
        return
    # A part of what came back.
    index = next(i for i, (start, _) in enumerate(loop.returned) if start == fact.start)
    _, stop = loop.returned.pop(index)
    if fact.stop < stop:
        loop.returned.insert(index, (fact.stop, stop))


def _hand_out(parts: Partitions, command_id: str, chains: tuple[tuple[int, ...], ...]) -> None:
    parts.chains[command_id] = chains
    parts.left[command_id] = len(chains)
    for chain in chains:
        parts.ready.pop(chain[0], None)
        parts.handed.update(dict.fromkeys(chain, command_id))


def _chunk_moved(loop: LoopState, fact: events.CommandRequeued) -> None:
    """The work of a lost command goes on under a new one; a frame will claim anew."""
    if fact.lost in loop.frames:
        loop.claimed.pop(fact.lost, None)
        del loop.frames[fact.lost]
        loop.frames[fact.command_id] = None
    for held in (loop.chunks, loop.widths, loop.resuming):
        _rename(held, fact.lost, fact.command_id)
    parts = loop.parts
    if parts is not None and fact.lost == parts.keying:
        parts.keying = fact.command_id
    elif parts is not None and fact.lost in parts.chains:
        chains = parts.chains.pop(fact.lost)
        del parts.left[fact.lost]
        release(loop, parts, chains)
        _hand_out(parts, fact.command_id, fact.chains)
        loop.widths[fact.command_id] = min(loop.widths[fact.command_id], len(fact.chains))
    if fact.start is not None and fact.stop is not None:
        _, stop = loop.chunks[fact.command_id]
        loop.chunks[fact.command_id] = (fact.start, fact.stop)
        width = loop.widths[fact.command_id]
        loop.widths[fact.command_id] = min(width, fact.stop - fact.start)
        loop.returned.append((fact.stop, stop))
        loop.returned.sort()


def _rename(held: dict[str, Any], old: str, new: str) -> None:
    if old in held:
        held[new] = held.pop(old)


def _chunk_closed(loop: LoopState, fact: events.CommandClosed) -> None:
    loop.claimed.pop(fact.command_id, None)
    if loop.frames.pop(fact.command_id, None) == DRY:
        loop.dry += 1
    loop.resuming.pop(fact.command_id, None)
    loop.widths.pop(fact.command_id, None)
    parts = loop.parts
    if parts is not None:
        if parts.keying == fact.command_id:
            parts.keying = ""
        parts.left.pop(fact.command_id, None)
        release(loop, parts, parts.chains.pop(fact.command_id, ()))
    chunk = loop.chunks.pop(fact.command_id, None)
    if chunk is not None and fact.rest is not None:
        loop.returned.append((fact.rest, chunk[1]))
        loop.returned.sort()


# --- Signals ------------------------------------------------------------------------------------
# A signal is offered once to every step that waits when it comes, and if none of them takes it,
# once to every step that begins to wait later, until one does. A step that is at work just then is
# offered it when it waits again.

HEARD_MAX = 1000
"""Ids that are remembered: one that comes again after so many others counts as new."""
KEPT_MAX = 256
"""Signals that are kept for steps that may wait later; further ones that no step takes are lost."""


def _signal_received(state: ExecutionState, fact: events.SignalReceived) -> None:
    """A signal came: it is offered to every step that waits."""
    action = str(fact.__struct_config__.tag)
    state.acted(fact.at, action, fact.actor, fact.name if fact.name != action else "")
    state.heard[fact.signal_id] = None
    if len(state.heard) > HEARD_MAX:
        del state.heard[next(iter(state.heard))]
    state.signals[fact.signal_id] = Signal(
        signal_id=fact.signal_id,
        name=fact.name,
        data=fact.data,
        step=fact.step,
        due=[
            run.step_run_id
            for run in state.runs.values()
            if run.listens is not None and fact.step in ("", run.step)
        ],
        roles=fact.roles if isinstance(fact, events.ApprovalReceived) else (),
    )


def _timer_heard(state: ExecutionState, timer: TimerState) -> None:
    """A timer of a waiting step fired: it is offered to that step alone."""
    if timer.step_run_id is None:
        return
    state.signals[timer.timer_id] = Signal(
        signal_id=timer.timer_id,
        name=TIMER,
        data=dict(zip(TIMER_KEYS, (timer.name, timer.name, timer.fires_at), strict=True)),
        taken=True,
        due=[timer.step_run_id],
    )


def _begin_listening(state: ExecutionState, run: Run) -> None:
    """A step begins to wait: signals that came before and that no step took are offered to it."""
    for signal in state.signals.values():
        if not signal.taken and signal.step in ("", run.step):
            signal.due.append(run.step_run_id)


def _signal_considered(state: ExecutionState, fact: events.SignalConsidered) -> None:
    """The signal was offered to one of the steps that wait."""
    signal = state.signals[fact.signal_id]
    signal.taken = signal.taken or fact.taken
    _strike(state, signal, fact.step_run_id)


def _stop_listening(state: ExecutionState, run: Run) -> None:
    """The run has ended: nothing is for it any more."""
    for signal in list(state.signals.values()):
        _strike(state, signal, run.step_run_id)


def _strike(state: ExecutionState, signal: Signal, run_id: str) -> None:
    if run_id in signal.due:
        signal.due.remove(run_id)
    if not signal.due and (signal.taken or len(state.signals) > KEPT_MAX):
        del state.signals[signal.signal_id]


# --- Event rules --------------------------------------------------------------------------------


def _case_evaluated(state: ExecutionState, fact: events.CaseEvaluated) -> None:
    if fact.chain is None:
        return
    # A worker follows it; what worked on the run before has been let go.
    run = state.runs[fact.step_run_id]
    progress = run.progress or Progress()
    run.progress = msgspec.structs.replace(progress, chain=fact.chain, pending=None)
    run.waiting = False
    run.children = {}


def _case_processed(state: ExecutionState, fact: events.CaseProcessed) -> None:
    run = state.runs[fact.step_run_id]
    if run.progress is not None:
        run.progress = msgspec.structs.replace(run.progress, chain=None)
    # A step that waits for the world goes on waiting.
    run.waiting = run.listens is not None


def _step_patched(state: ExecutionState, fact: events.StepPatched) -> None:
    run = state.runs[fact.step_run_id]
    run.local = {**run.local, **fact.local}
    if run.progress is not None and fact.local:
        local = {**run.progress.local, **fact.local}
        run.progress = msgspec.structs.replace(run.progress, local=local)
    run.yields = fact.yields or run.yields


def _next_evaluated(state: ExecutionState, fact: events.NextEvaluated) -> None:
    state.runs[fact.step_run_id].next = fact


def _chain_restarted(
    state: ExecutionState, fact: events.ChainRestarted | events.SinkProcessed
) -> None:
    if fact.iteration is None:
        state.runs[fact.step_run_id].progress = fact.progress


def _sink_processed(state: ExecutionState, fact: events.SinkProcessed) -> None:
    state.steps[fact.step].attempts += 1
    _chain_restarted(state, fact)


# --- The table ----------------------------------------------------------------------------------


def _note_report(state: ExecutionState, fact: ReportedFact) -> None:
    """Remember which report this was. A command that gets somewhere is not a poison one."""
    run = state.runs[state.holders[fact.command_id]]
    run.reported[fact.command_id] = fact.report
    if fact.settled:
        run.commands[fact.command_id] = 1
        run.alone.pop(fact.command_id, None)


def _with_report(own: Fold | None) -> Fold:
    """The fold of a fact that workers report: first notes the number of the report, if any."""

    def fold(state: ExecutionState, fact: Any) -> None:
        if fact.report:
            _note_report(state, fact)
        if own is not None:
            own(state, fact)

    return fold


FOLDS: dict[type[Event], Fold | None] = {
    events.ExecutionRequested: _requested,
    events.RequestEvaluated: _request_evaluated,
    events.ExecutionForked: _forked,
    events.ExecutionBounded: _bounded,
    events.ExecutionQueued: _queued,
    events.WorkflowStarted: _started,
    events.WorkflowFailing: _failing,
    events.ExecutionPaused: _paused,
    events.ExecutionResumed: _resumed,
    events.ExecutionCancelled: _cancelled,
    events.WorkflowFinished: _finished,
    events.ExecutionProcessed: None,  # the end of each run and of the execution have facts
    events.QuotaUsed: _quota_used,
    events.TokenCreated: _token_created,
    events.TokenConsumed: _token_gone,
    events.TokenAbsorbed: _token_gone,
    events.StepScheduled: _step_scheduled,
    events.StepStarted: _step_started,
    events.StepSkipped: _step_skipped,
    events.StepWaiting: _step_waiting,
    events.StepResumed: _step_resumed,
    events.StepDone: _step_done,
    events.StepFailed: _step_failed,
    events.StepCancelled: _step_cancelled,
    events.TaskStarted: None,
    events.TaskLogged: None,
    events.TaskWaiting: None,
    events.TaskDone: _task_done,
    events.RetryStarted: None,
    events.PolicyUnmatched: lambda state, fact: state.warn("policy", fact.step, fact.undefined),
    events.CtxPatched: _ctx_patched,
    events.VarsSet: _vars_set,
    events.LoopStarted: _loop_started,
    events.FrameClaimed: _frame_claimed,
    events.IterationsKeyed: _iterations_keyed,
    events.IterationStarted: None,
    events.IterationDone: _iteration_done,
    events.IterationFailed: _iteration_failed,
    events.ResultsKept: _results_kept,
    events.LoopDone: _loop_done,
    events.NextSelected: _next_selected,
    events.NextUnmatched: _next_unmatched,
    events.CommandIssued: _command_issued,
    events.CommandLeased: None,
    events.CommandClosed: _command_closed,
    events.CommandLost: _command_lost,
    events.CommandPaused: _command_paused,
    events.CommandRequeued: _command_requeued,
    events.TimerSet: _timer_set,
    events.TimerFired: _timer_fired,
    events.ChildStarted: _child_started,
    events.ChildFinished: _child_finished,
    events.MessageReceived: _signal_received,
    events.ApprovalReceived: _signal_received,
    events.SignalConsidered: _signal_considered,
    events.CaseEvaluated: _case_evaluated,
    events.CaseUnmatched: lambda state, fact: state.warn("rules", fact.step, fact.undefined),
    events.CaseProcessed: _case_processed,
    events.BranchSuppressed: None,
    events.StepPatched: _step_patched,
    events.NextEvaluated: _next_evaluated,
    events.RetryProcessed: None,
    events.ChainRestarted: _chain_restarted,
    events.PollStarted: None,
    events.PollIteration: None,
    events.PollFinished: None,
    events.SinkStarted: None,
    events.SinkProcessed: _sink_processed,
}
"""What each fact does to the state. None: it is only recorded; no decision depends on it."""
FOLDS |= {kind: _with_report(own) for kind, own in FOLDS.items() if issubclass(kind, ReportedFact)}
