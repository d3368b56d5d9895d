"""Executions in memory: the state, the program that moves it, and how much of it is stored.

An execution without open commands is quiet: it waits for an event, a timer or a child, or it has
ended. Its state is in the store, and is read again when something happens to it. A process keeps
the executions that are busy in memory, and a few that are quiet: thousands that wait cost nothing.

Large results that the server's own templates read are fetched before a decision, and kept at hand
(`Live.bodies`) while the execution is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import msgspec

from noetl.control.programs import Programs
from noetl.control.records import no_execution
from noetl.control.watchers import Watchers
from noetl.engine.advance import result_step
from noetl.engine.evolve import evolve
from noetl.engine.program import Program
from noetl.engine.scope import local_names
from noetl.errors import Conflict, Corrupted, NotFound
from noetl.model import refs
from noetl.model.commands import Report
from noetl.model.events import (
    ApprovalReceived,
    Event,
    ExecutionCancelled,
    ExecutionForked,
    ExecutionPaused,
    ExecutionRequested,
    ExecutionResumed,
    MessageReceived,
    StepPatched,
    VarsSet,
    encode,
)
from noetl.model.ids import ExecutionId
from noetl.model.inputs import ChildEnded, Input, LoopEnded, Reported, Start
from noetl.model.net import Values
from noetl.model.state import ExecutionState
from noetl.store.access import AuditEntry
from noetl.store.bodies import Bodies
from noetl.store.limits import Slot
from noetl.store.log import Facts, Loaded, Log, Write
from noetl.store.records import Records, Summary
from noetl.templates import LostView

_decode_events = msgspec.json.Decoder(list[Event]).decode
decode_state = msgspec.json.Decoder(ExecutionState).decode

SNAPSHOT_EVERY = 500
"""Events between two snapshots at least. The distance doubles with the log, so that all snapshots
together cost no more than the log itself."""
ACTS = frozenset(
    [
        *(ExecutionRequested, ExecutionPaused, ExecutionResumed, ExecutionCancelled),
        *(VarsSet, MessageReceived, ApprovalReceived),
    ]
)
"""Facts of actions from outside. Each names its actor."""
_NOTED = ACTS | {ExecutionForked}
"""Facts of which more is stored than the fact: a line of the audit log, or variables."""
AUDITED_MAX = 500
"""Characters of a reason, or of names, that the audit log has."""


def audit_entry(execution_id: ExecutionId, fact: Event) -> AuditEntry | None:
    """The entry of the audit log for an action from outside; None for any other fact."""
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
        return None  # The parent's entry says who started a child.
    return AuditEntry(
        at=fact.at,
        who=str(actor),
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
        """The last seq that is stored."""
        self.snapshot_seq = state.seq
        self.timers = set(state.timers)
        self.key: str | None = None
        """The idempotency key of a new execution. Its row is created with it, and never changes."""
        self.bounded_as: str | None = state.status if state.slots else None
        """The status in which the store knows that it waits for its slots, or holds them."""
        self.bodies: dict[str, Any] = {}
        """Large results that were fetched for it, by the key of their reference."""
        self.has_references = _holds_references(state)

    @property
    def family(self) -> ExecutionId:
        """The first execution of the chain of callers above it; itself if none called it."""
        parent = self.state.parent
        return self.execution_id if parent is None else parent.first

    def add(self, write: Write, facts: tuple[Event, ...]) -> None:
        """Add the facts of a decision to the write that will store them."""
        # Between the brackets: several decisions become one array.
        write.events.append(Facts(len(facts), encode(facts)[1:-1]))
        if not _NOTED.isdisjoint(map(type, facts)):
            self._note(write, facts)

    def _note(self, write: Write, facts: tuple[Event, ...]) -> None:
        """Write actions from outside to the audit log, and variables to their table."""
        for fact in facts:
            if type(fact) not in _NOTED:
                continue
            if type(fact) is ExecutionForked:
                write.vars |= {name: refs.encode(value) for name, value in self.state.vars.items()}
            elif type(fact) is VarsSet:
                write.vars |= {name: refs.encode(value) for name, value in fact.values.items()}
                write.vars |= dict.fromkeys(fact.removed)
            entry = audit_entry(self.execution_id, fact)
            if entry is not None:
                write.audit.append(entry)

    def close(self, write: Write) -> None:
        """Complete the write with what follows from the new state."""
        current = self.state.timers
        if current or self.timers:
            for timer_id in current.keys() - self.timers:
                write.timers.append((timer_id, current[timer_id].fires_at))
            cleared = self.timers.union(write.timers_cleared)
            write.timers_cleared = list(cleared - current.keys())
            self.timers = set(current)
        state, seq = self.state, self.state.seq
        write.summary = summary_of(self.execution_id, state, self.key)
        if state.slots and self.bounded_as != state.status:
            self._bound(write)
        if seq - self.snapshot_seq >= SNAPSHOT_EVERY and seq >= 2 * self.snapshot_seq:
            write.snapshot = refs.encode(state)
            self.snapshot_seq = seq

    def _bound(self, write: Write) -> None:
        """Write its limits if it begins to wait or to run, or has ended."""
        state = self.state
        begins = self.bounded_as in (None, "PENDING") and not state.is_finished
        ends = self.bounded_as is not None and state.is_finished
        if begins or ends:
            write.slots = tuple(
                Slot(name, capacity, state.replaces, state.priority)
                for name, capacity in state.slots.items()
            )
        self.bounded_as = state.status


def summary_of(execution_id: ExecutionId, state: ExecutionState, key: str | None) -> Summary:
    """The row of an execution in this state, as lists show it."""
    steps, waits, waiting = [], "", ""
    for run in state.runs.values():
        steps.append(run.step)
        # A form before other events from outside, and these before a time.
        if run.waiting and run.listens is not None and waits != "form":
            waits, waiting = "form" if run.listens.form else "event", run.step
        elif run.waiting and not run.children and not waits:
            waits, waiting = "timer", run.step
    if len(steps) > 1:
        # What lists say of a wait, they say of the first step.
        steps = sorted(set(steps), key=lambda step: (step != waiting, step))
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
        current_steps=tuple(steps),
        error=state.failure.message if state.failure is not None else None,
        labels=state.labels,
        failed_step=state.failed_step,
        waits=waits,
    )


def fold(loaded: Loaded) -> ExecutionState:
    """The state of a stored execution."""
    state = ExecutionState()
    if loaded.snapshot is not None:
        state = decode_state(loaded.snapshot)
    for events in loaded.events:
        for event in _decode_events(events):
            evolve(state, event)
    return state


# --- Large results that the server reads ----------------------------------------------------------

NO_STEPS: tuple[str, ...] = ()
OWN_RESULT = frozenset({"result", "response", "event", "this", "output", "outcome"})
"""Names under which a step's templates read the result that it ended with."""
WITH_PROGRESS = frozenset(kind for kind in get_args(Event) if "progress" in kind.__struct_fields__)
"""Facts that say where a pipeline stands."""


