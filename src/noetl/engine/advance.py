"""The one loop: something happened, and everything that follows from it.

    start     → request evaluated → token at the entry
    token     → join, admission   → run scheduled → command (or loop, or done at once)
    report    → facts             → run ended     → arcs → tokens …
    nothing left that could act   → the execution is over

Facts are folded as they are decided, so each consequence sees the state its cause left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from noetl.engine import looping, signalling
from noetl.engine.evolve import CHILD_TIMEOUT, evolve
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
from noetl.engine.turn import CancelChild, Decision, Followed, Issue, Turn
from noetl.errors import Finished
from noetl.model.commands import Report
from noetl.model.events import (
    Actor,
    ChildFinished,
    CommandLost,
    CommandRequeued,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionRequested,
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
from noetl.model.ids import ExecutionId, derive
from noetl.model.outcome import TaskError
from noetl.model.signals import ApprovalReceived, MessageReceived
from noetl.model.state import ExecutionState, Run, TimerState

DELIVERIES_MAX = 20
"""A command that was lost so often is not lost by accident."""
ALONE_MAX = 2
"""A command whose workers died so often while they ran nothing else has killed them."""
HALVE_AFTER = 3
"""A chunk that was delivered so often goes on in halves, until the one iteration is found that
kills its workers."""


def _advance(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    happen: Callable[[Turn], None],
) -> Decision:
    turn = Turn(program, state, execution_id, at)
    if not state.is_finished:
        happen(turn)
        settle(turn)
    return turn.decision()


def settle(turn: Turn) -> None:
    """Let consequences follow until only the world can act."""
    while True:
        while turn.pending:
            _consequences(turn, turn.pending.popleft())
        if turn.state.is_finished or not (_go_on(turn) or finish_if_over(turn)):
            return


def _go_on(turn: Turn) -> bool:
    """Offer a signal, or else start what can be started. Says whether anything happened."""
    state = turn.state
    if state.status == "PAUSED":
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


# --- What can happen ---------------------------------------------------------------------------


def start(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    request: ExecutionRequested,
    *,
    workload: dict[str, Any],
    before: ExecutionState | None = None,
    entry: str | None = None,
    refused: TaskError | None = None,
) -> Decision:
    """An execution was asked for.

    A rerun begins with what was there `before`; one that is `refused` fails at once.
    """
    earlier = before or ExecutionState()

    def happen(turn: Turn) -> None:
        if turn.state.status != "PENDING":
            return
        turn.record(request)
        first = entry or turn.program.net.entry
        turn.record(
            RequestEvaluated(
                at=turn.at,
                workload=workload,
                reused={name: result.value for name, result in earlier.results.items()},
                ctx=earlier.ctx,
                vars=earlier.vars,
                entry=first,
            )
        )
        turn.record(WorkflowStarted(at=turn.at))
        if refused is not None:
            turn.record(WorkflowFailing(at=turn.at, error=refused))
            return
        turn.record(
            TokenCreated(
                at=turn.at,
                token_id=derive(execution_id, "entry"),
                step=first,
                args=earlier.payload.get("args", {}),
                event={"name": "workflow.started", "step": ""},
            )
        )

    return _advance(program, state, execution_id, request.at, happen)


def leased(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    step_run_id: str,
    worker: str,
) -> Decision:
    """A worker took a command of a run; the first one starts the run. Nothing follows from it."""
    run = state.runs.get(step_run_id)
    if run is None or run.started:
        return Decision((), ())
    started = StepStarted(at=at, step_run_id=step_run_id, step=run.step, worker=worker)
    evolve(state, started)
    return Decision((started,), ())


def reported(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    report: Report,
) -> Decision:
    """A worker that holds the lease has something to say."""
    return _advance(program, state, execution_id, at, lambda turn: absorb_report(turn, report))


def refused(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    report: Report,
) -> Decision:
    """Somebody who does not hold the lease has something to say."""
    return _advance(program, state, execution_id, at, lambda turn: refuse_report(turn, report))


def lapsed(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    command_id: str,
    worker: str,
    *,
    given_back: bool = False,
    alone: bool = False,
) -> Decision:
    """A lease ran out: the work goes on under a new command, from where it was recorded.

    `given_back`: its worker was stopped, so the command is not suspected of killing workers.
    `alone`: its worker ran nothing else, so no other command is.
    """

    def happen(turn: Turn) -> None:
        run = run_of(turn.state, command_id)
        turn.last_word = command_id
        if run is not None:
            _requeue(turn, run, command_id, worker, given_back, alone)

    return _advance(program, state, execution_id, at, happen)


def _requeue(
    turn: Turn, run: Run, command_id: str, worker: str, given_back: bool, alone: bool
) -> None:
    turn.record(
        CommandLost(
            at=turn.at,
            command_id=command_id,
            step_run_id=run.step_run_id,
            worker=worker,
            reason="its worker was stopped" if given_back else "the lease lapsed",
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
    deliveries = run.commands[command_id] + (not given_back)
    died_alone = run.alone.get(command_id, 0) + (alone and not given_back)
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


def fired(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    timer_id: str,
) -> Decision:
    """A timer's moment has come."""

    def happen(turn: Turn) -> None:
        timer = turn.state.timers.get(timer_id)
        if timer is not None:
            turn.record(TimerFired(at=turn.at, timer_id=timer_id))
            _on_timer(turn, timer)

    return _advance(program, state, execution_id, at, happen)


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


