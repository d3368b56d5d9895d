"""Quotas: what the calls of a run, and of an execution, may use together.

What a report tells of calls is added up and recorded beside it (`quota.used`), so it is counted
once, whichever workers made the calls and whatever was restarted meanwhile. Bytes and seconds are
known when a call has ended; calls are counted when they begin, and a worker that counts them waits
until that is recorded, so that no call is made beyond a quota.

What undoes an execution, or runs because it failed, does not count for the execution: it must be
possible although a quota is used up.
"""

from __future__ import annotations

from collections.abc import Iterable

from noetl.engine.turn import Turn
from noetl.model import refs
from noetl.model.events import ChildStarted, Event, QuotaUsed, TaskDone, TaskStarted
from noetl.model.net import Quotas
from noetl.model.outcome import Outcome, TaskError
from noetl.model.rule_events import SinkProcessed, SinkStarted
from noetl.model.state import Run, Used


def meter(turn: Turn, run: Run, told: Iterable[Event]) -> TaskError | None:
    """Record what these facts say of calls; why the run must end, if it used too much."""
    calls, size, seconds = 0, 0, 0.0
    for fact in told:
        if isinstance(fact, TaskStarted | SinkStarted | ChildStarted):
            calls += 1
        elif isinstance(fact, TaskDone | SinkProcessed):
            size += _size(fact.outcome, turn.state.seal)
            seconds += fact.outcome.meta.duration
    if not (calls or size or seconds):
        return None
    turn.record(
        QuotaUsed(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            calls=calls,
            bytes=size,
            seconds=seconds,
        )
    )
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
