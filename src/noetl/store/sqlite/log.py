"""The log of executions in SQLite: how decisions become rows, and rows events again.

A commit is one bulk statement per table, and the check that nobody was faster. What is read is
verified on the way out. The promise is written in `noetl.store.log`.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from noetl.model.ids import ExecutionId
from noetl.model.triggers import TriggerChange
from noetl.store import log
from noetl.store.checksums import agrees, damaged_log
from noetl.store.limits import HOLDING
from noetl.store.log import (
    EventRow,
    Head,
    Heads,
    Loaded,
    Write,
    chain_start,
    no_summary,
    others_summary,
    row_of,
    slot_rows,
    snapshot_row,
)
from noetl.store.queue import Claim, NewCommand
from noetl.store.records import Summary, columns_of_summary
from noetl.store.sqlite.bodies import Filed, SqliteBodies, result_row
from noetl.store.sqlite.database import (
    QUERIES,
    SqliteDatabase,
    SqliteTransaction,
    encode_json,
    finished,
)
from noetl.store.sqlite.faults import FORESEEN, fault
from noetl.store.sqlite.queue import lease, verify_commands
from noetl.store.triggers import write_change

# In this order a batch is written: an execution before what belongs to it, and setting before
# clearing, so that what one write both sets and clears is gone afterwards.
STATEMENTS = (
    "insert_execution",
    "insert_label",
    "update_execution",
    "progress_execution",
    "advance_execution",
    "insert_events",
    "insert_command",
    "insert_lease",
    "close_lease",
    "set_timer",
    "clear_timer",
    "set_var",
    "delete_var",
    "put_result",
    "put_snapshot",
    "put_slot",
    "free_slots",
    "put_audit",
)

PLACES = {name: place for place, name in enumerate(STATEMENTS)}

GUARDED = frozenset(STATEMENTS[2:5])
"""These change one row each, unless the execution does not stand where it is thought to."""


class Standing(NamedTuple):
    """Where an execution stands: the end of its log, and its status, if there is one already."""

    seq: int
    checksum: int
    status: str | None


class Outcome(NamedTuple):
    """What a commit came to: who had moved, and where the others stand now."""

    moved: list[ExecutionId]
    ends: dict[ExecutionId, Standing]


class Outdated(Exception):
    """An execution does not stand where we remember it. Nothing is to be kept."""


class SqliteLog(log.Log):
    """See `noetl.store.log.Log`."""

    _database: SqliteDatabase

    def __init__(self, database: SqliteDatabase, bodies: SqliteBodies) -> None:
        super().__init__(database)
        self._bodies = bodies
        self._heads: Heads[Standing] = Heads()

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        tied: Sequence[Collection[ExecutionId]] = (),
        claims: Sequence[Claim] = (),
    ) -> list[ExecutionId]:
        filed: Filed = {}
        for write in writes:
            if write.results:
                filed = await self._file_large_results(writes)
                break
        try:
            moved, ends = await self._database.writer.run(
                lambda db: commit(db, writes, filed, tied, self._heads, claims)
            )
        except (sqlite3.IntegrityError, Outdated):
            # An id or key is taken, or we remember wrongly. Look whose it is, and write the rest.
            moved, ends = await self._database.write(
                lambda db: commit(db, writes, filed, tied, None, claims)
            )
        except FORESEEN as error:
            raise fault(error, self._database.place) from error
        for execution_id, end in ends.items():
            self._heads.remember(execution_id, end)
        return moved

    async def _file_large_results(self, writes: Sequence[Write]) -> Filed:
        """Put large bodies into files before the rows that refer to them are written."""
        filed: dict[tuple[ExecutionId, str], tuple[str, int]] = {}
        for write in writes:
            for key, body in write.results:
                if entry := await self._bodies.filed(body):
                    filed[write.execution_id, key] = entry
        return filed

    async def load(self, execution_id: ExecutionId) -> Loaded | None:
        """Snapshot and events after it, checked against each other and the end of the log."""
        return await self._database.read(lambda db: _load(db, execution_id))

    async def select(self, execution_id: ExecutionId, wanted: log.Selection) -> list[EventRow]:
        def read(db: sqlite3.Connection) -> list[EventRow]:
            chosen = {"execution_id": execution_id, "after": wanted.after}
            before = db.execute(QUERIES["log_before"], chosen).fetchone()
            start = Head(*before) if before else Head(0, chain_start(execution_id))
            rows = log.follow(_rows_after(db, execution_id, start.seq), execution_id, start)
            return log.selected(rows, wanted)

        return await self._database.read(read)


def _load(db: sqlite3.Connection, execution_id: ExecutionId) -> Loaded | None:
    head = db.execute(QUERIES["head"], (execution_id,)).fetchone()
    if head is None:
        return None
    seq, checksum, snapshot = _snapshot(db, execution_id)
    rows = _rows_after(db, execution_id, seq)
    events = list(log.whole(rows, execution_id, Head(seq, checksum), Head(*head)))
    verify_commands(db, execution_id)
    return Loaded(seq, snapshot, events)


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


def commit(
    db: sqlite3.Connection,
    writes: Sequence[Write],
    filed: Filed,
    tied: Sequence[Collection[ExecutionId]],
    heads: Heads[Standing] | None,
    claims: Sequence[Claim] = (),
) -> Outcome:
    """Write all of these except those whose execution has moved, and meet the claims.

    What is remembered in `heads` is taken to be true, and keys are taken to be free, since they
    almost always are: if not, SQLite refuses (`Outdated`, `IntegrityError`). Without `heads` each
    write is looked at and written by itself, and so it is found out whose is at fault.
    """
    outcome = _commit_tied(db, writes, filed, tied, heads)
    for claim in claims:
        claim.found = lease(db, "claim", claim)
    return outcome


def _commit_tied(
    db: sqlite3.Connection,
    writes: Sequence[Write],
    filed: Filed,
    tied: Sequence[Collection[ExecutionId]],
    heads: Heads[Standing] | None,
) -> Outcome:
    if not tied:
        return _commit(db, writes, filed, heads)
    db.execute("SAVEPOINT tied")
    moved, ends = _commit(db, writes, filed, heads)
    dragged = {one for group in tied if not set(moved).isdisjoint(group) for one in group}
    if dragged.difference(moved):
        db.execute("ROLLBACK TO tied")
        rest = [write for write in writes if write.execution_id not in dragged]
        refused = [write.execution_id for write in writes if write.execution_id in dragged]
        moved, ends = _commit(db, rest, filed, heads)
        return Outcome(refused + moved, ends)
    return Outcome(moved, ends)


def _commit(
    db: sqlite3.Connection, writes: Sequence[Write], filed: Filed, heads: Heads[Standing] | None
) -> Outcome:
    moved = []
    ends: dict[ExecutionId, Standing] = {}
    batch = _Batch(db, filed)
    for write in writes:
        if heads is None or write.execution_id in ends:
            batch.flush()
        if write.slots:
            batch.flush()  # What was taken before counts.
            write.full = _full(db, write)
            if write.full:
                moved.append(write.execution_id)
                continue
        standing = _remembered(write, heads) or _standing(db, write.execution_id)
        if (
            standing.seq != write.seq_before
            or (heads is None and _key_is_taken(db, write))
            or (write.trigger is not None and not _changed(db, write.trigger))
        ):
            moved.append(write.execution_id)
        else:
            ends[write.execution_id] = batch.add(write, standing)
    batch.flush()
    return Outcome(moved, ends)


def _changed(db: sqlite3.Connection, decided: TriggerChange) -> bool:
    """Change a trigger, whole or not at all. Returns whether its row was where it should be."""
    db.execute("SAVEPOINT trigger")
    is_whole = finished(write_change(SqliteTransaction(db), decided))
    if not is_whole:
        db.execute("ROLLBACK TO trigger")
    db.execute("RELEASE trigger")
    return is_whole


def _full(db: sqlite3.Connection, write: Write) -> tuple[str, ...]:
    """The limits of an execution that leave it no room to run."""
    if write.summary is None or write.summary.status not in HOLDING:
        return ()
    wanted = {slot.name: slot.capacity for slot in write.slots}
    asked = {
        "wanted": encode_json(wanted).decode(),
        "execution_id": write.execution_id,
        "is_new": write.seq_before == 0,
        "priority": write.slots[0].priority,
    }
    return tuple(name for (name,) in db.execute(QUERIES["full_slots"], asked))


def _remembered(write: Write, heads: Heads[Standing] | None) -> Standing | None:
    """Where the execution stands, if that is where its write continues."""
    if heads is None or (write.summary is None and not write.events):
        return None  # The row of the execution is not written, so nothing would notice an error.
    known = heads.get(write.execution_id)
    if known is None:
        is_new = write.seq_before == 0 and write.summary is not None
        return _unwritten(write.execution_id) if is_new else None
    return known if known.seq == write.seq_before else None


def _standing(db: sqlite3.Connection, execution_id: ExecutionId) -> Standing:
    row = db.execute(QUERIES["standing"], (execution_id,)).fetchone()
    return Standing(*row) if row else _unwritten(execution_id)


def _unwritten(execution_id: ExecutionId) -> Standing:
    return Standing(0, chain_start(execution_id), None)


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
        self._rows: defaultdict[str, list[Any]] = defaultdict(list)

    def flush(self) -> None:
        rows, many = self._rows, self._db.cursor().executemany
        for name in sorted(rows, key=PLACES.__getitem__):
            changed = many(QUERIES[name], rows[name]).rowcount
            if changed == len(rows[name]):
                continue
            if name in GUARDED:
                raise Outdated
            if name == "close_lease":
                # Those that were not among the leases wait for a worker.
                many(QUERIES["close_command"], rows[name])
        rows.clear()

    def add(self, write: Write, standing: Standing) -> Standing:
        """Take a write to an execution that stands there; where it stands then."""
        execution_id, rows = write.execution_id, self._rows
        end = self._add_execution(write, standing)
        for new in write.commands:
            statement, row = _command_row(execution_id, new)
            rows[statement].append(row)
        if write.closed:
            rows["close_lease"] += [(execution_id, command_id) for command_id in write.closed]
        if write.timers:
            rows["set_timer"] += [(execution_id, timer, at) for timer, at in write.timers]
        if write.timers_cleared:
            rows["clear_timer"] += [(execution_id, timer) for timer in write.timers_cleared]
        for name, value in write.vars.items():
            variable = {"execution_id": execution_id, "name": name, "value": value}
            rows["delete_var" if value is None else "set_var"].append(variable)
        for key, body in write.results:
            rows["put_result"].append(result_row(execution_id, key, body, self._filed))
        if write.snapshot is not None:
            rows["put_snapshot"].append(snapshot_row(write, write.snapshot, end.seq, end.checksum))
        if write.slots and write.summary is not None:
            self._add_slots(write, write.summary)
        if write.audit:
            rows["put_audit"] += [msgspec.structs.asdict(entry) for entry in write.audit]
        return end

    def _add_slots(self, write: Write, summary: Summary) -> None:
        if summary.ended_at is not None:
            self._rows["free_slots"].append({"execution_id": write.execution_id})
        else:
            self._rows["put_slot"] += slot_rows(write, summary)

    def _add_execution(self, write: Write, standing: Standing) -> Standing:
        """The row of the execution, and its events chained to its log."""
        execution_id, summary, rows = write.execution_id, write.summary, self._rows
        seq, checksum, status = standing
        if write.events:
            seq, events, checksum = row_of(write, checksum)
            rows["insert_events"].append((execution_id, seq, events, checksum))
        if summary is None:
            if status is None:
                raise no_summary(write)
            if write.events:
                rows["advance_execution"].append((seq, checksum, execution_id, *standing[:2]))
            return Standing(seq, checksum, status)
        if summary.execution_id != execution_id:
            raise others_summary(write, summary)
        if status is None:
            end = {"seq": seq, "checksum": checksum}
            rows["insert_execution"].append(columns_of_summary(summary) | end)
            if summary.labels:
                rows["insert_label"] += [
                    (execution_id, name, value, summary.requested_at)
                    for name, value in summary.labels.items()
                ]
        elif status == summary.status:
            changing = (seq, checksum, *_remarks(summary))
            rows["progress_execution"].append((*changing, execution_id, *standing))
        else:
            changed = (summary.status, summary.ended_at, *_remarks(summary))
            rows["update_execution"].append((seq, checksum, *changed, execution_id, *standing[:2]))
        return Standing(seq, checksum, summary.status)


def _remarks(summary: Summary) -> tuple[str | None, ...]:
    steps = encode_json(summary.current_steps).decode()
    return steps, summary.error, summary.failed_step, summary.waits


def _command_row(execution_id: ExecutionId, new: NewCommand) -> tuple[str, tuple[Any, ...]]:
    """What a command goes into, and its row there."""
    command, worker_id, expires_at = new
    body = encode_json(command)
    row = (execution_id, command.command_id, command.pool, body, crc32(body))
    if worker_id is None and expires_at is None:
        return "insert_command", (*row, command.priority, command.turn)
    return "insert_lease", (*row, worker_id, expires_at)
