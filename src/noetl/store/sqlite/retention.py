"""Removal of the files of bodies. The promise is written in `noetl.store.retention`."""

from __future__ import annotations

from functools import partial

from noetl.store.retention import Retention
from noetl.store.sqlite.bodies import BodyFiles
from noetl.store.sqlite.database import SqliteDatabase


class SqliteRetention(Retention):
    """See `noetl.store.retention.Retention`. Spans are not needed: pages are reused."""

    def __init__(self, database: SqliteDatabase, files: BodyFiles | None) -> None:
        super().__init__(database)
        self._on_disk = database.on_disk
        self._files = files

    async def forget_files(self) -> int:
        files = self._files
        if files is None:
            return 0
        freed = 0
        for digest in await self._on_disk(files.settled):
            if not await self._database.tuples("is_filed", digest=digest):
                freed += await self._on_disk(partial(files.remove, digest))
        return freed
