"""Signals (external events and answers to forms): recorded, kept, and offered to steps that wait.

A signal is offered to every step that waits when it comes. If a rule of one of them holds, it is
taken. If not, it is kept, and offered to steps that begin to wait later. A step is offered the next
signal when its rules for the last one have been followed, so signals keep their order.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from noetl.engine.evolve import KEPT_MAX
from noetl.engine.listening import OWN_PREFIXES
from noetl.engine.pipeline.rules import outside
from noetl.engine.program import Program
from noetl.engine.runs import apply_rules, end_by_rule
from noetl.engine.scope import ALIASES, event_value, server_scope
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed, NotAllowed, SignalRefused
from noetl.model import fields as forms
from noetl.model.events import ApprovalReceived, MessageReceived, SignalConsidered, SignalReceived
from noetl.model.facts import Actor
from noetl.model.signals import APPROVAL, TIMER, Listening, may_answer
from noetl.model.spelling import no_such_step
from noetl.model.state import ExecutionState, Run, Signal
from noetl.templates import EventView

DATA_BYTES_MAX = 64 * 1024
_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,199}")
_OURS = frozenset(ALIASES).union(*ALIASES.values())


def received(
    at: float,
    signal_id: str,
    name: str,
    data: object,
    step: str | None,
    actor: Actor | None = None,
    roles: tuple[str, ...] = (),
) -> MessageReceived | ApprovalReceived:
    """The fact that a signal came, from a sender with these roles."""
    said: dict[str, Any] = {"signal_id": signal_id, "name": name, "data": data, "step": step or ""}
    if name == APPROVAL:
        return ApprovalReceived(at=at, actor=actor, roles=roles, **said)
    return MessageReceived(at=at, actor=actor, **said)


def absorb_signal(turn: Turn, signal: MessageReceived | ApprovalReceived) -> None:
    """Record a signal, unless its id is known. Raises before anything has changed."""
    if signal.signal_id in turn.state.heard:
        return
    _check_sender(signal)
    _check_address(turn.program, turn.state, signal)
    asking = _asking(turn.state, signal)
    if asking is not None and isinstance(signal, ApprovalReceived):
        if not may_answer(asking.role, signal.roles):
            raise NotAllowed(f"{_for_others(asking)}. Nothing was changed.")
        answered = forms.answer(asking.form, signal.data)
        if answered.problems:
            raise SignalRefused("; ".join(answered.problems) + ". Nothing was changed.")
        signal = msgspec.structs.replace(signal, data=answered.values)
    turn.record(signal)


def _check_sender(signal: SignalReceived) -> None:
    """Refuse names that are reserved or no names, and data that is too large."""
    name = signal.name
    if not _NAME.fullmatch(name):
        raise SignalRefused(
            f'"{name[:60]}" is not a name for an event. Write letters, digits and dots,'
            " such as message.received or order.shipped."
        )
    if name.startswith(OWN_PREFIXES) or name in _OURS:
        raise SignalRefused(
            f'"{name}" is reserved for events of NoETL itself. Call it message.received,'
            " approval.received, or a name of your own such as order.shipped."
        )
    size = len(msgspec.json.encode(signal.data))
    if size > DATA_BYTES_MAX:
        raise SignalRefused(
            f"the data of the event has {size} bytes, and {DATA_BYTES_MAX} may be sent."
            " Put it where the playbook can fetch it, and send its address."
        )


def _check_address(program: Program, state: ExecutionState, signal: SignalReceived) -> None:
    if signal.step and signal.step not in program.steps:
        raise SignalRefused(no_such_step(signal.step, program.steps))
    is_awaited = any(_is_for(signal, run) for run in state.runs.values())
    if len(state.signals) >= KEPT_MAX and not is_awaited:
        raise SignalRefused(
            f"the execution keeps {KEPT_MAX} events that no step has waited for, and takes no"
            " more until one does. `noetl executions why` shows what it waits for."
        )


def _is_for(signal: SignalReceived, run: Run) -> bool:
    return run.listens is not None and signal.step in ("", run.step)


def _asking(state: ExecutionState, signal: SignalReceived) -> Listening | None:
    """The waiting form that an approval answers, if a step waits with one."""
    if signal.name != APPROVAL:
        return None
    asking = [
        (run.step, run.listens)
        for run in state.runs.values()
        if run.listens is not None and run.listens.form and signal.step in ("", run.step)
    ]
    if len({step for step, _ in asking}) > 1:
        steps = ", ".join(step for step, _ in asking)
        raise SignalRefused(f"several steps wait for an answer: {steps}. Name the step.")
    return asking[0][1] if asking else None


def _for_others(asking: Listening) -> str:
    return f"only somebody with the role {asking.role} may answer this form"


# --- Offering ----------------------------------------------------------------------------------


def deliver(turn: Turn) -> bool:
    """Offer the oldest signal that some free step has not been offered. Returns whether one was."""
    runs = turn.state.runs
    for signal in turn.state.signals.values():
        for run_id in signal.due:
            if is_free(runs[run_id]):
                _offer(turn, runs[run_id], signal)
                return True
    return False


def is_free(run: Run) -> bool:
    """Whether it waits, and no worker still follows the rules for its last event."""
    return run.listens is not None and not run.commands and run.following is None


def _offer(turn: Turn, run: Run, signal: Signal) -> None:
    """Apply the rules of a step to a signal, and end the step if they say so."""
    data, reason = signal.data, ""
    asking = run.listens
    if signal.name == APPROVAL and asking is not None and asking.form:
        answered = forms.answer(asking.form, data)
        data, reason = answered.values, "; ".join(answered.problems)
        if not may_answer(asking.role, signal.roles):
            reason = _for_others(asking)
    if not reason and signal.name != TIMER:
        reason = _mismatch(turn, run, signal.name, data)
    chain = apply_rules(turn, run, outside(signal.name), data=data) if not reason else None
    if chain is not None and not chain.rules and chain.error is not None:
        # A condition could not be evaluated. Data from outside must not fail the execution.
        reason, chain = chain.error.message, None
    turn.record(
        SignalConsidered(
            **turn.about(run),
            signal_id=signal.signal_id,
            taken=chain is not None,
            reason=reason,
        )
    )
    if chain is not None and chain.is_over:
        end_by_rule(turn, run, chain)


def _mismatch(turn: Turn, run: Run, name: str, data: object) -> str:
    """Why an event does not pass the step's `match`; empty if it does."""
    match = turn.program.steps[run.step].match
    if match is None:
        return ""
    event = {"name": name, **event_value(run.step, data)}
    scope = server_scope(
        turn,
        run.step,
        seed=run.step_run_id,
        args=run.args,
        names={"event": EventView(event, ALIASES.get(name, frozenset()))},
    )
    try:
        return "" if match.holds(scope, "`match`") else "`match` does not hold"
    except EvaluationFailed as error:
        return str(error)
