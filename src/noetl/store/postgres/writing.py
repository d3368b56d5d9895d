"""Commits: the check that nobody was faster and all rows, in one round trip as a rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from zlib import crc32

import psycopg
from psycopg.rows import DictRow

from noetl.errors import StoreError
from noetl.model.ids import ExecutionId
from noetl.store.base import Write
from noetl.store.checksums import Head
from noetl.store.heads import Heads
from noetl.store.postgres import committing
from noetl.store.postgres.connections import (
    BODY_SECONDS,
    Connection,
    Database,
    change,
    first_column,
    rows,
)
from noetl.store.postgres.line import Value
from noetl.store.postgres.triggers import write_change

RUNS = frozenset({"RUNNING", "PAUSED"})
"""In these an execution holds its slots."""


async def commit(
    database: Database,
    writes: Sequence[Write],
    heads: Heads[Head],
    tied: Sequence[Collection[ExecutionId]] = (),
) -> list[ExecutionId]:
    """Write all of these except those whose execution has moved; the ids of the latter."""
    bound = {execution_id for group in tied for execution_id in group}
    # What was started by a schedule or its kin is kept together with that row.
    apart = [write for write in writes if write.trigger is not None]
    bound.update(write.execution_id for write in apart)
    loose = [write for write in writes if write.execution_id not in bound]
    moved = await _commit(database, loose, heads) if loose else []
    groups = [set(group) for group in tied]
    inside = set().union(*groups)
    groups += [{write.execution_id} for write in apart if write.execution_id not in inside]
    for group in groups:
        together = [write for write in writes if write.execution_id in group]
        moved += await _commit(
            database,
            together,
            heads,
            all_or_none=len(together) > 1 or together[0].trigger is not None,
        )
    return moved


async def _commit(
    database: Database, writes: Sequence[Write], heads: Heads[Head], *, all_or_none: bool = False
) -> list[ExecutionId]:
    rounds = committing.rounds(writes)
    ends: dict[ExecutionId, Head] = {}
    if len(rounds) == 1 and not all_or_none and not any(map(committing.has_more, writes)):
        # One statement is a transaction by itself.
        moved = await _round(database, rounds[0], heads, ends)
    else:
        moved = await database.run(
            lambda db: _together(db, database.home, rounds, heads, ends, all_or_none), BODY_SECONDS
        )
    if moved and all_or_none:
        return [write.execution_id for write in writes]
    for execution_id, end in ends.items():
        heads.remember(execution_id, end)
    return moved


class _Transaction:
    """Asks within one transaction what a database asks each in its own."""

    def __init__(self, db: Connection, home: str) -> None:
        self._db = db
        self.home = home

    async def all(self, query: str, values: Mapping[str, Any]) -> list[DictRow]:
        return await rows(self._db, query, values)

    async def column(self, query: str, values: Mapping[str, Value]) -> list[str]:
        return first_column(await self.all(query, values))


async def _together(
    db: Connection,
    home: str,
    rounds: list[list[Write]],
    heads: Heads[Head],
    ends: dict[ExecutionId, Head],
    all_or_none: bool,
) -> list[ExecutionId]:
    moved: list[ExecutionId] = []
    ends.clear()  # If the line broke, this is not the first time.
    async with db.transaction() as transaction:
        asking = _Transaction(db, home)
        await _lock_slots(db, rounds)
        for round_ in rounds:
            for write in round_:
                if write.trigger is not None and not await write_change(db, write.trigger):
                    moved.append(write.execution_id)
                    raise psycopg.Rollback(transaction)
            moved += await _round(asking, [one for one in round_ if not one.slots], heads, ends)
            for write in round_:
                # One by one: each counts for the next.
                if write.slots:
                    write.full = await _full(db, write)
                    moved += (
                        [write.execution_id]
                        if write.full
                        else await _round(asking, [write], heads, ends)
                    )
                    if write.execution_id not in moved:
                        await _use_slots(db, write)
            for write in filter(committing.has_more, round_):
                if write.execution_id not in moved:
                    await _write_more(db, write, ends[write.execution_id])
        if moved and all_or_none:
            raise psycopg.Rollback(transaction)
    return moved


async def _lock_slots(db: Connection, rounds: list[list[Write]]) -> None:
    """One transaction at a time finds out whether there is room, and takes it."""
    names = {
        slot.name
        for round_ in rounds
        for write in round_
        if write.summary is not None and write.summary.status in RUNS
        for slot in write.slots
    }
    for name in sorted(names):
        await rows(db, "lock_slots", {"name": name})


async def _full(db: Connection, write: Write) -> tuple[str, ...]:
    """The limits of an execution that leave it no room to run."""
    if write.summary is None or write.summary.status not in RUNS:
        return ()
    asked = {
        "names": [slot.name for slot in write.slots],
        "capacities": [slot.capacity for slot in write.slots],
        "execution_id": write.execution_id,
        "is_new": write.seq_before == 0,
        "priority": write.slots[0].priority,
    }
    return tuple(first_column(await rows(db, "full_slots", asked)))


async def _use_slots(db: Connection, write: Write) -> None:
    """It waits, runs, or has ended."""
    assert write.summary is not None
    if write.summary.ended_at is not None:
        await change(db, "free_slots", {"execution_id": write.execution_id})
        return
    for slot in write.slots:
        values = {
            **slot._asdict(),
            "execution_id": write.execution_id,
            "held": write.summary.status in RUNS,
            "requested_at": write.summary.requested_at,
        }
        await change(db, "put_slot", values)


async def _round(
    asking: Database | _Transaction,
    writes: list[Write],
    heads: Heads[Head],
    ends: dict[ExecutionId, Head],
) -> list[ExecutionId]:
    """One write per execution. `ends` has, and gets, what this transaction has written."""
    if not writes:
        return []
    known = await _known_heads(asking, writes, heads, ends)
    continuing = [write for write in writes if _continues(write, known.get(write.execution_id))]
    lines = committing.rows_of(continuing, known)
    kept = set(await asking.column(*lines.statement(asking.home))) if continuing else set()
    for line in lines.executions:
        if line.execution_id in kept:
            ends[line.execution_id] = Head(line.seq, line.checksum)
    return [write.execution_id for write in writes if write.execution_id not in kept]


async def _known_heads(
    asking: Database | _Transaction,
    writes: list[Write],
    heads: Heads[Head],
    ends: dict[ExecutionId, Head],
) -> dict[ExecutionId, Head]:
    """Of those that continue something: where it ends."""
    known: dict[ExecutionId, Head] = {}
    unknown = []
    for write in filter(committing.needs_head, writes):
        head = ends.get(write.execution_id) or heads.get(write.execution_id)
        if head is not None and (head.seq == write.seq_before or write.execution_id in ends):
            known[write.execution_id] = head
        else:
            unknown.append(write.execution_id)
    if unknown:
        for row in await asking.all("heads_to_chain", {"executions": unknown}):
            known[row["execution_id"]] = Head(row["seq"], row["checksum"])
    return known


def _continues(write: Write, head: Head | None) -> bool:
    if head is not None:
        return head.seq == write.seq_before
    if write.seq_before == 0 and write.summary is None:
        raise StoreError(
            f"Execution {write.execution_id} is new, but its first write has no summary."
            " Nothing was kept."
        )
    return write.seq_before == 0


async def _write_more(db: Connection, write: Write, end: Head) -> None:
    """What few decisions change, sent together."""
    execution_id = write.execution_id
    async with db.pipeline():
        for name, value in write.vars.items():
            written = {"execution_id": execution_id, "name": committing.written_name(name)}
            if value is None:
                await change(db, "delete_var", written)
            else:
                await change(db, "set_var", written | {"value": value})
        for key, body in write.results:
            await change(db, "put_result", committing.result_row(execution_id, key, body))
        if write.snapshot is not None:
            values: dict[str, object] = {"execution_id": execution_id, "seq": end.seq}
            values["event_checksum"] = end.checksum
            whole = values | {"body": write.snapshot, "checksum": crc32(write.snapshot)}
            await change(db, "put_snapshot", whole)


async def forget(db: Connection, execution_ids: list[ExecutionId]) -> int:
    """Executions with all that belongs to them, in one transaction."""
    async with db.transaction():
        found = await rows(db, "forgettable", {"execution_ids": execution_ids})
        going = {"execution_ids": [row["execution_id"] for row in found]}
        if found:
            for name in ("tally", "forget_log", "forget_results", "forget_executions"):
                await change(db, name, going)
    return len(found)
