"""The log of executions: what a commit writes, and how it is read back.

The events of one write are stored as one row. A decision yields several events at once, and the
cost is per row: encoding, checking and inserting eight of them together takes little longer than
one. A row is found by the seq of its last event; every read ends at the end of a row. The checksum
of a row continues that of the row before it, so a row that changed or is missing breaks the chain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from noetl.errors import StoreError
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.triggers import TriggerChange, TriggerRow
from noetl.store.access import AuditEntry
from noetl.store.checksums import damaged_log
from noetl.store.database import Database
from noetl.store.limits import HOLDING, Slot
from noetl.store.queue import Claim, NewCommand
from noetl.store.records import Summary


class Facts(NamedTuple):
    """Events to append: their number, and their JSON objects separated by commas."""

    size: int
    json: bytes


class EventRow(NamedTuple):
    """One event as read. `seq` counts per execution from 1 without gaps; the fields after it are
    those of the event itself, a JSON object, by which people select events.
    """

    seq: int
    type: str
    at: float
    step: str
    step_run_id: str
    body: bytes
    recorded_at: float = 0.0
    """When a server accepted the report with this event; 0 for events without a report."""


class Write(msgspec.Struct, kw_only=True):
    """Everything that one decision changes in one execution."""

    execution_id: ExecutionId
    seq_before: int
    """The last seq that the decision is based on; 0 for a new execution."""
    events: list[Facts] = []
    commands: list[NewCommand] = []
    closed: list[CommandId] = []
    """Commands that are over: reported, cancelled, lost."""
    timers: list[tuple[str, float]] = []
    """Timers to set: id and time."""
    timers_cleared: list[str] = []
    results: list[tuple[str, bytes]] = []
    """Bodies stored by reference: key and JSON bytes. Writing a key again changes nothing."""
    summary: Summary | None = None
    snapshot: bytes | None = None
    """The state after these events; stored beside the log, which stays complete."""
    vars: dict[str, bytes | None] = {}
    """Execution variables to set (JSON bytes) or delete (None)."""
    audit: list[AuditEntry] = []
    """Audit entries for the external actions that these events record."""
    trigger: TriggerChange | None = None
    """The change of the trigger that started it; if that row has moved, nothing is written."""
    slots: tuple[Slot, ...] = ()
    """The limits of the execution, if this write makes it wait (its summary is PENDING), run, or
    end. It runs only if all of them have room; then it holds a slot of each until it ends.
    """
    full: tuple[str, ...] = ()
    """Set by the store: the write was refused, because these limits have no room."""

    @property
    def seq_after(self) -> int:
        """The last seq of its events."""
        seq = self.seq_before
        for facts in self.events:
            seq += facts.size
        return seq

    def add_rows(self, rows: tuple[TriggerRow, ...]) -> None:
        """Write these rows of triggers, too."""
        change = self.trigger or TriggerChange()
        self.trigger = msgspec.structs.replace(change, rows=(*change.rows, *rows))


class Loaded(NamedTuple):
    """What is needed to rebuild an execution's state: a snapshot, if any, and the events after it,
    in JSON arrays of one or more.
    """

    snapshot_seq: int
    snapshot: bytes | None
    events: list[bytes]


class Selection(NamedTuple):
    """Which events to read, and how many."""

    after: int = 0
    limit: int = 1000
    types: Sequence[str] = ()
    step: str | None = None
    size: int | None = None
    """Stop at this many bytes, even if there are more events."""


class Log(ABC):
    """What every store promises about executions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @abstractmethod
    async def commit(
        self,
        writes: Sequence[Write],
        *,
        tied: Sequence[Collection[ExecutionId]] = (),
        claims: Sequence[Claim] = (),
    ) -> list[ExecutionId]:
        """Commit all of these writes; each execution atomically.

        An execution whose stored seq is no longer `seq_before` has moved: nothing of its write is
        stored and its id is in the answer. So no event is written twice: its seq is its place in
        the log, and its id is derived from that. The other writes are not affected, except those
        tied to it: of executions that are tied together, all are written or none. When this
        returns, the data survives a power failure.

        An execution that would run while one of its limits (`slots`) has no room is refused like
        one that has moved, and its write says so (`full`). Checking for room and taking the slot
        happen in one transaction that excludes all others of that limit.

        Where claims go along (`Work.goes_along`), workers lease in the same transaction what is
        free then, as by `Work.claim`.
        """

    @abstractmethod
    async def load(self, execution_id: ExecutionId) -> Loaded | None:
        """The newest snapshot and the events after it; None if there is no such execution.

        Raises Corrupted if the stored data is not what was written.
        """

    async def events(
        self,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        limit: int = 1000,
        types: Sequence[str] = (),
        step: str | None = None,
        size: int | None = None,
    ) -> list[EventRow]:
        """Events with a seq above `after`, in order. With a `size`, stops once they have that many
        bytes.
        """
        return await self.select(execution_id, Selection(after, limit, types, step, size))

    @abstractmethod
    async def select(self, execution_id: ExecutionId, wanted: Selection) -> list[EventRow]:
        """The selected events, verified together with those before them."""

    async def heads(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, int]:
        """The last seq of each of these that exists."""
        found = await self._database.tuples("heads", executions=list(execution_ids))
        return {execution_id: seq for execution_id, seq, _ in found}

    async def openings(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, bytes]:
        """The first events of each of these that exists, as a JSON array."""
        return dict(await self._database.tuples("openings", executions=list(execution_ids)))

    async def variables(self, execution_id: ExecutionId) -> dict[str, bytes]:
        """Every variable of an execution, as JSON bytes."""
        return dict(await self._database.tuples("vars", execution_id=execution_id))