def _holds_references(state: ExecutionState) -> bool:
    return any(
        refs.holds_reference(value, state.seal)
        for result in state.results.values()
        for value in (result.value, *result.tasks.values())
    )


def may_bring_references(given: Input) -> bool:
    """Whether an input may bring references. Most reports cannot."""
    if type(given) is Reported:
        ending = given.report.ending
        if ending is None:
            return False
        result = ending.result
        if ending.tasks or (type(result) is dict and ("_ref" in result or "results" in result)):
            return True
        for event in given.report.events:
            if type(event) is StepPatched:
                return True
            if type(event) in WITH_PROGRESS:
                progress = event.progress  # type: ignore[union-attr]
                if progress is not None and progress.local:
                    return True
        return False
    return type(given) in (ChildEnded, LoopEnded, Start)


async def fetch_bodies(bodies: Bodies, live: Live, given: Input, write: Write) -> None:
    """Fetch the large results that a decision about this input may read. What the `write` is about
    to store is not in the store yet.
    """
    coming, names = _brought_by(given)
    state, ended = live.state, NO_STEPS
    if type(given) is Start and given.seed is not None:
        # A fork's first state is not its state yet.
        state, ended = given.seed.state, tuple(fact.step for fact, _ in given.seed.ended)
        live.has_references = _holds_references(state)
    if not live.has_references:
        for value in (*coming, *names.values()):
            if refs.holds_reference(value, state.seal):
                live.has_references = True
    if not live.has_references:
        return
    program = live.program
    busy = {run.step for run in state.runs.values()} | {t.step for t in state.tokens.values()}
    busy.update(ended)
    reads = frozenset().union(*(program.reads_ahead[step] for step in busy), frozenset())
    inside = frozenset().union(*(program.reads_inside_ahead[step] for step in busy), frozenset())
    wanted: list[Any] = []
    if "steps" in reads or program.result is not None or inside & (OWN_RESULT | busy):
        wanted += coming
    elif reads & (OWN_RESULT | busy):
        wanted += _without_results(coming, state.seal)
    named = reads
    if program.result is not None:
        named |= {result_step(state)}
        inside |= {result_step(state)}
    for name in state.results if "steps" in reads else named & state.results.keys():
        result = state.results[name]
        values = (result.value, *result.tasks.values())
        is_whole = name in inside or "steps" in reads
        wanted += values if is_whole else _without_results(values, state.seal)
    for own in (names, *map(local_names, state.runs.values())):
        wanted += [own[name] for name in reads & own.keys()]
    missing = [
        one
        for value in wanted
        for one in refs.held_by(value, state.seal)
        if refs.key_of(one, state.seal) not in live.bodies
    ]
    if missing:
        fresh = dict(write.results)
        live.bodies |= await fetched(bodies, live.execution_id, state.seal, missing, fresh)


def _without_results(values: Iterable[Any], seal: str) -> list[Any]:
    """Of these, those of which even the figures are elsewhere: a loop has them at hand, whatever
    its results are.
    """
    return [one for one in values if refs.key_of(one, seal) is not None]


