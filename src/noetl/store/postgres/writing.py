"""Commits: the check that nobody was faster and all rows, in one round trip as a rule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zlib import crc32

import psycopg

from noetl.errors import StoreError
from noetl.model.ids import ExecutionId
from noetl.store.base import Write
from noetl.store.checksums import Head
from noetl.store.postgres import committing
from noetl.store.postgres.connections import Connection, change, rows

HEADS_MAX = 20_000


class Heads:
    """Where logs end, as far as we remember: what a commit continues without asking first.

    A commit is kept only if this is still true, so remembering wrongly costs a round trip.
    """

    def __init__(self) -> None:
        self._heads: dict[ExecutionId, Head] = {}

    def get(self, execution_id: ExecutionId) -> Head | None:
        return self._heads.get(execution_id)

    def remember(self, execution_id: ExecutionId, head: Head) -> None:
        known = self._heads.pop(execution_id, head)
        self._heads[execution_id] = max(known, head)
        if len(self._heads) > HEADS_MAX:
            self._heads.pop(next(iter(self._heads)))


async def commit(
    db: Connection,
    writes: Sequence[Write],
    heads: Heads,
    tied: Sequence[Collection[ExecutionId]] = (),
) -> list[ExecutionId]:
    """Write all of these except those whose execution has moved; the ids of the latter."""
    bound = {execution_id for group in tied for execution_id in group}
    loose = [write for write in writes if write.execution_id not in bound]
    moved = await _attempt(db, loose, heads, all_or_none=False) if loose else []
    for group in tied:
        together = [write for write in writes if write.execution_id in group]
        moved += await _attempt(db, together, heads, all_or_none=len(together) > 1)
    return moved


async def _attempt(
    db: Connection, writes: Sequence[Write], heads: Heads, *, all_or_none: bool
) -> list[ExecutionId]:
    rounds = committing.rounds(writes)
    ends: dict[ExecutionId, Head] = {}
    moved: list[ExecutionId] = []
    if len(rounds) == 1 and not all_or_none and not any(map(committing.has_more, writes)):
        # One statement is a transaction by itself.
        moved = await _round(db, rounds[0], heads, ends)
    else:
        async with db.transaction() as transaction:
            for round_ in rounds:
                moved += await _round(db, round_, heads, ends)
            if moved and all_or_none:
                raise psycopg.Rollback(transaction)
    if moved and all_or_none:
        return [write.execution_id for write in writes]
    for execution_id, end in ends.items():
        heads.remember(execution_id, end)
    return moved


async def _round(
    db: Connection, writes: list[Write], heads: Heads, ends: dict[ExecutionId, Head]
) -> list[ExecutionId]:
    """One write per execution. `ends` has, and gets, what this transaction has written."""
    known = await _known_heads(db, writes, heads, ends)
    continuing = [write for write in writes if _continues(write, known.get(write.execution_id))]
    lines = committing.rows_of(continuing, known)
    kept = set()
    if continuing:
        kept = {row["execution_id"] for row in await rows(db, "commit", lines.parameters())}
    for write, line in zip(continuing, lines.executions, strict=True):
        if write.execution_id in kept:
            ends[write.execution_id] = Head(line.seq, line.checksum)
            if committing.has_more(write):
                await _write_more(db, write, ends[write.execution_id])
    return [write.execution_id for write in writes if write.execution_id not in kept]


async def _known_heads(
    db: Connection, writes: list[Write], heads: Heads, ends: dict[ExecutionId, Head]
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
        for row in await rows(db, "heads_to_chain", {"executions": unknown}):
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
