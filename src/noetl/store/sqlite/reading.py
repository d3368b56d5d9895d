"""Executions as they were written, verified on the way out."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.base import EventRow, Loaded, Summary
from noetl.store.checksums import Head, agrees, chain_start, continues, damaged_log
from noetl.store.sqlite.queries import QUERIES
from noetl.store.sqlite.working import verify_commands

_decode_steps = msgspec.json.Decoder(tuple[str, ...]).decode


def load(db: sqlite3.Connection, execution_id: ExecutionId) -> Loaded | None:
    """Snapshot and events after it, checked against each other and the end of the log."""
    head = db.execute(QUERIES["head"], (execution_id,)).fetchone()
    if head is None:
        return None
    seq, checksum, snapshot = _snapshot(db, execution_id)
    bodies = list(follow_log(db, execution_id, Head(seq, checksum), Head(*head)))
    verify_commands(db, execution_id)
    return Loaded(seq, snapshot, bodies)


def follow_log(
    db: sqlite3.Connection, execution_id: ExecutionId, start: Head, end: Head
) -> Iterator[bytes]:
    """Bodies of the events from `start` to the end of the log; raises Corrupted where it breaks."""
    seq, checksum = start
    for row in db.execute(QUERIES["events_after"], (execution_id, seq)):
        event = EventRow._make(row[:7])
        seq += 1
        if event.seq != seq or not continues(checksum, event, row[7]):
            raise damaged_log(execution_id, f"event {seq} is missing or changed")
        checksum = row[7]
        yield event.body
    if (seq, checksum) != end:
        raise damaged_log(execution_id, f"its log ends at event {seq} instead of {end.seq}")


def _snapshot(db: sqlite3.Connection, execution_id: ExecutionId) -> tuple[int, int, bytes | None]:
    """Where reading the log starts: seq and checksum of the last event folded in, and the fold."""
    row = db.execute(QUERIES["snapshot"], (execution_id,)).fetchone()
    if row is None:
        return 0, chain_start(execution_id), None
    seq, event_checksum, body, checksum = row
    if not agrees(body, checksum):
        raise damaged_log(execution_id, "its snapshot has changed")
    return seq, event_checksum, body


def events(
    db: sqlite3.Connection,
    execution_id: ExecutionId,
    after: int,
    limit: int,
    types: Sequence[str],
    step: str | None,
) -> list[EventRow]:
    """A selection of events, each verified together with the one before it."""
    chosen = {
        "execution_id": execution_id,
        "after": after,
        "limit": limit,
        "types": msgspec.json.encode(types).decode() if types else None,
        "step": step,
    }
    found = []
    for row in db.execute(QUERIES["events_page"], chosen):
        event = EventRow._make(row[:7])
        before = chain_start(execution_id) if event.seq == 1 else row[8]
        if before is None or not continues(before, event, row[7]):
            raise damaged_log(execution_id, f"event {event.seq} or the one before it has changed")
        found.append(event)
    return found


def summary(db: sqlite3.Connection, execution_id: ExecutionId) -> Summary | None:
    row = db.execute(QUERIES["summary"], (execution_id,)).fetchone()
    return _summary(row) if row else None


def by_key(db: sqlite3.Connection, key: str) -> Summary | None:
    row = db.execute(QUERIES["summary_by_key"], (key,)).fetchone()
    return _summary(row) if row else None


def summaries(
    db: sqlite3.Connection,
    status: str | None,
    path: str | None,
    parent: ExecutionId | None,
    since: float | None,
    before: tuple[float, ExecutionId] | None,
    limit: int,
) -> list[Summary]:
    """Each way to ask has a query that walks the index made for it."""
    if parent is not None:
        name = "summaries_of_parent"
    elif path is not None:
        name = "summaries_of_path"
    elif status is not None:
        name = "summaries_of_status"
    else:
        name = "summaries"
    before_at, before_id = before or (math.inf, "")
    chosen = {
        "status": status,
        "path": path,
        "parent": parent,
        "since": -math.inf if since is None else since,
        "before_at": before_at,
        "before_id": before_id,
        "limit": limit,
    }
    return [_summary(row) for row in db.execute(QUERIES[name], chosen)]


def _summary(row: tuple[Any, ...]) -> Summary:
    try:
        current_steps = _decode_steps(row[9])
    except msgspec.DecodeError:
        # Damaged. A list shows it as it is, for the sake of the other rows.
        current_steps = (row[9],)
    return Summary(
        execution_id=row[0],
        path=row[1],
        version=row[2],
        digest=row[3],
        status=row[4],
        requested_at=row[5],
        ended_at=row[6],
        parent_execution_id=row[7],
        idempotency_key=row[8],
        current_steps=current_steps,
        error=row[10],
    )


def unfinished(db: sqlite3.Connection) -> list[ExecutionId]:
    """Oldest first."""
    return [execution_id for (execution_id,) in db.execute(QUERIES["unfinished"])]


def heads(db: sqlite3.Connection, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, int]:
    chosen = {"executions": msgspec.json.encode(list(execution_ids)).decode()}
    return dict(db.execute(QUERIES["heads"], chosen).fetchall())


def variables(db: sqlite3.Connection, execution_id: ExecutionId) -> dict[str, bytes]:
    return dict(db.execute(QUERIES["vars"], (execution_id,)).fetchall())