def _brought_by(given: Input) -> tuple[tuple[Any, ...], Values]:
    """Results that come with an input, and names that it sets in its step run."""
    if type(given) is Reported:
        ending = given.report.ending
        if ending is None:
            return (), {}
        return (ending.result, *ending.tasks.values()), _names_left(given.report)
    if type(given) is ChildEnded:
        return (given.fact.result,), {}
    return ((given.result,), {}) if type(given) is LoopEnded else ((), {})


def _names_left(report: Report) -> Values:
    names: Values = {}
    for event in report.events:
        if type(event) is StepPatched:
            names |= event.local
        elif (progress := getattr(event, "progress", None)) is not None:
            names |= progress.local
    return names


async def fetched(
    bodies: Bodies,
    execution_id: ExecutionId,
    seal: str,
    references: Iterable[Any],
    fresh: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """What references of an execution refer to, by key. What is `fresh` is not stored yet."""

    async def get(owner: ExecutionId, key: str) -> bytes:
        return (fresh or {}).get(key) or await body_of(bodies, owner, key)

    found: dict[str, Any] = {}
    for reference in references:
        key = refs.key_of(reference, seal)
        if key is None or key in found:
            continue
        try:
            found[key] = await refs.fetched(refs.real(reference, execution_id, seal), get)
        except (NotFound, Corrupted) as error:
            # The template that reads it fails, and its step; the execution does not stand still.
            found[key] = LostView(str(error))
    return found


async def body_of(bodies: Bodies, execution_id: ExecutionId, key: str) -> bytes:
    """A large result. Raises NotFound."""
    body = await bodies.get(execution_id, key)
    if body is None:
        raise NotFound(f"execution {execution_id} has no result {key}.")
    return body


# --- Memory ---------------------------------------------------------------------------------------

QUIET_KEPT = 200


class Memory:
    """Executions by id; the state of any other comes from the store."""

    def __init__(
        self,
        log: Log,
        records: Records,
        programs: Programs,
        watchers: Watchers,
        *,
        is_shared: bool,
    ) -> None:
        self._log = log
        self._records = records
        self._programs = programs
        self._watchers = watchers
        self.is_shared = is_shared
        """Other processes write to this database: memory may be older than the store."""
        self._live: dict[ExecutionId, Live] = {}
        self.find: Callable[[ExecutionId], Live | None] = self._live.get
        """An execution that is in memory."""
        self._quiet: dict[ExecutionId, None] = {}
        """Executions that may be dropped, the one that has been quiet longest first."""
        self._unverified: list[ExecutionId] = []
        """Busy executions that this round has still to compare with the store."""
        self._reading: dict[ExecutionId, object] = {}
        """Executions that are being read. One that is dropped meanwhile is read again, because the
        first read may be older."""

    def put(self, live: Live) -> None:
        self._reading.pop(live.execution_id, None)
        self._live[live.execution_id] = live

    async def refuse_taken_key(self, live: Live) -> None:
        """Raises Conflict if another execution was started under its idempotency key."""
        known = await self._records.by_key(live.key) if live.key is not None else None
        if known is not None:
            raise Conflict(f"execution {known.execution_id} was started under the same key.")

    def drop(self, execution_id: ExecutionId) -> None:
        """What is in memory is not what is stored: read it again when needed."""
        self._live.pop(execution_id, None)
        self._quiet.pop(execution_id, None)
        self._reading.pop(execution_id, None)

    async def get(self, execution_id: ExecutionId) -> Live:
        """The execution, read from the store if need be."""
        while (live := self._live.get(execution_id)) is None:
            reading = self._reading.setdefault(execution_id, object())
            try:
                read = await self.read(execution_id)
            except BaseException:
                self._reading.pop(execution_id, None)
                raise
            if self._reading.get(execution_id) is reading:
                self.put(read)
                self.note(read)
                if self.is_shared:
                    # Memory is as new as the store now, so no comparison would show any more that
                    # those who watch it were not told of something.
                    self._watchers.doubt(execution_id)
        return live

    async def read(self, execution_id: ExecutionId) -> Live:
        """The execution as it is stored, whatever is in memory."""
        loaded = await self._log.load(execution_id)
        if loaded is None:
            raise no_execution(execution_id)
        state = fold(loaded)
        live = Live(execution_id, await self._programs.by_digest(state.digest), state)
        live.snapshot_seq = loaded.snapshot_seq
        return live

    def note(self, live: Live) -> None:
        """Memory and store agree: the execution may be dropped once it is quiet."""
        self._quiet.pop(live.execution_id, None)
        if not live.state.holders:
            self._quiet[live.execution_id] = None

    def busy(self, limit: int | None = None) -> list[ExecutionId]:
        """The next so many that are not quiet, in turn; None: all of them.

        Another server may have continued them. Only quiet executions are dropped, so without a
        comparison these would stay for ever.
        """
        if limit is None or not self._unverified:
            self._unverified = list(self._live.keys() - self._quiet.keys())
        chosen = self._unverified[:limit]
        del self._unverified[:limit]
        return chosen

    def forget(self) -> None:
        """Drop what has been quiet longest. Only while nothing is being decided."""
        while len(self._quiet) > QUIET_KEPT:
            execution_id = next(iter(self._quiet))
            self.drop(execution_id)
