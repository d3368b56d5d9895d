"""The entrance of the engine: `advance` takes an input and decides everything that follows from it.

    start     → request evaluated → token at the entry
    token     → join, admission   → run scheduled → command (or loop, or done at once)
    report    → facts             → run ended     → arcs → tokens …
    nothing left that could act   → the execution is over

Each fact is folded into the state when it is decided, so its consequences see the new state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from msgspec import convert, structs, to_builtins

from noetl.engine import concurrency, forks, loops, signals
from noetl.engine.entry import fire_ready, start_handling, start_undoing
from noetl.engine.evolve import CHILD_TIMEOUT, evolve
from noetl.engine.program import Program
from noetl.engine.reports import (
    absorb_report,
    close_command,
    refuse_report,
    run_of,
)
from noetl.engine.routing import route
from noetl.engine.runs import end_run, fail_run, issue
from noetl.engine.scope import NO_BODIES, fetched_value
from noetl.engine.turn import (
    NO_CONSEQUENCES,
    CancelChild,
    Close,
    Decision,
    Issue,
    TellParent,
    Turn,
)
from noetl.errors import EvaluationFailed, Finished
from noetl.model.events import (
    Actor,
    ChildFinished,
    CommandLost,
    CommandRequeued,
    ExecutionBounded,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionProcessed,
    ExecutionQueued,
    ExecutionResumed,
    FinalStatus,
    IterationFailed,
    RequestEvaluated,
    StepCancelled,
    StepDone,
    StepFailed,
    StepResumed,
    StepStarted,
    TimerFired,
    TokenAbsorbed,
    TokenCreated,
    VarsSet,
    WorkflowFailing,
    WorkflowFinished,
    WorkflowStarted,
)
from noetl.model.ids import derive
from noetl.model.inputs import (
    Admitted,
    Cancelled,
    ChildEnded,
    Input,
    Lapsed,
    Leased,
    LoopEnded,
    Paused,
    Refused,
    Reported,
    Resumed,
    Signalled,
    Start,
    TimerDue,
    VarsChanged,
)
from noetl.model.outcome import TaskError, error_from
from noetl.model.state import TERMINAL, ExecutionState, Run, TimerState
from noetl.templates import LostView

Ended = tuple[tuple[StepDone | StepFailed, Run], ...]
DELIVERIES_MAX = 20
"""Work that was handed out so often, and lost each time, is given up."""
ALONE_MAX = 2
"""So is work whose workers died so often while they ran nothing else: it kills them."""
HALVE_AFTER = 3
"""A chunk that was handed out so often is halved each time, until one iteration is left, which is
the one that kills its workers."""


def advance(
    program: Program,
    state: ExecutionState,
    given: Input,
    bodies: Mapping[str, Any] = NO_BODIES,
) -> Decision:
    """Decide what follows from an input, and move the state along.

    `bodies` are the large results that templates may read on the way, by the key of their
    reference; a `LostView` stands for one that cannot be read.

    Nothing follows for an execution that has ended. Raises SignalRefused, NotAllowed, or Finished
    for a signal to an execution that has ended, before anything has changed. No other input is
    refused.
    """
    if type(given) is Leased:
        return _lease(state, given)
    if state.status in TERMINAL:
        if type(given) is Signalled:
            raise Finished(f"the execution has ended ({state.status}) and accepts no more events.")
        return NO_CONSEQUENCES
    turn = Turn(
        state=state,
        program=program,
        execution_id=given.execution_id,
        at=given.at,
        bodies=bodies,
    )
    _absorb(turn, given)
    _follow_up(turn)
    if Close in map(type, turn.effects):
        _drop_unused_commands(turn)
    return Decision(tuple(turn.events), tuple(turn.effects))


def _drop_unused_commands(turn: Turn) -> None:
    """Leave out commands that this turn both issued and closed: no worker needs to see them."""
    closed = {one.command_id for one in turn.effects if isinstance(one, Close)}
    issued = {one.command.command_id for one in turn.effects if isinstance(one, Issue)}
    if unused := closed & issued:
        turn.effects = [
            one
            for one in turn.effects
            if not (isinstance(one, Issue) and one.command.command_id in unused)
            and not (isinstance(one, Close) and one.command_id in unused)
        ]


def _absorb(turn: Turn, given: Input) -> None:
    match given:
        case Reported():
            absorb_report(turn, given.report)
        case TimerDue(timer_id=timer_id):
            timer = turn.state.timers.get(timer_id)
            if timer is not None:
                turn.record(TimerFired(at=turn.at, timer_id=timer_id))
                _on_timer(turn, timer)
        case ChildEnded(fact=fact):
            run = turn.state.runs.get(fact.step_run_id)
            if run is not None and fact.child in run.children:
                turn.record(fact)
                _wake(turn, run, fact.iteration)
        case LoopEnded(step_run_id=step_run_id):
            run = turn.state.runs.get(step_run_id)
            if run is not None and run.loop is not None:
                loops.conclude(turn, run, run.loop)
        case Start():
            _start(turn, given)
        case Admitted():
            _admit(turn)
        case Lapsed():
            _lapse(turn, given)
        case Refused(report=report):
            refuse_report(turn, report)
        case Signalled(signal=signal):
            signals.absorb_signal(turn, signal)
        case Cancelled():
            _cancel(turn, given)
        case Paused(reason=reason, actor=actor):
            if turn.state.status == "RUNNING":
                turn.record(ExecutionPaused(at=turn.at, reason=reason, actor=actor))
        case Resumed(actor=actor):
            _resume(turn, actor)
        case VarsChanged(values=values, removed=removed, actor=actor):
            turn.record(VarsSet(at=turn.at, values=values, removed=removed, actor=actor))
        case Leased():
            raise AssertionError("a lease has no consequences and takes no turn")
        case _:
            assert_never(given)


def _follow_up(turn: Turn) -> None:
    """Decide what follows from the facts so far, and from that, until nothing more follows."""
    state, pending = turn.state, turn.pending
    while True:
        while pending:
            fact = pending.pop(0)
            if isinstance(fact, WorkflowFailing):
                stop = stop_everything if fact.stop else absorb_tokens
                stop(turn, "another step failed")
            elif state.failure is None and not state.compensating:
                # Nothing new is started while an execution fails.
                route(turn, fact)
        if state.status in TERMINAL:
            return
        if (state.tokens or state.signals) and _start_next(turn):
            continue
        if not finish_if_over(turn):
            return


def _start_next(turn: Turn) -> bool:
    """Offer a signal, or else start runs for waiting tokens. Returns whether anything happened."""
    state = turn.state
    if state.status == "PAUSED" or state.queued is not None:
        return False  # tokens and signals wait until it is resumed, or may start
    if state.signals and signals.deliver(turn):
        return True
    return bool(state.tokens) and state.failure is None and fire_ready(turn)


# --- What each input does ----------------------------------------------------------------------


def _lease(state: ExecutionState, given: Leased) -> Decision:
    """Record that a worker has begun the run. Nothing follows from that, so no turn is needed."""
    run = state.runs.get(given.step_run_id)
    if run is None or run.started:
        return NO_CONSEQUENCES
    started = StepStarted(
        at=given.at, step_run_id=given.step_run_id, step=run.step, worker=given.worker
    )
    evolve(state, started)
    return Decision((started,), ())


def _start(turn: Turn, given: Start) -> None:
    if turn.state.status != "PENDING" or turn.state.queued is not None:
        return
    seed = given.seed
    turn.record(given.request)
    begins = (seed.entry or None) if seed is not None else turn.program.net.entry
    turn.record(RequestEvaluated(at=turn.at, workload=given.workload, entry=begins))
    if seed is not None:
        forks.record(turn, seed)
    refused = given.refused
    if refused is None and turn.program.is_bounded:
        try:
            slots = concurrency.slots_of(turn)
        except EvaluationFailed as error:
            slots, refused = {}, error_from(error)
        if slots and not _may_start(turn, given, slots):
            return
    _begin_execution(turn, seed.ended if seed is not None else None, refused)


def _begin_execution(turn: Turn, ended: Ended | None, refused: TaskError | None = None) -> None:
    """Let it run: from the entry, or, as a fork, from where the other execution was (`ended`)."""
    turn.record(WorkflowStarted(at=turn.at))
    if refused is not None:
        turn.record(WorkflowFailing(at=turn.at, error=refused))
    elif ended is not None:
        _continue_fork(turn, ended)
    else:
        first = turn.program.net.entry
        event = {"name": "workflow.started", "step": ""}
        token_id = derive(turn.execution_id, "entry")
        turn.record(TokenCreated(at=turn.at, token_id=token_id, step=first, event=event))


def _continue_fork(turn: Turn, ended: Ended) -> None:
    """Continue the open runs of the other execution, and route those that had just ended."""
    for fact, run in ended:
        turn.ended[run.step_run_id] = run
        turn.pending.append(fact)
    for run in list(turn.state.runs.values()):
        if (loop := run.open_loop) is not None:
            loops.go_on(turn, run, loop)
        elif not run.waiting:
            issue(turn, run)


def _may_start(turn: Turn, given: Start, slots: dict[str, int]) -> bool:
    """Whether it starts now; if not, record what happens instead. It starts unless the store has
    said that a limit has no room (`given.full`).
    """
    full = tuple(name for name in given.full if name in slots)
    answer = concurrency.on_limit(turn.program, full) if full else ""
    seed = given.seed
    if seed is not None and seed.state.timers and answer == "queue":
        answer = "fail"  # Its timers run, and would wake steps before it may start.
    if answer in ("", "queue", "cancel_running"):
        turn.record(
            ExecutionBounded(
                at=turn.at,
                slots=slots,
                priority=turn.program.net.executor.priority,
                replaces=answer == "cancel_running",
            )
        )
    match answer:
        case "":
            return True
        case "fail":
            turn.record(WorkflowStarted(at=turn.at))
            turn.record(WorkflowFailing(at=turn.at, error=concurrency.no_room(full)))
        case "cancel_new":
            error = concurrency.no_room(full)
            turn.record(ExecutionCancelled(at=turn.at, reason=error.message))
            cancelled = TaskError(kind="cancelled", code=error.code, message=error.message)
            finish(turn, "CANCELLED", error=cancelled)
        case _:
            ended = {"runs": to_builtins(seed.ended)} if seed is not None and seed.ended else {}
            turn.record(
                ExecutionQueued(at=turn.at, full=full, is_fork=seed is not None, ended=ended)
            )
    return False


def _admit(turn: Turn) -> None:
    queued = turn.state.queued
    if queued is not None:
        ended = convert(queued.ended.get("runs", ()), Ended) if queued.is_fork else None
        _begin_execution(turn, ended)


def _lapse(turn: Turn, given: Lapsed) -> None:
    command_id = given.command_id
    run = run_of(turn.state, command_id)
    turn.closing_command = command_id
    if run is None:
        return
    turn.record(
        CommandLost(
            at=turn.at,
            command_id=command_id,
            step_run_id=run.step_run_id,
            worker=given.worker,
            reason="its worker was stopped" if given.given_back else "the lease lapsed",
        )
    )
    if turn.state.status == "PAUSED":
        _keep_until_resumed(turn, run, command_id)
        return
    if run.loop is not None and run.loop.widths.get(command_id) == 0:
        # Every iteration that it had begun waits; the others are handed out when there is room.
        close_command(turn, run, command_id)
        loops.hand_out(turn, run, run.loop)
        return
    _requeue(turn, run, given)


def _requeue(turn: Turn, run: Run, given: Lapsed) -> None:
    """Continue the work under a new command, or half of it if it was lost often; or give it up."""
    command_id = given.command_id
    deliveries = run.commands[command_id] + (not given.given_back)
    died_alone = run.alone.get(command_id, 0) + (given.alone and not given.given_back)
    loop = run.open_loop
    part = loops.Part()
    if loop is not None:
        halve = deliveries > HALVE_AFTER or died_alone >= ALONE_MAX
        part = loops.part_again(loop, command_id, halve=halve)
    if not part.is_half and (died_alone >= ALONE_MAX or deliveries > DELIVERIES_MAX):
        _give_up(turn, run, command_id, died_alone, deliveries - 1)
        return
    again = derive(command_id, deliveries)
    turn.record(
        CommandRequeued(
            at=turn.at,
            command_id=again,
            lost=command_id,
            step_run_id=run.step_run_id,
            deliveries=min(deliveries, HALVE_AFTER) if part.is_half else deliveries,
            alone=min(died_alone, ALONE_MAX - 1) if part.is_half else died_alone,
            start=part.start,
            stop=part.stop,
            chains=part.chains,
        )
    )
    if loop is not None:
        loops.issue_part(turn, run, loop, again)
        loops.hand_out(turn, run, loop)
    else:
        issue(turn, run)


def _keep_until_resumed(turn: Turn, run: Run, command_id: str) -> None:
    """Close the lost command. Its work is handed out again when the execution is resumed."""
    loop = run.open_loop
    resumed = loop.resuming.get(command_id) if loop is not None else None
    close_command(turn, run, command_id)
    if resumed is not None:
        # An iteration that was suspended belongs to no chunk: mark it as ready to continue.
        turn.record(StepResumed(**turn.about(run), iteration=resumed))


def _give_up(turn: Turn, run: Run, command_id: str, died_alone: int, deliveries: int) -> None:
    """Fail the run, or of a loop the one iteration, that kills its workers."""
    why = (
        f"given up after {deliveries} deliveries: the workers that ran it died or lost their lease."
        " Something in this step may kill its worker; look at the workers' logs."
    )
    if died_alone >= ALONE_MAX:
        why = (
            f"given up after {died_alone} workers died while they ran this and nothing else."
            " Something in this step kills its worker: too much memory, a crash inside a library, a"
            " signal. Look at the workers' logs."
        )
    error = TaskError(kind="lease_lost", code="poison", message=why)
    loop = run.open_loop
    iteration = loops.first_of(loop, command_id) if loop is not None else None
    if loop is None or iteration is None:
        fail_run(turn, run, error)
        return
    turn.record(IterationFailed(**turn.about(run), iteration=iteration, error=error))
    close_command(turn, run, command_id)
    loops.go_on(turn, run, loop)


def _on_timer(turn: Turn, timer: TimerState) -> None:
    run = turn.state.runs.get(timer.step_run_id) if timer.step_run_id is not None else None
    if run is None:
        return
    match timer.purpose:
        case "wake":
            _wake(turn, run, timer.iteration)
        case "timeout" | "deadline":
            what = "took longer than its timeout" if timer.purpose == "timeout" else "is late"
            error = TaskError(
                kind="timeout",
                code=timer.purpose,
                message=f'step "{run.step}" {what}: stopped.',
                retryable=True,
            )
            fail_run(turn, run, error)
        case "child":
            _stop_child(turn, run, timer)
        case _:
            pass


def _stop_child(turn: Turn, run: Run, timer: TimerState) -> None:
    """End a task, and its child, because the child took longer than the task's timeout."""
    child = timer.name
    if child not in run.children:
        return
    reason = f"it took longer than the timeout of step {run.step!r}"
    error = TaskError(
        kind="timeout",
        code=CHILD_TIMEOUT,
        message="it took longer than the task's timeout and was cancelled.",
        retryable=True,
    )
    turn.record(
        ChildFinished(
            at=turn.at,
            step_run_id=run.step_run_id,
            child=child,
            status="FAILED",
            error=error,
            iteration=timer.iteration,
        )
    )
    turn.effects.append(CancelChild(child, reason))
    _wake(turn, run, timer.iteration)


