"""Removal of executions and of the files of their bodies. The protocol is
`noetl.store.retention`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from functools import partial

from noetl.model.ids import ExecutionId
from noetl.store.retention import Ended, Forgotten, Gone, Hold, Member
from noetl.store.sqlite.bodies import BodyFiles
from noetl.store.sqlite.database import Database
from noetl.store.sqlite.queries import QUERIES
from noetl.store.sqlite.queue import listed


class SqliteRetention:
    """See `noetl.store.retention.Retention`."""

    has_spans = False  # Pages of removed rows are reused.

    def __init__(self, database: Database, files: BodyFiles | None) -> None:
        self._database = database
        self._files = files

    async def ended(
        self,
        *,
        before: float,
        since: float = 0.0,
        prefix: str = "",
        after: Ended | None = None,
        limit: int = 200,
    ) -> list[Ended]:
        return await self._database.rows(
            "ended",
            Ended,
            before=before,
            since=since,
            prefix=prefix,
            after_at=after.requested_at if after else 0.0,
            after_id=after.execution_id if after else "",
            limit=limit,
        )

    async def tree(self, execution_id: ExecutionId) -> list[Member]:
        found = await self._database.rows("tree", Member, execution_id=execution_id)
        return [
            Member(one, bool(has_ended), bool(is_held), bool(is_reused), seq)
            for one, has_ended, is_held, is_reused, seq in found
        ]

    async def forget(self, execution_ids: Collection[ExecutionId]) -> int:
        return await self._database.write(lambda db: _forget(db, execution_ids))

    async def forget_files(self) -> int:
        files, on_disk = self._files, self._database.on_disk
        if files is None:
            return 0
        freed = 0
        for digest in await on_disk(files.settled):
            if not await self._database.tuples("is_filed", digest=digest):
                freed += await on_disk(partial(files.remove, digest))
        return freed

    async def spans(self, *, before: float, now: float) -> list[str]:
        return []

    async def forget_span(self, name: str, *, limit: int = 500) -> list[Gone]:
        return []

    async def forgotten(self, *, since_day: int = 0) -> list[Forgotten]:
        return await self._database.rows("forgotten", Forgotten, since_day=since_day)

    async def reuse(self, execution_id: ExecutionId, source: ExecutionId) -> None:
        await self._database.change("reuse", execution_id=execution_id, source=source)

    async def hold(self, hold: Hold) -> bool:
        return await self._database.change("hold", **hold._asdict())

    async def release(self, execution_id: ExecutionId) -> bool:
        return await self._database.change("release", execution_id=execution_id)

    async def holds(self) -> list[Hold]:
        return await self._database.rows("holds", Hold)


def _forget(db: sqlite3.Connection, execution_ids: Collection[ExecutionId]) -> int:
    """Runs in the transaction of the lane."""
    found = db.execute(QUERIES["forgettable"], {"execution_ids": listed(execution_ids)})
    going = [one for (one,) in found]
    if going:
        for name in ("tally", "forget_results", "forget_reuse", "forget_executions"):
            db.execute(QUERIES[name], {"execution_ids": listed(going)})
    return len(going)
