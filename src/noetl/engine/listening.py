"""What becomes of a run when an event of its step has been heard.

    step.enter         before the body        → the body, or the end
    step.exit          when the body is over  → the end, and where the tokens go
    external events    while the step waits   → it goes on waiting, or the end

`complete_run` and `fail_run` are how the body of a step ends: they hear `step.exit` before the run
is over. What the world says to a step that waits is offered by `signalling`.
"""

from __future__ import annotations

from typing import Any

from noetl.engine.actions import ResultProgram
from noetl.engine.cases import exiting
from noetl.engine.ending import record_done, record_failed, record_skipped
from noetl.engine.hearing import decide_next, hear
from noetl.engine.turn import Turn
from noetl.engine.waiting import begin_waiting, is_to_wait
from noetl.model.chains import Chain
from noetl.model.commands import Ending
from noetl.model.events import CommandClosed
from noetl.model.ids import CommandId, StepRunId
from noetl.model.net import Values
from noetl.model.outcome import Outcome, TaskError, ok
from noetl.model.rule_events import CaseProcessed
from noetl.model.state import Run


def end_by_rule(turn: Turn, run: Run, chain: Chain) -> bool:
    """End the run if that is what the rules said. Says whether they did."""
    if chain.skipped is not None:
        record_skipped(turn, run, chain.skipped)
    elif chain.error is not None:
        fail_run(turn, run.step_run_id, chain.error)
    elif run.next is not None or _is_answered(turn, run, chain):
        result, tasks = _so_far(turn, run, chain)
        complete_run(turn, run, result, tasks)
    else:
        return False
    return True


def _is_answered(turn: Turn, run: Run, chain: Chain) -> bool:
    """A step that waits has waited long enough when a rule says what it yields."""
    case = turn.program.steps[run.step].case
    assert case is not None
    return chain.stage == "event" and any(
        isinstance(action, ResultProgram)
        for label in chain.rules
        for action in case.by_label[label].actions
    )


def _so_far(turn: Turn, run: Run, chain: Chain) -> tuple[Any, Values]:
    """What the step has come to: what its tools yielded, else what the event brought."""
    step = turn.program.steps[run.step].step
    if run.progress is None or not step.tasks:
        return chain.data, {}
    several = len(step.tasks) > 1
    return run.progress.previous, dict(run.progress.results) if several else {}


def complete_run(turn: Turn, run: Run, result: Any, tasks: Values | None = None) -> None:
    """The body is through: wait for the world, or hear `step.exit` and end the run."""
    program = turn.program.steps[run.step]
    if is_to_wait(program, run):
        reason = begin_waiting(turn, run, run.yields[0] if run.yields else result)
        if reason is not None:
            fail_run(turn, run.step_run_id, reason)
        return
    named = tasks or {}
    # What a rule said stands, whatever the tools yielded.
    shown = run.yields[0] if run.yields else result
    chain = None
    if program.case is not None:
        leaving = exiting(ok=True, looped=program.step.loop is not None)
        chain = hear(turn, run, leaving, outcome=ok(shown), tasks=named)
    if chain is None:
        record_done(turn, run, shown, named)
    elif chain.is_over:
        leave(turn, run, chain)


def fail_run(turn: Turn, run_id: StepRunId, error: TaskError, result: Any = None) -> None:
    """The body failed: hear `step.exit`, then end the run; whatever works on it must stop."""
    run = turn.state.runs[run_id]
    following = run.following
    chain = None
    if following is None or following.stage != "exit":
        looped = turn.program.steps[run.step].step.loop is not None
        outcome = Outcome(status="error", error=error, result=result)
        chain = hear(turn, run, exiting(ok=False, looped=looped), outcome=outcome)
    if chain is None:
        record_failed(turn, run, error, result)
    elif chain.is_over:
        leave(turn, run, chain)


def leave(turn: Turn, run: Run, chain: Chain) -> None:
    """The rules for the end of the step have spoken: end it."""
    body = chain.outcome
    assert body is not None
    recovered = chain.recovered and run.yields
    if chain.skipped is not None:
        record_skipped(turn, run, chain.skipped)
    elif chain.error is not None:
        record_failed(turn, run, chain.error, body.result)
    elif body.error is not None and not recovered:
        record_failed(turn, run, body.error, body.result)
    else:
        record_done(turn, run, run.yields[0] if run.yields else body.result, chain.tasks)


def followed(turn: Turn, run: Run, command_id: CommandId, ending: Ending) -> Chain:
    """A worker has followed the rules for an event that the server heard.

    Returns the chain as it ended. Whether the run has ended with it is for `end_by_rule` to say,
    and for `leave` if the event was the end of the step.
    """
    chain = run.following
    assert chain is not None
    turn.record(CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    turn.record(
        CaseProcessed(
            at=turn.at, step_run_id=run.step_run_id, step=run.step, trigger_event=chain.event
        )
    )
    ended = Chain(
        stage=chain.stage,
        event=chain.event,
        rules=chain.rules,
        branch=len(chain.rules),
        outcome=chain.outcome,
        tasks=chain.tasks,
        data=chain.data,
        error=ending.error,
        skipped=ending.skipped,
        recovered=ending.recovered,
    )
    if ending.next is not None and ended.error is None:
        ended.error = decide_next(turn, run, ending.next, ending.suppressed)
    return ended