class LogRow(NamedTuple):
    """Some events of an execution: the seq of the last, a JSON array, the checksum of the row."""

    seq: int
    events: bytes
    checksum: int


class Head(NamedTuple):
    """The end of a log: its last event and the checksum of that."""

    seq: int
    checksum: int


def chain_start(execution_id: ExecutionId) -> int:
    """The initial value of the checksum chain of an execution's log."""
    return crc32(execution_id.encode())


def chain(before: int, seq: int, events: bytes) -> int:
    """The checksum of a row of the log, continuing that of the row before it.

    It covers every column, and through the chain the order of rows and their completeness.
    """
    return crc32(events, crc32(b"%d" % seq, before))


def continues(before: int, seq: int, events: bytes, checksum: int) -> bool:
    """Whether this row, as read, is the one written after the row with checksum `before`."""
    try:
        return chain(before, seq, events) == checksum
    except TypeError:
        return False  # Damage can also change the type of a value.


class _Shown(msgspec.Struct):
    """The fields of an event that people select by."""

    type: str
    at: float
    step: str | None = None
    step_run_id: str | None = None
    recorded_at: float = 0.0


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_shown = msgspec.json.Decoder(_Shown).decode


def no_summary(write: Write) -> StoreError:
    return StoreError(
        f"Execution {write.execution_id} is new, but its first write has no summary."
        " Nothing was kept."
    )


def others_summary(write: Write, summary: Summary) -> StoreError:
    return StoreError(
        f"A write of execution {write.execution_id} carries the summary of"
        f" {summary.execution_id}. Nothing was kept."
    )


def row_of(write: Write, before: int) -> LogRow:
    """The events of a write as the row that follows the one with checksum `before`."""
    seq = write.seq_after
    events = _array(write.events)
    return LogRow(seq, events, chain(before, seq, events))


def slot_rows(write: Write, summary: Summary) -> list[dict[str, Any]]:
    """The limits of an execution that waits or runs, as rows."""
    held = summary.status in HOLDING
    own = {"execution_id": write.execution_id, "requested_at": summary.requested_at, "held": held}
    return [{**slot._asdict(), **own} for slot in write.slots]


