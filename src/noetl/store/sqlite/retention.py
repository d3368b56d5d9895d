"""Removal of executions and of the files of their bodies. The promise is written in
`noetl.store.retention`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from noetl.model.ids import ExecutionId
from noetl.store.database import Transaction
from noetl.store.retention import Retention
from noetl.store.sqlite.bodies import BodyFiles
from noetl.store.sqlite.database import SqliteDatabase


class SqliteRetention(Retention):
    """See `noetl.store.retention.Retention`. Spans are not needed: pages are reused."""

    def __init__(self, database: SqliteDatabase, files: BodyFiles | None) -> None:
        super().__init__(database)
        self._on_disk = database.on_disk
        self._files = files

    async def forget(self, execution_ids: Collection[ExecutionId]) -> int:
        async def forget(db: Transaction) -> int:
            going = await db.column("forgettable", execution_ids=list(execution_ids))
            if going:
                for name in ("tally", "forget_results", "forget_reuse", "forget_executions"):
                    await db.change(name, execution_ids=going)
            return len(going)

        return await self._database.together(forget)

    async def forget_files(self) -> int:
        files = self._files
        if files is None:
            return 0
        freed = 0
        for digest in await self._on_disk(files.settled):
            if not await self._database.tuples("is_filed", digest=digest):
                freed += await self._on_disk(partial(files.remove, digest))
        return freed
