"""The part of the fold that is about signals: who is still to be offered what.

A signal is offered once to every step that waits when it comes, and if none of them takes it, once
to every step that begins to wait later, until one does. A step that is at work just then is
offered it when it waits again.
"""

from __future__ import annotations

from noetl.model.signals import ApprovalReceived, SignalConsidered, SignalReceived
from noetl.model.state import ExecutionState, Run, Signal, TimerState

HEARD_MAX = 1000
"""Ids that are remembered: one that comes again after so many others counts as new."""
KEPT_MAX = 256
"""Signals that are kept for steps that may wait later; what nobody takes beyond that is gone."""


def hear(state: ExecutionState, fact: SignalReceived) -> None:
    """It came: every step that waits is to be offered it."""
    action = "approval.received" if isinstance(fact, ApprovalReceived) else "message.received"
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
    )


def hear_timer(state: ExecutionState, timer: TimerState) -> None:
    """A timer of a waiting step fired: that step is to be told, and nobody else."""
    if timer.step_run_id is None:
        return
    state.signals[timer.timer_id] = Signal(
        signal_id=timer.timer_id,
        name="timer.fired",
        data={"timer_id": timer.name, "id": timer.name, "fires_at": timer.fires_at},
        taken=True,
        due=[timer.step_run_id],
    )


def begin_listening(state: ExecutionState, run: Run) -> None:
    """A step begins to wait: what came before, and nobody took, is for it, too."""
    for signal in state.signals.values():
        if not signal.taken and signal.step in ("", run.step):
            signal.due.append(run.step_run_id)


def considered(state: ExecutionState, fact: SignalConsidered) -> None:
    """It was offered to one of those who were to be offered it."""
    signal = state.signals[fact.signal_id]
    signal.taken = signal.taken or fact.taken
    _strike(state, signal, fact.step_run_id)


def stop_listening(state: ExecutionState, run: Run) -> None:
    """The run has ended: nothing is for it any more."""
    for signal in list(state.signals.values()):
        _strike(state, signal, run.step_run_id)


def _strike(state: ExecutionState, signal: Signal, run_id: str) -> None:
    if run_id in signal.due:
        signal.due.remove(run_id)
    if not signal.due and (signal.taken or len(state.signals) > KEPT_MAX):
        del state.signals[signal.signal_id]
