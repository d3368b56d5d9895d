"""What follows from a worker's report, and what it uses of quotas.

A quota bounds what the calls of a run, or of an execution, use together. The sum over a report is
recorded beside its facts (`quota.used`), so each call counts once, whichever worker made it and
whatever was restarted meanwhile. Bytes and seconds are known when a call has ended. Calls are
counted when they begin: the worker waits until that is recorded, so that no call is made beyond a
quota.

Compensation, and the step that handles a failure, do not count for the execution: they must be
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
    end_by_exit_rules,
    end_by_rule,
    fail_run,
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

REPORTABLE = frozenset(kind for kind in get_args(Event) if issubclass(kind, ReportedFact)) - {
    StepWaiting
}
"""Facts that workers may report. `step.waiting` is not among them: it follows from a suspension."""
SETTLING = frozenset({TaskDone, IterationDone, IterationFailed})
"""Those of them that end a call or an iteration."""
DIRECTING = frozenset({IterationDone, IterationFailed, FrameClaimed, IterationsKeyed})
"""Those of them that may end the loop: by a rule's `next`, or by an error."""


def absorb_report(turn: Turn, report: Report) -> None:
    """Record the facts of a report, and end or continue its run.

    A report that came before changes nothing; one about a run that is over is refused.
    """
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
        turn.closing_command = report.command_id
    else:
        mark = _report_fields(report)
    error = _take_facts(turn, run, report, mark)
    if report.suspensions:
        _take_suspensions(turn, run, report, mark)
    if turn.program.is_metered:
        error = _meter(turn, run) or error
    if error is not None:
        fail_run(turn, run, error)
    elif report.ending is not None and (run.loop is None or _ends(run, report.ending)):
        _end(turn, run, report.command_id, report.ending)
    else:
        _continue(turn, run, report.command_id, closes=closes, waits=bool(report.suspensions))


def _take_facts(turn: Turn, run: Run, report: Report, mark: dict[str, Any]) -> TaskError | None:
    """Record the facts that are new; the first of them carries `mark`. Returns the error if one of
    them ends the loop with an error.
    """
    error: TaskError | None = None
    is_first = True
    frames = run.loop.frames if run.loop is not None else {}
    for said in report.events:
        event: Any = _numbered(said, report.command_id, frames) if frames else said
        if _is_news(run, event):
            if is_first or event.recorded_at:
                # The first fact carries the time at which the whole report was accepted.
                event = msgspec.structs.replace(event, recorded_at=turn.at, **mark)
                mark.clear()
                is_first = False
            turn.record(event)
            if error is None and type(event) in DIRECTING:
                error = _routing_error(turn, run, event)
    return error


def _take_suspensions(turn: Turn, run: Run, report: Report, mark: dict[str, Any]) -> None:
    """Suspend the run, or iterations that have not ended meanwhile."""
    loop = run.loop
    frames = loop.frames if loop is not None else {}
    for said in report.suspensions:
        suspension = _numbered(said, report.command_id, frames) if frames else said
        if loop is None or not loop.has_ended(suspension.iteration or 0) or run.following:
            _suspend(turn, run, suspension, {"command_id": report.command_id, **mark})
            mark.clear()


def _routing_error(turn: Turn, run: Run, event: Event) -> TaskError | None:
    """Take the `next` of an iteration's rule. Returns the error if there is no such step, or if
    the fact reports that the loop cannot go on.
    """
    if isinstance(event, IterationDone | IterationFailed) and event.next is not None:
        return decide_next(turn, run, event.next, event.suppressed)
    return event.error if isinstance(event, FrameClaimed | IterationsKeyed) else None


def _ends(run: Run, ending: Ending) -> bool:
    """Whether the end of a loop's command ends the run: the end of a chunk does not, unless the
    worker failed.
    """
    return run.following is not None or ending.error is not None


def _end(turn: Turn, run: Run, command_id: CommandId, ending: Ending) -> None:
    """End the run as the worker says, or continue it after a chain that the server handed out."""
    # Most runs follow no chain: they need not be asked for the outermost one.
    has_chain = run.progress is not None and run.progress.chain is not None
    if has_chain and (following := run.following) is not None:
        _continue_after_chain(turn, run, command_id, following, ending)
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


