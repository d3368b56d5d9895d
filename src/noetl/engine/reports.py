"""What a worker's report means for the run it is about, and what it says of quotas.

A quota bounds what the calls of a run, or of an execution, use together. What a report tells of
calls is added up and recorded beside it (`quota.used`), so it is counted once, whichever workers
made the calls and whatever was restarted meanwhile. Bytes and seconds are known when a call has
ended; calls are counted when they begin, and a worker that counts them waits until that is
recorded, so that no call is made beyond a quota.

What undoes an execution, or runs because it failed, does not count for the execution: it must be
possible although a quota is used up.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from noetl.engine import loops
from noetl.engine.concurrency import held_below
from noetl.engine.entry import begin_body
from noetl.engine.runs import (
    complete_run,
    decide_next,
    end_by_rule,
    fail_run,
    leave,
    record_skipped,
)
from noetl.engine.turn import Close, StartChild, Turn
from noetl.model import refs
from noetl.model.chains import Chain
from noetl.model.commands import ChildRequest, Ending, Report, Suspension
from noetl.model.events import (
    CaseProcessed,
    ChildStarted,
    CommandClosed,
    CommandLost,
    Event,
    FrameClaimed,
    IterationDone,
    IterationFailed,
    IterationsKeyed,
    Parent,
    QuotaUsed,
    ReportedFact,
    SinkProcessed,
    SinkStarted,
    StepWaiting,
    TaskDone,
    TaskStarted,
    TimerSet,
)
from noetl.model.ids import CommandId, derive
from noetl.model.net import Quotas
from noetl.model.outcome import Outcome, TaskError
from noetl.model.state import ExecutionState, Run, Used

TOLD = frozenset(kind for kind in get_args(Event) if issubclass(kind, ReportedFact)) - {StepWaiting}
"""Facts that workers may tell. That a run waits follows from what else they say."""
DIRECTING = frozenset({IterationDone, IterationFailed, FrameClaimed, IterationsKeyed})
"""Of these, the ones that may say where the loop goes from here."""


def absorb_report(turn: Turn, report: Report) -> None:
    """Fold what the worker says. What is known, or about a run that is over, is no news."""
    state = turn.state
    run_id = state.holders.get(report.command_id)
    if run_id is None:
        refuse_report(turn, report)
        return
    run = state.runs[run_id]
    if report.number <= run.reported.get(report.command_id, 0):
        return
    closes = report.closes or report.ending is not None
    mark: dict[str, Any] = {}
    if closes:
        turn.last_word = report.command_id
    else:
        mark = _mark(report)  # the first fact that is recorded of it carries this
    astray = _take_facts(turn, run, report, mark)
    if report.suspensions:
        _take_suspensions(turn, run, report, mark)
    if turn.program.is_metered:
        astray = _meter(turn, run) or astray
    if astray is not None:
        fail_run(turn, run, astray)
    elif report.ending is not None and (run.loop is None or _ends(run, report.ending)):
        _end(turn, run, report.command_id, report.ending)
    else:
        _continue(turn, run, report.command_id, closes=closes, waits=bool(report.suspensions))


def _take_facts(turn: Turn, run: Run, report: Report, mark: dict[str, Any]) -> TaskError | None:
    """Record what is news. Returns why the loop cannot go where they say, if it cannot."""
    astray: TaskError | None = None
    is_first = True
    frames = run.loop.frames if run.loop is not None else {}
    for said in report.events:
        event: Any = _numbered(said, report.command_id, frames) if frames else said
        if _is_news(run, event):
            if is_first or event.recorded_at:
                # One fact tells for all of the report when it came. No worker tells that.
                event = msgspec.structs.replace(event, recorded_at=turn.at, **mark)
                mark.clear()
                is_first = False
            turn.record(event)
            if astray is None and type(event) in DIRECTING:
                astray = _led_astray(turn, run, event)
    return astray


def _take_suspensions(turn: Turn, run: Run, report: Report, mark: dict[str, Any]) -> None:
    """Let what waits go on later; an iteration that has ended meanwhile waits for nothing."""
    loop = run.loop
    frames = loop.frames if loop is not None else {}
    for told in report.suspensions:
        suspension = _numbered(told, report.command_id, frames) if frames else told
        if loop is None or not loop.has_ended(suspension.iteration or 0) or run.following:
            _suspend(turn, run, suspension, {"command_id": report.command_id, **mark})
            mark.clear()


def _led_astray(turn: Turn, run: Run, event: Event) -> TaskError | None:
    """Why the loop cannot go where this says: there is no such step, or nothing to claim from."""
    if isinstance(event, IterationDone | IterationFailed) and event.next is not None:
        return decide_next(turn, run, event.next, event.suppressed)
    return event.error if isinstance(event, FrameClaimed | IterationsKeyed) else None


def _ends(run: Run, ending: Ending) -> bool:
    """The end of a chunk is not the end of its loop, unless the worker broke on it."""
    return run.following is not None or ending.error is not None


def _end(turn: Turn, run: Run, command_id: CommandId, ending: Ending) -> None:
    """The worker is through with the body, or with rules for an event that the server heard."""
    # Most runs follow no chain: they need not be asked for the outermost one.
    has_chain = run.progress is not None and run.progress.chain is not None
    if has_chain and (following := run.following) is not None:
        _followed(turn, run, command_id, following, ending)
        return
    error = ending.error
    if ending.next is not None:
        error = decide_next(turn, run, ending.next, ending.suppressed) or error
    if ending.skipped is not None:
        record_skipped(turn, run, ending.skipped)
    elif error is not None:
        fail_run(turn, run, error)
    else:
        complete_run(turn, run, ending.result, ending.tasks)


def _followed(turn: Turn, run: Run, command_id: CommandId, chain: Chain, ending: Ending) -> None:
    """Go on where the run was when the rules for an event were handed to a worker."""
    turn.record(CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    turn.record(CaseProcessed(**turn.of(run), trigger_event=chain.event))
    chain = msgspec.structs.replace(
        chain,
        branch=len(chain.rules),
        error=ending.error,
        skipped=ending.skipped,
        recovered=ending.recovered,
    )
    if ending.next is not None and chain.error is None:
        chain.error = decide_next(turn, run, ending.next, ending.suppressed)
    if chain.stage == "exit":
        leave(turn, run, chain)
    elif not end_by_rule(turn, run, chain) and chain.stage == "enter":
        begin_body(turn, run)


def _continue(turn: Turn, run: Run, command_id: CommandId, *, closes: bool, waits: bool) -> None:
    """The run has not ended: close what is to be closed, and hand out what there is."""
    loop = run.open_loop
    if loop is None:
        if waits:
            if not closes:
                # It goes on under another command, perhaps before the worker's last word.
                turn.effects.append(Close(command_id))
            close_command(turn, run, command_id)
        elif closes:
            fail_run(turn, run, NO_ENDING)
        return
    if closes:
        close_command(turn, run, command_id)
    loops.go_on(turn, run, loop)


def close_command(turn: Turn, run: Run, command_id: CommandId) -> None:
    """The command is over. Iterations it did not get to will be handed out again."""
    rest = loops.rest_of(run.loop, command_id) if run.loop is not None else None
    turn.record(
        CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id, rest=rest)
    )


def run_of(state: ExecutionState, command_id: CommandId) -> Run | None:
    """The run this command works on, if both are still open."""
    run_id = state.holders.get(command_id)
    return state.runs[run_id] if run_id is not None else None


def refuse_report(turn: Turn, report: Report) -> None:
    """A report under a lost lease changes nothing. If it says something new, that is recorded."""
    step_run_id, taken = turn.state.lost.get(report.command_id, ("", 0))
    if step_run_id and report.number > taken:
        turn.record(
            CommandLost(
                at=turn.at,
                command_id=report.command_id,
                step_run_id=step_run_id,
                worker=report.worker,
                reason="a report came after the lease was lost",
                refused=True,
            )
        )


def _mark(report: Report) -> dict[str, Any]:
    """What tells this report from others: one of its facts will carry it."""
    settling = TaskDone | IterationDone | IterationFailed
    settled = any(isinstance(event, settling) for event in report.events)
    return {"command_id": report.command_id, "report": report.number, "settled": settled}


def _numbered(said: Any, command_id: CommandId, frames: dict[CommandId, int | None]) -> Any:
    """What a frame of a cursor says, which counts its rows from 0, in the numbers of the loop."""
    if isinstance(said, FrameClaimed):
        return msgspec.structs.replace(said, command_id=command_id)
    first, iteration = frames.get(command_id), getattr(said, "iteration", None)
    if first is None or iteration is None:
        return said
    return msgspec.structs.replace(said, iteration=first + iteration)


def _is_news(run: Run, event: Any) -> bool:
    """Workers speak of their own run only, and of each iteration until it has ended.

    An iteration that was lost and done again may be reported by both; the first counts.
    """
    if type(event) not in TOLD or event.step_run_id != run.step_run_id or event.step != run.step:
        return False
    iteration = getattr(event, "iteration", None)
    if iteration is None:
        return True
    loop = run.loop
    # `has_ended`, without a call: this is asked of every event of every iteration.
    if loop is None or iteration in loop.results or iteration // loop.segment in loop.segments:
        return False
    return bool(0 <= iteration < (loop.given if loop.total is None else loop.total))


def _suspend(turn: Turn, run: Run, suspension: Suspension, mark: dict[str, Any]) -> None:
    """Let go of the worker until a moment, or until a child execution has ended."""
    child = child_id(run, suspension) if suspension.child is not None else None
    # A suspension that waits for nothing continues at once.
    until = suspension.until if suspension.until is not None or child is not None else turn.at
    turn.record(
        StepWaiting(
            **turn.of(run),
            iteration=suspension.iteration,
            until=until,
            child=child,
            progress=suspension.progress,
            **mark,
        )
    )
    if suspension.child is not None and child is not None:
        _start_child(turn, run, suspension.child, child, suspension.iteration)
    if until is not None:
        turn.record(
            TimerSet(
                at=turn.at,
                timer_id=derive(run.step_run_id, "wake", suspension.iteration, turn.state.seq),
                fires_at=until,
                purpose="wake",
                step_run_id=run.step_run_id,
                iteration=suspension.iteration,
            )
        )


def child_id(run: Run, suspension: Suspension) -> str:
    """The child's execution id, derived: deciding again starts no second child."""
    progress = suspension.progress.innermost
    chain = progress.chain
    text = derive(
        run.step_run_id,
        "child",
        suspension.iteration,
        progress.cause,
        progress.position,
        progress.page,
        progress.attempt,
        progress.jumps,
        *(() if chain is None else (chain.event, chain.restarts, *chain.place)),
    )
    # 62 bits: an execution id is a positive 63-bit number.
    return str(int(text[:16], 16) >> 2)


