"""The log of executions in PostgreSQL: commits, and reading what they wrote.

A commit is the check for concurrent changes and all rows, usually in one round trip. Data is
verified when it is read. The protocol is `noetl.store.log`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from psycopg.rows import DictRow

from noetl.model.ids import ExecutionId
from noetl.store import log
from noetl.store.checksums import (
    agrees,
    damaged_command,
    damaged_log,
    verified_command,
)
from noetl.store.database import Undo
from noetl.store.limits import HOLDING
from noetl.store.log import (
    EventRow,
    Head,
    Heads,
    Loaded,
    Write,
    chain_start,
    no_summary,
    slot_rows,
    snapshot_row,
)
from noetl.store.postgres import commit_rows
from noetl.store.postgres.bodies import result_row
from noetl.store.postgres.database import PostgresDatabase, PostgresTransaction
from noetl.store.postgres.faults import FORESEEN
from noetl.store.queue import Claim
from noetl.store.triggers import write_change

ROWS_AT_ONCE = 100


class PostgresLog(log.Log):
    """See `noetl.store.log.Log`."""

    _database: PostgresDatabase

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database)
        self._heads: Heads[Head] = Heads()

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        tied: Sequence[Collection[ExecutionId]] = (),
        claims: Sequence[Claim] = (),
    ) -> list[ExecutionId]:
        if not writes:
            return []
        try:
            return await commit(self._database, writes, self._heads, tied)
        except FORESEEN as error:
            raise self._database.fault(error) from error

    async def load(self, execution_id: ExecutionId) -> Loaded | None:
        """Snapshot and events after it, checked against each other and the end of the log."""
        found: list[DictRow] = await self._database.rows("load", dict, execution_id=execution_id)
        last = next((row for row in found if row["part"] == "end"), None)
        if last is None:
            return None
        start = Head(0, chain_start(execution_id))
        if last["body"] is not None:
            if not agrees(last["body"], last["body_checksum"]):
                raise damaged_log(execution_id, "its snapshot has changed")
            start = Head(last["snapshot_seq"], last["event_checksum"])
        end = Head(last["seq"], last["checksum"])
        written = [
            log.LogRow(row["seq"], row["body"], row["checksum"])
            for row in found
            if row["part"] == "log"
        ]
        events = list(log.whole(sorted(written), execution_id, start, end))
        verify_commands([row for row in found if row["part"] == "command"], execution_id)
        self._heads.remember(execution_id, end)
        return Loaded(start.seq, last["body"], events)

    async def select(self, execution_id: ExecutionId, wanted: log.Selection) -> list[EventRow]:
        database, (after, limit, _, _, size) = self._database, wanted
        chosen = {"execution_id": execution_id, "rows": ROWS_AT_ONCE}
        before = await database.row("log_before", Head, **chosen, after=after) if after else None
        last = before or Head(0, chain_start(execution_id))
        found: list[EventRow] = []
        taken = 0
        while len(found) < limit and (size is None or taken < size):
            page = await database.rows("log_page", log.LogRow, **chosen, after=last.seq)
            verified = log.follow(page, execution_id, last)
            left = None if size is None else size - taken
            more = log.selected(verified, wanted._replace(limit=limit - len(found), size=left))
            found += more
            taken += sum(len(event.body) for event in more)
            if len(page) < ROWS_AT_ONCE:
                break
            last = Head(page[-1].seq, page[-1].checksum)
        return found

    async def variables(self, execution_id: ExecutionId) -> dict[str, bytes]:
        found = await super().variables(execution_id)
        return {read_name(name): value for name, value in found.items()}


def verify_commands(found: Iterable[DictRow], execution_id: ExecutionId) -> None:
    """Raise Corrupted if one of these open commands is not what was written."""
    for row in found:
        if row["is_corrupted"] or verified_command(row["body"], row["checksum"]) is None:
            raise damaged_command(row["command_id"], execution_id)


async def commit(
    database: PostgresDatabase,
    writes: Sequence[Write],
    heads: Heads[Head],
    tied: Sequence[Collection[ExecutionId]] = (),
) -> list[ExecutionId]:
    """Commit all of these except those whose execution has moved. Returns the ids of the latter."""
    if len(writes) == 1 and (head := _head_of_step(writes[0], heads)) is not None:
        # The usual case: one statement, and nothing to read before it.
        [write] = writes
        end, values = commit_rows.one(write, head, database.home)
        if not await database.commit("commit_one", values):
            return [write.execution_id]
        heads.remember(write.execution_id, end)
        return []
    groups = [set(group) for group in tied]
    # An execution started by a trigger is written together with that row.
    apart = {write.execution_id for write in writes if _may_be_refused(write)}
    groups += [{execution_id} for execution_id in apart.difference(*groups)]
    bound = set().union(*groups)
    loose = [write for write in writes if write.execution_id not in bound]
    moved = await _commit(database, loose, heads) if loose else []
    for group in groups:
        together = [write for write in writes if write.execution_id in group]
        moved += await _commit(
            database,
            together,
            heads,
            all_or_none=len(together) > 1 or _may_be_refused(together[0]),
        )
    return moved


def _may_be_refused(write: Write) -> bool:
    """Whether it changes a trigger, which may have moved."""
    return write.trigger is not None and not write.trigger.only_adds


def _head_of_step(write: Write, heads: Heads[Head]) -> Head | None:
    """The known head that this write continues, if it is a plain step."""
    if write.trigger is not None or commit_rows.has_more(write) or not commit_rows.is_one(write):
        return None
    head = heads.get(write.execution_id)
    return head if head is not None and head.seq == write.seq_before else None


async def _commit(
    database: PostgresDatabase,
    writes: Sequence[Write],
    heads: Heads[Head],
    *,
    all_or_none: bool = False,
) -> list[ExecutionId]:
    ends: dict[ExecutionId, Head] = {}
    rounds = commit_rows.rounds(writes)
    is_plain = not any(commit_rows.has_more(one) or one.trigger is not None for one in writes)
    if len(rounds) == 1 and not all_or_none and is_plain:
        # One statement is a transaction by itself.
        moved = await _round(database, rounds[0], heads, ends)
    else:
        moved = await database.together(
            lambda db: _together(db, rounds, heads, ends, all_or_none), is_long=True
        )
    if moved and all_or_none:
        return [write.execution_id for write in writes]
    for execution_id, end in ends.items():
        heads.remember(execution_id, end)
    return moved


async def _together(
    db: PostgresTransaction,
    rounds: list[list[Write]],
    heads: Heads[Head],
    ends: dict[ExecutionId, Head],
    all_or_none: bool,
) -> list[ExecutionId]:
    moved: list[ExecutionId] = []
    ends.clear()  # This may be a repeat after a broken connection.
    await _lock_slots(db, rounds)
    for round_ in rounds:
        for write in round_:
            change = write.trigger
            if change and not change.only_adds and not await write_change(db, change):
                raise Undo([*moved, write.execution_id])
        moved += await _round(db, [one for one in round_ if not one.slots], heads, ends)
        for write in round_:
            # One by one: each counts for the next.
            if write.slots:
                write.full = await _full(db, write)
                moved += (
                    [write.execution_id] if write.full else await _round(db, [write], heads, ends)
                )
                if write.execution_id not in moved:
                    await _use_slots(db, write)
        kept = [write for write in round_ if write.execution_id not in moved]
        for write in filter(commit_rows.has_more, kept):
            await _write_more(db, write, ends[write.execution_id])
        adding = [write.trigger for write in kept if write.trigger and write.trigger.only_adds]
        if added := [row for change in adding for row in change.rows]:
            await db.change_all("insert_trigger", added)
    if moved and all_or_none:
        raise Undo(moved)
    return moved


async def _lock_slots(db: PostgresTransaction, rounds: list[list[Write]]) -> None:
    """Only one transaction at a time checks whether there is room, and takes it."""
    names = {
        slot.name
        for round_ in rounds
        for write in round_
        if write.summary is not None and write.summary.status in HOLDING
        for slot in write.slots
    }
    for name in sorted(names):
        await db.lock("lock_slots", name=name)


async def _full(db: PostgresTransaction, write: Write) -> tuple[str, ...]:
    """The limits that leave an execution no room to run."""
    if write.summary is None or write.summary.status not in HOLDING:
        return ()
    full = await db.column(
        "full_slots",
        names=[slot.name for slot in write.slots],
        capacities=[slot.capacity for slot in write.slots],
        execution_id=write.execution_id,
        is_new=write.seq_before == 0,
        priority=write.slots[0].priority,
    )
    return tuple(full)


async def _use_slots(db: PostgresTransaction, write: Write) -> None:
    """It waits, runs, or has ended."""
    assert write.summary is not None
    if write.summary.ended_at is not None:
        await db.change("free_slots", execution_id=write.execution_id)
        return
    for row in slot_rows(write, write.summary):
        await db.change("put_slot", **row)


async def _round(
    asking: PostgresDatabase | PostgresTransaction,
    writes: list[Write],
    heads: Heads[Head],
    ends: dict[ExecutionId, Head],
) -> list[ExecutionId]:
    """One write per execution. `ends` holds, and receives, what this transaction has written."""
    if not writes:
        return []
    known = await _known_heads(asking, writes, heads, ends)
    continuing = [write for write in writes if _continues(write, known.get(write.execution_id))]
    if len(continuing) == 1 and commit_rows.is_one(continuing[0]):
        return await _one(asking, writes, continuing[0], known, ends)
    if not continuing:
        return [write.execution_id for write in writes]
    lines = commit_rows.rows_of(continuing, known)
    kept = set(await asking.commit("commit", lines.values(asking.home)))
    for line in lines.executions:
        if line["execution_id"] in kept:
            ends[line["execution_id"]] = Head(line["seq"], line["checksum"])
    return [write.execution_id for write in writes if write.execution_id not in kept]


async def _one(
    asking: PostgresDatabase | PostgresTransaction,
    writes: list[Write],
    write: Write,
    known: dict[ExecutionId, Head],
    ends: dict[ExecutionId, Head],
) -> list[ExecutionId]:
    """The same for a single write that continues its execution."""
    end, values = commit_rows.one(write, known[write.execution_id], asking.home)
    if not await asking.commit("commit_one", values):
        return [one.execution_id for one in writes]
    ends[write.execution_id] = end
    return [one.execution_id for one in writes if one is not write]


async def _known_heads(
    asking: PostgresDatabase | PostgresTransaction,
    writes: list[Write],
    heads: Heads[Head],
    ends: dict[ExecutionId, Head],
) -> dict[ExecutionId, Head]:
    """The heads of the logs that these writes continue."""
    known: dict[ExecutionId, Head] = {}
    unknown = []
    for write in filter(commit_rows.needs_head, writes):
        head = ends.get(write.execution_id) or heads.get(write.execution_id)
        if head is not None and (head.seq == write.seq_before or write.execution_id in ends):
            known[write.execution_id] = head
        else:
            unknown.append(write.execution_id)
    if unknown:
        for execution_id, *head in await asking.tuples("heads", executions=unknown):
            known[execution_id] = Head(*head)
    return known


def _continues(write: Write, head: Head | None) -> bool:
    if head is not None:
        return head.seq == write.seq_before
    if write.seq_before == 0 and write.summary is None:
        raise no_summary(write)
    return write.seq_before == 0


async def _write_more(db: PostgresTransaction, write: Write, end: Head) -> None:
    """Write what few decisions change, sent together."""
    execution_id = write.execution_id
    async with db.pipeline():
        for name, value in write.vars.items():
            written = {"execution_id": execution_id, "name": written_name(name)}
            if value is None:
                await db.change("delete_var", **written)
            else:
                await db.change("set_var", **written, value=value)
        for key, body in write.results:
            await db.change("put_result", **result_row(execution_id, key, body))
        if write.snapshot is not None:
            await db.change("put_snapshot", **snapshot_row(write, write.snapshot, *end))


def written_name(name: str) -> str:
    """The name of a variable as text that PostgreSQL can store."""
    return name.replace("\\", "\\\\").replace("\0", "\\0")


def read_name(written: str) -> str:
    parts = written.split("\\\\")
    return "\\".join(part.replace("\\0", "\0") for part in parts)