def _wake(turn: Turn, run: Run, iteration: int | None) -> None:
    """Give a waiting run, or one waiting iteration of it, back to a worker."""
    if not _is_waiting(run, iteration):
        return
    turn.record(StepResumed(**turn.about(run), iteration=iteration))
    if (loop := run.open_loop) is not None:
        loops.hand_out(turn, run, loop)
    else:
        issue(turn, run)


def _is_waiting(run: Run, iteration: int | None) -> bool:
    """Whether it still waits: it may wait for a timer and a child, and the first one wakes it."""
    if run.loop is None or iteration is None:
        return run.waiting
    if run.following is not None:
        return False  # The loop is over; a worker follows the rules for its end.
    under_way = iteration in run.loop.woken or iteration in run.loop.resuming.values()
    return iteration in run.loop.suspended and not under_way


def _cancel(turn: Turn, given: Cancelled) -> None:
    """Stop the execution. If it compensates what is done, a person who cancels again stops that.

    A repeat changes nothing: the same request, sent again under the same key because its answer was
    lost, or the same input, decided again because the answer of its commit was lost.
    """
    state = turn.state
    is_person = given.actor is not None and given.actor.is_person
    is_repeat = state.cancelled_under(given.key) is not None or any(
        (act.at, act.actor) == (given.at, given.actor) for act in state.acts
    )
    if state.cancelling and (is_repeat or not is_person):
        return
    reason = given.reason or "cancelled"
    error = TaskError(kind="cancelled", message=reason)
    undoes = "cancel" in turn.program.net.executor.compensate_on and not state.compensating
    turn.record(
        ExecutionCancelled(at=turn.at, reason=given.reason, actor=given.actor, key=given.key)
    )
    stop_everything(turn, reason)
    if undoes and state.undo:
        turn.record(WorkflowFailing(at=turn.at, error=error))
    else:
        finish(turn, "CANCELLED", error=error)
    if not given.cascade:
        turn.effects = [one for one in turn.effects if not isinstance(one, CancelChild)]