def _continue_after_chain(
    turn: Turn, run: Run, command_id: CommandId, chain: Chain, ending: Ending
) -> None:
    """Continue the run from where it was when the server handed this chain to a worker."""
    turn.record(CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    turn.record(CaseProcessed(**turn.about(run), trigger_event=chain.event))
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
        end_by_exit_rules(turn, run, chain)
    elif not end_by_rule(turn, run, chain) and chain.stage == "enter":
        begin_body(turn, run)


def _continue(turn: Turn, run: Run, command_id: CommandId, *, closes: bool, waits: bool) -> None:
    """Close a command of a run that has not ended, and hand out what is left of a loop."""
    loop = run.open_loop
    is_over = waits and (loop is None or command_id in loop.resuming)
    if is_over and not closes:
        # It goes on under another command, perhaps before the worker's last word.
        turn.effects.append(Close(command_id))
    if loop is None:
        if waits:
            close_command(turn, run, command_id)
        elif closes:
            fail_run(turn, run, NO_ENDING)
        return
    if closes or is_over:
        close_command(turn, run, command_id)
    loops.go_on(turn, run, loop)


def close_command(turn: Turn, run: Run, command_id: CommandId) -> None:
    """Record the end of a command. Iterations that it did not begin will be handed out again."""
    rest = loops.rest_of(run.loop, command_id) if run.loop is not None else None
    turn.record(
        CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id, rest=rest)
    )


def run_of(state: ExecutionState, command_id: CommandId) -> Run | None:
    """The run this command works on, if both are still open."""
    run_id = state.holders.get(command_id)
    return state.runs[run_id] if run_id is not None else None


def refuse_report(turn: Turn, report: Report) -> None:
    """Record that a report came under a lost lease, once for each report, and nothing else."""
    step_run_id, accepted = turn.state.lost.get(report.command_id, ("", 0))
    if step_run_id and report.number > accepted:
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


def _report_fields(report: Report) -> dict[str, Any]:
    """The fields by which the first recorded fact names its report."""
    settled = any(type(event) in SETTLING for event in report.events)
    return {"command_id": report.command_id, "report": report.number, "settled": settled}


def _numbered(said: Any, command_id: CommandId, frames: dict[CommandId, int | None]) -> Any:
    """A fact of a cursor's frame, which counts its rows from 0, with the number in the loop."""
    if isinstance(said, FrameClaimed):
        return msgspec.structs.replace(said, command_id=command_id)
    first, iteration = frames.get(command_id), getattr(said, "iteration", None)
    if first is None or iteration is None:
        return said
    return msgspec.structs.replace(said, iteration=first + iteration)


def _is_news(run: Run, event: Any) -> bool:
    """Whether a fact is about this run, and about no iteration that has ended.

    An iteration that was lost and done again may be reported twice; the first report counts.
    """
    if (
        type(event) not in REPORTABLE
        or event.step_run_id != run.step_run_id
        or event.step != run.step
    ):
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
    """Let the run wait for a timer or the end of a child execution, without a worker."""
    child = None
    if suspension.child is not None:
        child = _child_id(turn, run, suspension.iteration)
    # A suspension that waits for nothing continues at once.
    until = suspension.until if suspension.until is not None or child is not None else turn.at
    if until is not None and suspension.at is not None:
        until += turn.at - suspension.at  # clocks of workers may be off
    turn.record(
        StepWaiting(
            **turn.about(run),
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


def _child_id(turn: Turn, run: Run, iteration: int | None) -> str:
    """The child's execution id. It depends on the place in the log, so a task that calls its
    playbook again gets another child.
    """
    text = derive(run.step_run_id, "child", iteration, turn.state.seq)
    # 62 bits: an execution id is a positive 63-bit number.
    return str(int(text[:16], 16) >> 2)


def _start_child(
    turn: Turn, run: Run, request: ChildRequest, child: str, iteration: int | None
) -> None:
    turn.record(
        ChildStarted(**turn.about(run), child=child, path=request.path, iteration=iteration)
    )
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
    """Record what the calls of a report used. Returns the error if that exceeds a quota.

    The turn has no other facts yet.
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
    turn.record(QuotaUsed(**turn.about(run), calls=calls, bytes=size, seconds=seconds))
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
