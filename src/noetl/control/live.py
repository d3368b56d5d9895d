"""Executions in memory: the state, the program that moves it, and what of it is stored."""

from __future__ import annotations

import msgspec

from noetl.engine.evolve import evolve
from noetl.engine.program import Program
from noetl.engine.turn import Decision
from noetl.model import events as facts
from noetl.model import refs
from noetl.model.events import (
    Event,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionRequested,
    ExecutionResumed,
    VarsSet,
)
from noetl.model.ids import ExecutionId
from noetl.model.signals import ApprovalReceived, MessageReceived
from noetl.model.state import ExecutionState
from noetl.store.access import NAMELESS, AuditEntry
from noetl.store.base import Facts, Loaded, Slot, Summary, Write

_decode_events = msgspec.json.Decoder(list[Event]).decode

SNAPSHOT_EVERY = 500
"""Events between snapshots at least; it doubles with the log, so that all of them together cost
no more than the log itself."""
ACTS = frozenset(
    [
        *(ExecutionRequested, ExecutionPaused, ExecutionResumed, ExecutionCancelled),
        *(VarsSet, MessageReceived, ApprovalReceived),
    ]
)
"""What somebody may do to an execution from outside. The facts say who it was."""
AUDITED_MAX = 500
"""Characters of a reason, or of names, that the audit log has."""


def audit_entry(execution_id: ExecutionId, fact: Event) -> AuditEntry | None:
    """Who did what to which object; None for what no one outside did."""
    match fact:
        case ExecutionRequested():
            version = f" version {fact.version}" if fact.version is not None else ""
            action, target = "execution.start", f"{fact.path}{version}"
            if fact.rerun_of:
                verb = "rerun" if fact.forked_at is None else "fork"
                action, target = f"execution.{verb}", fact.rerun_of
        case ExecutionPaused() | ExecutionResumed() | ExecutionCancelled():
            words = {ExecutionPaused: "pause", ExecutionResumed: "resume"}
            action, target = f"execution.{words.get(type(fact), 'cancel')}", execution_id
        case VarsSet():
            action = "variable.put" if fact.values else "variable.delete"
            target = ", ".join([*fact.values, *fact.removed])
        case ApprovalReceived():
            action, target = "execution.approval", fact.step or execution_id
        case MessageReceived():
            action, target = "execution.signal", fact.name
        case _:
            return None
    actor = fact.actor
    if actor is None or actor.kind == "playbook":
        return None  # of a child, the event of its parent tells who
    return AuditEntry(
        at=fact.at,
        who=str(actor) if actor.kind in ("schedule", "hook") else actor.name or NAMELESS,
        action=action,
        # PostgreSQL cannot hold NUL in a text.
        target=target[:AUDITED_MAX].replace("\0", "\ufffd"),
        execution_id=execution_id,
        details=getattr(fact, "reason", "")[:AUDITED_MAX].replace("\0", "\ufffd"),
    )


class Live:
    """One execution and what is known of its stored form."""

    __slots__ = (
        "bodies",
        "bounded_as",
        "execution_id",
        "has_references",
        "key",
        "program",
        "snapshot_seq",
        "state",
        "stored",
        "timers",
    )

    def __init__(self, execution_id: ExecutionId, program: Program, state: ExecutionState) -> None:
        self.execution_id = execution_id
        self.program = program
        self.state = state
        self.stored = state.seq
        """The last seq that is safely stored."""
        self.snapshot_seq = state.seq
        self.timers = set(state.timers)
        self.key: str | None = None
        self.bounded_as: str | None = state.status if state.slots else None
        """The status in which the store knows it to wait for its slots, or to hold them."""
        self.bodies: set[str] = set()
        """Keys of large results that were fetched for it."""
        self.has_references = any(
            refs.holds_reference(value, state.seal)
            for result in state.results.values()
            for value in (result.value, *result.tasks.values())
        )

    @property
    def family(self) -> ExecutionId:
        """The execution that it is a part of, by whoever called it: perhaps itself."""
        parent = self.state.parent
        return self.execution_id if parent is None else parent.first

    def add(self, write: Write, decision: Decision) -> None:
        """Put a decision's facts into the write that will store them."""
        if decision.events:
            # Between the brackets: several decisions become one array.
            write.events.append(Facts(len(decision.events), facts.encode(decision.events)[1:-1]))
        for event in decision.events:
            if type(event) not in ACTS:
                continue
            if type(event) is VarsSet:
                # Beside the log, for whoever looks at variables with SQL.
                write.vars |= {name: refs.encode(value) for name, value in event.values.items()}
                write.vars |= dict.fromkeys(event.removed)
            entry = audit_entry(self.execution_id, event)
            if entry is not None:
                write.audit.append(entry)

    def close(self, write: Write) -> None:
        """Complete the write with what follows from the state it leaves."""
        current = self.state.timers
        if current or self.timers:
            for timer_id in current.keys() - self.timers:
                write.timers.append((timer_id, current[timer_id].fires_at))
            cleared = self.timers.union(write.timers_cleared)
            write.timers_cleared = list(cleared - current.keys())
            self.timers = set(current)
        write.summary = self.summary()
        if self.state.slots and self.bounded_as != self.state.status:
            self._bound(write)
        if self.state.seq - self.snapshot_seq >= max(SNAPSHOT_EVERY, self.snapshot_seq):
            write.snapshot = refs.encode(self.state)
            self.snapshot_seq = self.state.seq

    def _bound(self, write: Write) -> None:
        """Say to what limits it is held, where it begins to wait or to run, or has ended."""
        state = self.state
        begins = self.bounded_as in (None, "PENDING") and not state.is_finished
        ends = self.bounded_as is not None and state.is_finished
        if begins or ends:
            write.slots = tuple(
                Slot(name, capacity, state.replaces, state.priority)
                for name, capacity in state.slots.items()
            )
        self.bounded_as = state.status

    def summary(self) -> Summary:
        return summary_of(self.execution_id, self.state, self.key)


def summary_of(execution_id: ExecutionId, state: ExecutionState, key: str | None) -> Summary:
    """The row that lists show of an execution in this state."""
    return Summary(
        execution_id=execution_id,
        path=state.path,
        version=state.version,
        digest=state.digest,
        status=state.status,
        requested_at=state.requested_at,
        ended_at=state.ended_at,
        parent_execution_id=state.parent.execution_id if state.parent is not None else None,
        idempotency_key=key,
        current_steps=tuple(sorted({run.step for run in state.runs.values()})),
        error=state.failure.message if state.failure is not None else None,
        labels=state.labels,
        failed_step=state.failed_step,
        waits=_waits(state),
    )


def _waits(state: ExecutionState) -> str:
    """What from outside one of its steps waits for: a form before other events."""
    found = ""
    for run in state.runs.values():
        if run.waiting and run.listens is not None:
            if run.listens.form:
                return "form"
            found = "event"
    return found


def fold(loaded: Loaded) -> ExecutionState:
    """The state that a stored execution is in."""
    state = ExecutionState()
    if loaded.snapshot is not None:
        state = _decode_state(loaded.snapshot)
    for events in loaded.events:
        for event in _decode_events(events):
            evolve(state, event)
    return state


def key_of(loaded: Loaded) -> str | None:
    """The idempotency key of a stored execution, as far as its first event is at hand."""
    if loaded.snapshot is None and loaded.events:
        first = _decode_events(loaded.events[0])[0]
        if isinstance(first, ExecutionRequested):
            return first.key
    return None


def _decode_state(snapshot: bytes) -> ExecutionState:
    return msgspec.json.decode(snapshot, type=ExecutionState)