def snapshot_row(write: Write, snapshot: bytes, seq: int, checksum: int) -> dict[str, Any]:
    """The snapshot of a log that ends there."""
    return {
        "execution_id": write.execution_id,
        "seq": seq,
        "event_checksum": checksum,
        "body": snapshot,
        "checksum": crc32(snapshot),
    }


def _array(parts: Sequence[Facts]) -> bytes:
    return b"[%b]" % (
        parts[0].json if len(parts) == 1 else b",".join([facts.json for facts in parts])
    )


def events_of(parts: Sequence[Facts], before: int) -> list[EventRow]:
    """The events of one write, which follows the event `before`, as they will be read."""
    last = before + sum([facts.size for facts in parts])
    return list(_events(_array(parts), last))


def follow(rows: Iterable[LogRow], execution_id: ExecutionId, start: Head) -> Iterator[LogRow]:
    """The rows after `start`. Raises Corrupted if the chain breaks."""
    checksum = start.checksum
    for row in rows:
        if not continues(checksum, *row):
            raise damaged_log(execution_id, f"event {row.seq}, or one before it")
        checksum = row.checksum
        yield row


def whole(
    rows: Iterable[LogRow], execution_id: ExecutionId, start: Head, end: Head
) -> Iterator[bytes]:
    """The events from `start` to `end`, in arrays. Raises Corrupted if the log ends elsewhere."""
    last = start
    for row in follow(rows, execution_id, start):
        last = Head(row.seq, row.checksum)
        yield row.events
    if last != end:
        raise damaged_log(execution_id, f"its log ends at event {last.seq} instead of {end.seq}")


def selected(rows: Iterable[LogRow], wanted: Selection) -> list[EventRow]:
    """The selected events; reads no further than necessary.

    A row that has none of them is not parsed: searching for a few bytes takes a hundredth of that.
    """
    types = [mark(type=one) for one in wanted.types]
    step = None if wanted.step is None else mark(step=wanted.step)
    found: list[EventRow] = []
    size = 0
    for row in rows:
        if types and not any(one in row.events for one in types):
            continue
        if step is not None and step not in row.events:
            continue
        for event in _events(row.events, row.seq):
            if (
                event.seq > wanted.after
                and (not wanted.types or event.type in wanted.types)
                and (wanted.step is None or event.step == wanted.step)
            ):
                found.append(event)
                size += len(event.body)
                if len(found) >= wanted.limit or (wanted.size is not None and size >= wanted.size):
                    return found
    return found


def mark(**field: str) -> bytes:
    """A field of an event as encoded. The bytes may occur elsewhere in an event, too."""
    return msgspec.json.encode(field)[1:-1]


def _events(events: bytes, last: int) -> Iterator[EventRow]:
    """The events of a row, whose last has that seq."""
    bodies = _split(events)
    first = last - len(bodies) + 1
    recorded_at = 0.0
    for seq, raw in enumerate(bodies, first):
        body = bytes(raw)
        shown = _shown(body)
        recorded_at = shown.recorded_at or recorded_at
        yield EventRow(
            seq,
            shown.type,
            shown.at,
            shown.step or "",
            shown.step_run_id or "",
            body,
            recorded_at,
        )


HEADS_MAX = 20_000

T = TypeVar("T", bound=tuple[Any, ...])


class Heads(Generic[T]):
    """The ends of logs that a store remembers, so that a commit need not read them first.

    A commit succeeds only if the remembered head is still right, so a wrong one costs one read and
    nothing else. The one that was written longest ago is dropped first.

    A head is a tuple that begins with the seq: of two, the one with the greater seq is the later.
    """

    def __init__(self) -> None:
        self._heads: dict[ExecutionId, T] = {}
        self.get: Callable[[ExecutionId], T | None] = self._heads.get

    def remember(self, execution_id: ExecutionId, head: T) -> None:
        known = self._heads.pop(execution_id, head)
        self._heads[execution_id] = known if known[0] > head[0] else head
        if len(self._heads) > HEADS_MAX:
            self._heads.pop(next(iter(self._heads)))
