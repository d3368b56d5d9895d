"""The log as stored: the events of one write are one row.

A decision makes several events at once, and what a row costs is the row: to encode, check and
insert eight of them together takes little longer than one. A row is found by the seq of its last
event; every read ends at the end of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.base import EventRow, Write
from noetl.store.checksums import Head, chain, continues, damaged_log


class LogRow(NamedTuple):
    """Some events of an execution: the seq of the last, a JSON array, the checksum of the row."""

    seq: int
    events: bytes
    checksum: int


class _Shown(msgspec.Struct):
    """What of an event people choose by."""

    type: str
    at: float
    step: str | None = None
    step_run_id: str | None = None
    recorded_at: float = 0.0


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_shown = msgspec.json.Decoder(_Shown).decode


def row_of(write: Write, before: int) -> LogRow:
    """The events of a write as the row that follows the one with checksum `before`."""
    seq = write.seq_after
    events = b"[%b]" % b",".join([facts.json for facts in write.events])
    return LogRow(seq, events, chain(before, seq, events))


def follow(rows: Iterable[LogRow], execution_id: ExecutionId, start: Head) -> Iterator[LogRow]:
    """The rows after `start`; raises Corrupted where the chain breaks."""
    checksum = start.checksum
    for row in rows:
        if not continues(checksum, *row):
            raise damaged_log(execution_id, f"event {row.seq}, or one before it")
        checksum = row.checksum
        yield row


def whole(
    rows: Iterable[LogRow], execution_id: ExecutionId, start: Head, end: Head
) -> Iterator[bytes]:
    """The events from `start` to `end`, in arrays; raises Corrupted if the log ends elsewhere."""
    last = start
    for row in follow(rows, execution_id, start):
        last = Head(row.seq, row.checksum)
        yield row.events
    if last != end:
        raise damaged_log(execution_id, f"its log ends at event {last.seq} instead of {end.seq}")


class Selection(NamedTuple):
    """Which events somebody asks for, and how many."""

    after: int = 0
    limit: int = 1000
    types: Sequence[str] = ()
    step: str | None = None
    size: int | None = None
    """So many bytes are enough, even if there are more events."""


def selected(rows: Iterable[LogRow], wanted: Selection) -> list[EventRow]:
    """The events that are asked for; reads no further than that takes.

    A row that has none of them is not parsed: to look for a few bytes takes a hundredth of that.
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
        for event in _events(row):
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
    """How a field of an event is written. The bytes may occur elsewhere in an event, too."""
    return msgspec.json.encode(field)[1:-1]


def _events(row: LogRow) -> Iterator[EventRow]:
    bodies = _split(row.events)
    first = row.seq - len(bodies) + 1
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
