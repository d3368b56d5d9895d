"""Executions as they were written, verified on the way out."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from noetl.model.execution_query import Wanted
from noetl.model.ids import ExecutionId
from noetl.store import listing, log
from noetl.store.base import EventRow, Loaded, SlotUse, Summary
from noetl.store.checksums import Head, agrees, chain_start, damaged_log
from noetl.store.sqlite.queries import QUERIES
from noetl.store.sqlite.working import verify_commands


def load(db: sqlite3.Connection, execution_id: ExecutionId) -> Loaded | None:
    """Snapshot and events after it, checked against each other and the end of the log."""
    head = db.execute(QUERIES["head"], (execution_id,)).fetchone()
    if head is None:
        return None
    seq, checksum, snapshot = _snapshot(db, execution_id)
    events = list(follow_log(db, execution_id, Head(seq, checksum), Head(*head)))
    verify_commands(db, execution_id)
    return Loaded(seq, snapshot, events)


def follow_log(
    db: sqlite3.Connection, execution_id: ExecutionId, start: Head, end: Head
) -> Iterator[bytes]:
    """The events from `start` to the end of the log; raises Corrupted where it breaks."""
    return log.whole(_rows_after(db, execution_id, start.seq), execution_id, start, end)


def _rows_after(
    db: sqlite3.Connection, execution_id: ExecutionId, seq: int
) -> Iterator[log.LogRow]:
    return map(log.LogRow._make, db.execute(QUERIES["log_after"], (execution_id, seq)))


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
    db: sqlite3.Connection, execution_id: ExecutionId, wanted: log.Selection
) -> list[EventRow]:
    """A selection of events, verified together with what is before them."""
    before = db.execute(QUERIES["log_before"], (execution_id, wanted.after)).fetchone()
    start = Head(*before) if before else Head(0, chain_start(execution_id))
    rows = log.follow(_rows_after(db, execution_id, start.seq), execution_id, start)
    return log.selected(rows, wanted)


def summary(db: sqlite3.Connection, execution_id: ExecutionId) -> Summary | None:
    row = db.execute(QUERIES["summary"], (execution_id,)).fetchone()
    return _summary(row) if row else None


def by_key(db: sqlite3.Connection, key: str) -> Summary | None:
    row = db.execute(QUERIES["summary_by_key"], (key,)).fetchone()
    return _summary(row) if row else None


DIALECT = listing.Dialect(
    QUERIES, re.compile(r"(?<!:):(\w+)"), ":{}", lambda pattern: pattern.replace("[", "[[]")
)


def found(
    db: sqlite3.Connection,
    name: str,
    wanted: Wanted,
    now: float,
    values: dict[str, Any] | None = None,
) -> list[tuple[Any, ...]]:
    """Every row of the answer to a statement with the conditions of a query."""
    statement, chosen = listing.composed(DIALECT, name, wanted, now)
    return db.execute(statement, {**chosen, **(values or {})}).fetchall()


def summaries(
    db: sqlite3.Connection,
    wanted: Wanted,
    now: float,
    before: tuple[float, ExecutionId] | None,
    limit: int,
) -> list[Summary]:
    rows = found(db, "summaries", wanted, now, listing.page(before, limit))
    return [_summary(row) for row in rows]


def label_counts(
    db: sqlite3.Connection, label: str, since: float | None, limit: int
) -> list[tuple[str, int]]:
    return db.execute(QUERIES["label_counts"], listing.counts(label, since, limit)).fetchall()


def slot_uses(db: sqlite3.Connection, names: Collection[str], limit: int) -> list[SlotUse]:
    chosen = {"names": msgspec.json.encode(list(names)).decode(), "limit": limit}
    found = db.execute(QUERIES["slot_holders"], chosen)
    return [SlotUse(one, name, most, bool(held), path) for one, name, most, held, path in found]


def admissible(db: sqlite3.Connection, limit: int) -> list[ExecutionId]:
    return [one for (one,) in db.execute(QUERIES["admissible"], {"limit": limit})]


def displaced(db: sqlite3.Connection, limit: int) -> list[tuple[ExecutionId, ExecutionId]]:
    return db.execute(QUERIES["displaced"], {"limit": limit}).fetchall()


def _summary(row: tuple[Any, ...]) -> Summary:
    return listing.summary_of(dict(zip(Summary.__struct_fields__, row, strict=True)))


def unfinished(db: sqlite3.Connection) -> list[ExecutionId]:
    """Oldest first."""
    return [execution_id for (execution_id,) in db.execute(QUERIES["unfinished"])]


def heads(db: sqlite3.Connection, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, int]:
    chosen = {"executions": msgspec.json.encode(list(execution_ids)).decode()}
    return dict(db.execute(QUERIES["heads"], chosen).fetchall())


def openings(
    db: sqlite3.Connection, execution_ids: Collection[ExecutionId]
) -> dict[ExecutionId, bytes]:
    chosen = {"executions": msgspec.json.encode(list(execution_ids)).decode()}
    return dict(db.execute(QUERIES["openings"], chosen).fetchall())


def variables(db: sqlite3.Connection, execution_id: ExecutionId) -> dict[str, bytes]:
    return dict(db.execute(QUERIES["vars"], (execution_id,)).fetchall())