def _start_child(
    turn: Turn, run: Run, request: ChildRequest, child: str, iteration: int | None
) -> None:
    turn.record(ChildStarted(**turn.of(run), child=child, path=request.path, iteration=iteration))
    above = turn.state.parent
    parent = Parent(
        execution_id=turn.execution_id,
        step_run_id=run.step_run_id,
        iteration=iteration,
        return_step=request.return_step,
        depth=above.depth + 1 if above is not None else 1,
        root=above.first if above is not None else "",
        slots=held_below(turn.state),
    )
    turn.effects.append(StartChild(child, request, parent, turn.state.children))
    if request.timeout is not None:
        turn.record(
            TimerSet(
                at=turn.at,
                timer_id=derive(run.step_run_id, "child", child),
                fires_at=turn.at + request.timeout,
                purpose="child",
                step_run_id=run.step_run_id,
                iteration=iteration,
                name=child,
            )
        )


NO_ENDING = TaskError(
    kind="unknown",
    code="no_ending",
    message="the worker let go of the run without saying how it ended.",
)


# --- Quotas ---------------------------------------------------------------------------------------


def _meter(turn: Turn, run: Run) -> TaskError | None:
    """Record what the facts of a report say of calls; why the run must end, if it used too much.

    So far the turn has no other facts.
    """
    calls, size, seconds = 0, 0, 0.0
    for fact in turn.events:
        if isinstance(fact, TaskStarted | SinkStarted | ChildStarted):
            calls += 1
        elif isinstance(fact, TaskDone | SinkProcessed):
            size += _size(fact.outcome, turn.state.seal)
            seconds += fact.outcome.meta.duration
    if not (calls or size or seconds):
        return None
    turn.record(QuotaUsed(**turn.of(run), calls=calls, bytes=size, seconds=seconds))
    step = turn.program.steps[run.step].step
    over = _exceeded(f'step "{run.step}"', step.quotas, run.used)
    if over is None and not (run.handles_failure or run.compensates):
        over = _exceeded("the execution", turn.program.quotas, turn.state.used)
    return over


def _size(outcome: Outcome, seal: str) -> int:
    about = refs.about(outcome.result, seal)
    if about is not None:
        return about.size
    return 0 if outcome.result is None else refs.weight(outcome.result)


def _exceeded(who: str, quotas: Quotas, used: Used) -> TaskError | None:
    for name, bound, amount, what in (
        ("max_calls", quotas.max_calls, used.calls, "calls"),
        ("max_bytes", quotas.max_bytes, used.bytes, "bytes of results"),
        ("max_seconds", quotas.max_seconds, used.seconds, "seconds of calls"),
    ):
        if bound is not None and amount > bound:
            return TaskError(
                kind="quota",
                code=name,
                message=f"{who} needs {round(amount, 3)} {what}, and its quota is {bound}"
                f" (`quotas.{name}`).",
            )
    return None
