"""How decisions become rows: the check that nobody was faster, then one bulk insert per table."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any
from zlib import crc32

import msgspec

from noetl.errors import StoreError
from noetl.model.ids import ExecutionId
from noetl.store.base import NewCommand, Summary, Write
from noetl.store.checksums import Head, chain_start
from noetl.store.log import row_of
from noetl.store.sqlite.queries import QUERIES

encode_json = msgspec.json.Encoder().encode

# In this order a batch is written: an execution before what belongs to it, and setting before
# clearing, so that what one write both sets and clears is gone afterwards.
STATEMENTS = (
    "insert_execution",
    "update_execution",
    "progress_execution",
    "advance_execution",
    "insert_events",
    "insert_command",
    "insert_lease",
    "close_lease",
    "close_command",
    "set_timer",
    "clear_timer",
    "set_var",
    "delete_var",
    "put_result",
    "put_snapshot",
)

Filed = Mapping[tuple[ExecutionId, str], tuple[str, int]]
"""Bodies that are in files already: (execution, key) → sha256 and size."""


def commit(
    db: sqlite3.Connection,
    writes: Sequence[Write],
    filed: Filed,
    tied: Sequence[Collection[ExecutionId]],
    *,
    one_by_one: bool = False,
) -> list[ExecutionId]:
    """Write all of these except those whose execution has moved; the ids of the latter.

    Keys that exist already are left for SQLite to refuse, since they almost never do.
    `one_by_one` looks first, and so finds out whose they are.
    """
    if tied:
        db.execute("SAVEPOINT tied")
    moved = _commit(db, writes, filed, one_by_one)
    dragged = {one for group in tied if not set(moved).isdisjoint(group) for one in group}
    if dragged.difference(moved):
        db.execute("ROLLBACK TO tied")
        rest = [write for write in writes if write.execution_id not in dragged]
        refused = [write.execution_id for write in writes if write.execution_id in dragged]
        return refused + _commit(db, rest, filed, one_by_one)
    return moved


def _commit(
    db: sqlite3.Connection, writes: Sequence[Write], filed: Filed, one_by_one: bool
) -> list[ExecutionId]:
    moved = []
    batch = _Batch(db, filed)
    for write in writes:
        if one_by_one or write.execution_id in batch.executions:
            batch.flush()
        row = db.execute(QUERIES["standing"], (write.execution_id,)).fetchone()
        seq, checksum, status = row or (0, chain_start(write.execution_id), None)
        if seq != write.seq_before or (one_by_one and _key_is_taken(db, write)):
            moved.append(write.execution_id)
        else:
            batch.add(write, Head(seq, checksum), status)
    batch.flush()
    return moved


def _key_is_taken(db: sqlite3.Connection, write: Write) -> bool:
    """Whether another execution was started under the same idempotency key."""
    if write.summary is None or write.summary.idempotency_key is None:
        return False
    owner = db.execute(QUERIES["key_owner"], (write.summary.idempotency_key,)).fetchone()
    return owner is not None and owner[0] != write.execution_id


class _Batch:
    """Rows to write, by statement. Holds one write per execution at most."""

    def __init__(self, db: sqlite3.Connection, filed: Filed) -> None:
        self._db = db
        self._filed = filed
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in STATEMENTS}
        self.executions: set[ExecutionId] = set()

    def flush(self) -> None:
        for name, rows in self._rows.items():
            if rows:
                self._db.executemany(QUERIES[name], rows)
                rows.clear()
        self.executions.clear()

    def add(self, write: Write, head: Head, status: str | None) -> None:
        """Take a write to an execution whose log ends there; without a status it is a new one."""
        execution_id, rows = write.execution_id, self._rows
        self.executions.add(execution_id)
        end = self._add_events(write, head) if write.events else head
        self._add_execution(write, end, status)
        for new in write.commands:
            statement, row = _command_row(execution_id, new)
            rows[statement].append(row)
        closed = [(execution_id, command_id) for command_id in write.closed]
        rows["close_lease"] += closed
        rows["close_command"] += closed
        rows["set_timer"] += [(execution_id, timer, at) for timer, at in write.timers]
        rows["clear_timer"] += [(execution_id, timer) for timer in write.timers_cleared]
        for name, value in write.vars.items():
            if value is None:
                rows["delete_var"].append((execution_id, name))
            else:
                rows["set_var"].append((execution_id, name, value))
        for key, body in write.results:
            rows["put_result"].append(result_row(execution_id, key, body, self._filed))
        if write.snapshot is not None:
            rows["put_snapshot"].append(
                (execution_id, end.seq, end.checksum, write.snapshot, crc32(write.snapshot))
            )

    def _add_events(self, write: Write, head: Head) -> Head:
        """Chain the events to the log; where it ends then."""
        row = row_of(write, head)
        self._rows["insert_events"].append((write.execution_id, *row))
        return Head(row.seq, row.checksum)

    def _add_execution(self, write: Write, end: Head, status: str | None) -> None:
        summary = write.summary
        if summary is not None and summary.execution_id != write.execution_id:
            raise StoreError(
                f"A write of execution {write.execution_id} carries the summary of"
                f" {summary.execution_id}. Nothing was kept."
            )
        if status is None:
            if summary is None:
                raise StoreError(
                    f"Execution {write.execution_id} is new, but its first write has no summary."
                    " Nothing was kept."
                )
            self._rows["insert_execution"].append(_execution_row(summary, end))
        elif summary is not None and summary.status == status:
            row = (*end, _steps(summary), summary.error, write.execution_id)
            self._rows["progress_execution"].append(row)
        elif summary is not None:
            changing = (summary.status, summary.ended_at, _steps(summary), summary.error)
            self._rows["update_execution"].append((*end, *changing, write.execution_id))
        elif write.events:
            self._rows["advance_execution"].append((*end, write.execution_id))


def _execution_row(summary: Summary, end: Head) -> tuple[Any, ...]:
    return (
        summary.execution_id,
        *end,
        summary.path,
        summary.version,
        summary.digest,
        summary.status,
        summary.requested_at,
        summary.ended_at,
        summary.parent_execution_id,
        summary.idempotency_key,
        _steps(summary),
        summary.error,
    )


def _steps(summary: Summary) -> str:
    return encode_json(summary.current_steps).decode()


def _command_row(execution_id: ExecutionId, new: NewCommand) -> tuple[str, tuple[Any, ...]]:
    """What a command goes into, and its row there."""
    command, worker_id, expires_at = new
    body = encode_json(command)
    row = (execution_id, command.command_id, command.pool, body, crc32(body))
    if worker_id is None and expires_at is None:
        return "insert_command", (*row, command.priority)
    return "insert_lease", (*row, worker_id, expires_at)


def result_row(execution_id: ExecutionId, key: str, body: bytes, filed: Filed) -> tuple[Any, ...]:
    """A body in its row, or where it has gone to a file, the reference to it."""
    if in_file := filed.get((execution_id, key)):
        return (execution_id, key, *in_file, None)
    return (execution_id, key, sha256(body).hexdigest(), len(body), body)