def signalled(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    signal: MessageReceived | ApprovalReceived,
) -> Decision:
    """The world said something: whoever waits considers it, and otherwise it is kept.

    Raises SignalRefused or Finished, before anything has changed, for what cannot be taken.
    """
    if state.is_finished:
        raise Finished(f"the execution has ended ({state.status}) and hears nothing any more.")
    return _advance(
        program, state, execution_id, signal.at, lambda turn: signalling.take_in(turn, signal)
    )


def child_ended(
    program: Program, state: ExecutionState, execution_id: ExecutionId, fact: ChildFinished
) -> Decision:
    """A child execution that a run waits for has ended."""

    def happen(turn: Turn) -> None:
        run = turn.state.runs.get(fact.step_run_id)
        if run is None or fact.child not in run.children:
            return
        turn.record(fact)
        _wake(turn, run, fact.iteration)

    return _advance(program, state, execution_id, fact.at, happen)


def loop_ended(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    step_run_id: str,
) -> Decision:
    """The results of a loop that is over are at hand."""

    def happen(turn: Turn) -> None:
        run = turn.state.runs.get(step_run_id)
        if run is not None and run.loop is not None:
            looping.conclude(turn, run)

    return _advance(program, state, execution_id, at, happen)


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


def cancel(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    reason: str,
    *,
    cascade: bool = True,
    actor: Actor | None = None,
) -> Decision:
    """Somebody wants it to stop. It stops now; running work is interrupted.

    Executions that it called stop, too; without `cascade` they go on, and nobody waits for them.
    """

    def happen(turn: Turn) -> None:
        turn.record(ExecutionCancelled(at=at, reason=reason, actor=actor))
        stop_everything(turn, reason or "cancelled")
        error = TaskError(kind="cancelled", message=reason or "cancelled")
        finish(turn, "CANCELLED", error=error)

    decision = _advance(program, state, execution_id, at, happen)
    if cascade:
        return decision
    kept = (effect for effect in decision.effects if not isinstance(effect, CancelChild))
    return Decision(decision.events, tuple(kept))


def pause(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    reason: str,
    actor: Actor | None = None,
) -> Decision:
    """Calls that run end; nothing new is handed out, and workers begin nothing more."""

    def happen(turn: Turn) -> None:
        if turn.state.status == "RUNNING":
            turn.record(ExecutionPaused(at=at, reason=reason, actor=actor))

    return _advance(program, state, execution_id, at, happen)


def resume(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    at: float,
    actor: Actor | None = None,
) -> Decision:
    """Hand out what was held back."""

    def happen(turn: Turn) -> None:
        if turn.state.status != "PAUSED":
            return
        turn.record(ExecutionResumed(at=at, actor=actor))
        for run in list(turn.state.runs.values()):
            if run.loop is not None and run.following is None:
                looping.hand_out(turn, run)
            elif not run.commands and not run.waiting and not run.children:
                issue(turn, run)

    return _advance(program, state, execution_id, at, happen)


def vars_set(
    program: Program, state: ExecutionState, execution_id: ExecutionId, fact: VarsSet
) -> Decision:
    """Somebody sets or removes variables from outside; steps that start later see it."""
    return _advance(program, state, execution_id, fact.at, lambda turn: turn.record(fact))