def _resume(turn: Turn, actor: Actor | None) -> None:
    if turn.state.status != "PAUSED":
        return
    turn.record(ExecutionResumed(at=turn.at, actor=actor))
    for run in list(turn.state.runs.values()):
        if (loop := run.open_loop) is not None:
            loops.hand_out(turn, run, loop)
        elif not run.commands and not run.waiting and not run.children:
            issue(turn, run)


# --- The end of an execution, and what must be undone before it ----------------------------------


END = "end"


def finish_if_over(turn: Turn) -> bool:
    """End the execution if it has no token, no open run and no timer, and waits for no slot of a
    limit. A run that waits for an event is open.

    A failed one first compensates, or runs the step that its playbook names for failures. Returns
    whether anything happened.
    """
    state = turn.state
    if state.runs or state.tokens or state.timers or state.queued is not None:
        return False
    if state.failure is None:
        broken = _result_error(turn) if turn.program.result is not None else None
        if broken is None:
            finish(turn, "COMPLETED")
        else:
            turn.record(WorkflowFailing(at=turn.at, error=broken, step=result_step(state)))
        return True
    ends_by = "cancel" if state.cancelling else "failure"
    undoes = bool(state.undo) and ends_by in turn.program.net.executor.compensate_on
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


def result_step(state: ExecutionState) -> str:
    """The step whose result is that of the execution."""
    return END if END in state.results else state.last_step


