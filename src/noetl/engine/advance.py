"""The door into the engine: something happened (`Input`), and everything that follows from it.

    start     → request evaluated → token at the entry
    token     → join, admission   → run scheduled → command (or loop, or done at once)
    report    → facts             → run ended     → arcs → tokens …
    nothing left that could act   → the execution is over

Facts are folded as they are decided, so each consequence sees the state its cause left.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import convert, to_builtins

from noetl.engine import bounding, forking, looping, signalling
from noetl.engine.evolve import CHILD_TIMEOUT, evolve
from noetl.engine.failing import error_from
from noetl.engine.finishing import absorb_tokens, finish, finish_if_over, stop_everything
from noetl.engine.joining import fire_ready
from noetl.engine.listening import fail_run
from noetl.engine.program import Program
from noetl.engine.reporting import (
    absorb_report,
    close_command,
    killed_its_workers,
    lost_for_good,
    refuse_report,
    run_of,
)
from noetl.engine.routing import route
from noetl.engine.running import command_for, issue
from noetl.engine.turn import NOTHING, CancelChild, Decision, Followed, Issue, Turn
from noetl.errors import EvaluationFailed, Finished
from noetl.model.events import (
    Actor,
    ChildFinished,
    CommandLost,
    CommandRequeued,
    ExecutionBounded,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionQueued,
    ExecutionResumed,
    IterationFailed,
    RequestEvaluated,
    StepDone,
    StepFailed,
    StepResumed,
    StepStarted,
    TimerFired,
    TokenCreated,
    VarsSet,
    WorkflowFailing,
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
    Nothing,
    Paused,
    Refused,
    Reported,
    Resumed,
    Signalled,
    Start,
    TimerDue,
    VarsChanged,
)
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState, Run, TimerState

Ended = tuple[tuple[StepDone | StepFailed, Run], ...]
DELIVERIES_MAX = 20
"""A command that was lost so often is not lost by accident."""
ALONE_MAX = 2
"""A command whose workers died so often while they ran nothing else has killed them."""
HALVE_AFTER = 3
"""A chunk that was delivered so often goes on in halves, until the one iteration is found that
kills its workers."""


def advance(program: Program, state: ExecutionState, given: Input) -> Decision:
    """What follows from something that happened. The state moves along.

    Nothing follows for an execution that has ended. Raises SignalRefused, or Finished for a signal
    to an execution that has ended, before anything has changed; nothing else is refused.
    """
    if type(given) is Leased:
        return _lease(state, given)
    turn = Turn(program, state, given.execution_id, given.at)
    if not state.is_finished:
        _take_in(turn, given)
        _settle(turn)
    elif type(given) is Signalled:
        raise Finished(f"the execution has ended ({state.status}) and hears nothing any more.")
    return turn.decision()


def _take_in(turn: Turn, given: Input) -> None:
    match given:
        case Reported(report=report):
            absorb_report(turn, report)
        case TimerDue(timer_id=timer_id):
            _fire(turn, timer_id)
        case ChildEnded(fact=fact):
            _end_child(turn, fact)
        case LoopEnded(step_run_id=step_run_id):
            run = turn.state.runs.get(step_run_id)
            if run is not None and run.loop is not None:
                looping.conclude(turn, run)
        case Start():
            _start(turn, given)
        case Admitted():
            _admit(turn)
        case Lapsed():
            _lapse(turn, given)
        case Refused(report=report):
            refuse_report(turn, report)
        case Signalled(signal=signal):
            signalling.take_in(turn, signal)
        case Cancelled():
            _cancel(turn, given)
        case Paused(reason=reason, actor=actor):
            if turn.state.status == "RUNNING":
                turn.record(ExecutionPaused(at=turn.at, reason=reason, actor=actor))
        case Resumed(actor=actor):
            _resume(turn, actor)
        case VarsChanged(values=values, removed=removed, actor=actor):
            turn.record(VarsSet(at=turn.at, values=values, removed=removed, actor=actor))
        case Nothing():
            pass
        case Leased():
            raise AssertionError("a lease has no consequences and takes no turn")
        case _:
            assert_never(given)


def _settle(turn: Turn) -> None:
    """Let consequences follow until only the world can act."""
    while True:
        while turn.pending:
            _consequences(turn, turn.pending.popleft())
        if turn.state.is_finished or not (_go_on(turn) or finish_if_over(turn)):
            return


def _go_on(turn: Turn) -> bool:
    """Offer a signal, or else start what can be started. Says whether anything happened."""
    state = turn.state
    if state.status == "PAUSED" or state.queued is not None:
        return False  # tokens and signals wait for it to be resumed
    if state.signals and signalling.deliver(turn):
        return True
    return bool(state.tokens) and state.failure is None and fire_ready(turn)


def _consequences(turn: Turn, fact: Followed) -> None:
    match fact:
        case StepDone() | StepFailed():
            # Nothing new is started while an execution fails.
            if not turn.state.compensating and turn.state.failure is None:
                route(turn, fact)
        case WorkflowFailing(stop=True):
            stop_everything(turn, "another step failed")
        case WorkflowFailing():
            absorb_tokens(turn, "another step failed")
        case _:
            assert_never(fact)


# --- What each of them does --------------------------------------------------------------------


def _lease(state: ExecutionState, given: Leased) -> Decision:
    """Nothing follows from it, so it takes no turn."""
    run = state.runs.get(given.step_run_id)
    if run is None or run.started:
        return NOTHING
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
        forking.record(turn, seed)
    refused = given.refused
    if refused is None and turn.program.is_bounded:
        try:
            slots = bounding.slots_of(turn)
        except EvaluationFailed as error:
            slots, refused = {}, error_from(error)
        if slots and not _takes_its_turn(turn, given, slots):
            return
    _begin(turn, seed.ended if seed is not None else None, refused)


def _begin(turn: Turn, ended: Ended | None, refused: TaskError | None = None) -> None:
    """It runs, with a token at the entry, or from where another execution was (`ended`)."""
    turn.record(WorkflowStarted(at=turn.at))
    if refused is not None:
        turn.record(WorkflowFailing(at=turn.at, error=refused))
    elif ended is not None:
        _take_up(turn, ended)
    else:
        first = turn.program.net.entry
        event = {"name": "workflow.started", "step": ""}
        token_id = derive(turn.execution_id, "entry")
        turn.record(TokenCreated(at=turn.at, token_id=token_id, step=first, event=event))


def _take_up(turn: Turn, ended: Ended) -> None:
    """Go on from where the other execution was."""
    for fact, run in ended:
        turn.ended[run.step_run_id] = run
        turn.pending.append(fact)
    for run in list(turn.state.runs.values()):
        if run.loop is not None and run.following is None:
            looping.go_on(turn, run)
        elif not run.waiting:
            issue(turn, run)


def _takes_its_turn(turn: Turn, given: Start, slots: dict[str, int]) -> bool:
    """Whether it starts now. It does, unless the store has said that a limit has no room."""
    full = tuple(name for name in given.full if name in slots)
    answer = bounding.on_limit(turn.program, full) if full else ""
    seed = given.seed
    if seed is not None and seed.state.timers and answer == "queue":
        answer = "fail"  # Its timers run: what they wake would not wait for its turn.
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
            turn.record(WorkflowFailing(at=turn.at, error=bounding.no_room(full)))
        case "cancel_new":
            error = bounding.no_room(full)
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
        _begin(turn, ended)


def _lapse(turn: Turn, given: Lapsed) -> None:
    command_id = given.command_id
    run = run_of(turn.state, command_id)
    turn.last_word = command_id
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
        # All it had begun is waiting by now: the rest is handed out when there is room.
        close_command(turn, run, command_id)
        looping.hand_out(turn, run)
        return
    deliveries = run.commands[command_id] + (not given.given_back)
    died_alone = run.alone.get(command_id, 0) + (given.alone and not given.given_back)
    loop = run.loop if run.following is None else None
    half = None
    if loop is not None and (deliveries > HALVE_AFTER or died_alone >= ALONE_MAX):
        half = looping.half_of(loop, command_id)
    if half is None and died_alone >= ALONE_MAX:
        _give_up(turn, run, command_id, killed_its_workers(died_alone))
        return
    if half is None and deliveries > DELIVERIES_MAX:
        _give_up(turn, run, command_id, lost_for_good(deliveries - 1))
        return
    again = derive(command_id, deliveries)
    turn.record(
        CommandRequeued(
            at=turn.at,
            command_id=again,
            lost=command_id,
            step_run_id=run.step_run_id,
            deliveries=deliveries if half is None else min(deliveries, HALVE_AFTER),
            alone=died_alone if half is None else min(died_alone, ALONE_MAX - 1),
            start=half[0] if half is not None else None,
            stop=half[1] if half is not None else None,
        )
    )
    if loop is not None:
        looping.issue_part(turn, run, again)
        looping.hand_out(turn, run)
    else:
        turn.effect(Issue(command_for(turn, run, again, progress=run.progress)))


def _keep_until_resumed(turn: Turn, run: Run, command_id: str) -> None:
    """Resuming hands the work of a lost command out again."""
    loop = run.loop if run.following is None else None
    alone = loop.alone.get(command_id) if loop is not None else None
    close_command(turn, run, command_id)
    if alone is not None:
        # An iteration that had waited is no part of a chunk: it is ready to go on by itself.
        turn.record(
            StepResumed(at=turn.at, step_run_id=run.step_run_id, step=run.step, iteration=alone)
        )


def _give_up(turn: Turn, run: Run, command_id: str, error: TaskError) -> None:
    """Something kills its workers: the run fails, or of a loop the one iteration it was at."""
    loop = run.loop if run.following is None else None
    iteration = looping.first_of(loop, command_id) if loop is not None else None
    if iteration is None:
        fail_run(turn, run.step_run_id, error)
        return
    turn.record(
        IterationFailed(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            iteration=iteration,
            error=error,
        )
    )
    close_command(turn, run, command_id)
    looping.go_on(turn, run)


def _fire(turn: Turn, timer_id: str) -> None:
    timer = turn.state.timers.get(timer_id)
    if timer is not None:
        turn.record(TimerFired(at=turn.at, timer_id=timer_id))
        _on_timer(turn, timer)


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
            fail_run(turn, run.step_run_id, error)
        case "child":
            _stop_child(turn, run, timer)
        case _:
            pass


def _stop_child(turn: Turn, run: Run, timer: TimerState) -> None:
    """A child took longer than the task that called it allows: the task ends, the child, too."""
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
    turn.effect(CancelChild(child, reason))
    _wake(turn, run, timer.iteration)


def _end_child(turn: Turn, fact: ChildFinished) -> None:
    run = turn.state.runs.get(fact.step_run_id)
    if run is not None and fact.child in run.children:
        turn.record(fact)
        _wake(turn, run, fact.iteration)


def _wake(turn: Turn, run: Run, iteration: int | None) -> None:
    """Give a waiting run, or one waiting iteration of it, back to a worker."""
    if not _waits(run, iteration):
        return
    turn.record(
        StepResumed(at=turn.at, step_run_id=run.step_run_id, step=run.step, iteration=iteration)
    )
    if run.loop is not None and run.following is None:
        looping.hand_out(turn, run)
    else:
        issue(turn, run)


def _waits(run: Run, iteration: int | None) -> bool:
    """Whether it still waits: of a moment and a child, the first to come wakes it."""
    if run.loop is None or iteration is None:
        return run.waiting
    if run.following is not None:
        return False  # the loop is over, and the rules for its end are being followed
    under_way = iteration in run.loop.woken or iteration in run.loop.alone.values()
    return iteration in run.loop.suspended and not under_way


def _cancel(turn: Turn, given: Cancelled) -> None:
    """Stop it. If it undoes what is done first, a person who cancels again stops that, too."""
    state = turn.state
    is_person = given.actor is not None and given.actor.kind != "playbook"
    if state.cancelling and not is_person:
        return
    reason = given.reason or "cancelled"
    error = TaskError(kind="cancelled", message=reason)
    undoes = "cancel" in turn.program.net.executor.compensate_on and not state.compensating
    turn.record(ExecutionCancelled(at=turn.at, reason=given.reason, actor=given.actor))
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
        if run.loop is not None and run.following is None:
            looping.hand_out(turn, run)
        elif not run.commands and not run.waiting and not run.children:
            issue(turn, run)