def _result_error(turn: Turn) -> TaskError | None:
    """Why the result does not match the playbook's schema (`executor.spec.result`)."""
    schema = turn.program.result
    assert schema is not None
    found = turn.state.results.get(result_step(turn.state))
    stored = found.value if found is not None else None
    value = fetched_value(stored, turn.state.seal, turn.bodies)
    if isinstance(value, LostView):
        message = f"the result of the execution cannot be checked: {value.why}"
    elif wrong := schema.wrong(value):
        message = f"the result of the execution breaks its schema: {wrong}"
    else:
        return None
    return TaskError(kind="schema", code="result", message=message)


def finish(turn: Turn, status: FinalStatus, error: TaskError | None = None) -> None:
    """Record the end, and tell the parent."""
    state = turn.state
    found = state.results.get(result_step(state))
    result = found.value if found is not None and status == "COMPLETED" else None
    turn.record(WorkflowFinished(at=turn.at, status=status, result=result, error=error))
    turn.record(ExecutionProcessed(at=turn.at, status=status))
    if state.parent is not None:
        warnings = tuple(
            one if one.playbook else structs.replace(one, playbook=state.path)
            for one in state.warnings
        )
        effect = TellParent(state.parent, status, result, error, warnings)
        turn.effects.append(_with_return_step(effect, state) if status == "COMPLETED" else effect)


def _with_return_step(effect: TellParent, state: ExecutionState) -> TellParent:
    """With the result of the step that the parent asks for (`return_step`), if it names one."""
    step = effect.parent.return_step
    if step is None:
        return effect
    if found := state.results.get(step):
        return structs.replace(effect, result=found.value)
    missing = TaskError(
        kind="not_found",
        code="no_return_step",
        message=f'it has no result of "{step}", its `return_step`: no such step has ended in it.',
    )
    return structs.replace(effect, status="FAILED", result=None, error=missing)


def absorb_tokens(turn: Turn, reason: str) -> None:
    """Remove every waiting token."""
    for token_id in list(turn.state.tokens):
        turn.record(TokenAbsorbed(at=turn.at, token_id=token_id, reason=reason))


def stop_everything(turn: Turn, reason: str) -> None:
    """Cancel every open run and every token."""
    absorb_tokens(turn, reason)
    state = turn.state
    for run in list(state.runs.values()):
        cancelled = StepCancelled(**turn.about(run), reason=reason)
        end_run(turn, run, cancelled, reason)
