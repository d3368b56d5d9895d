"""The store in one SQLite file: its parts over one writer and a few readers."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import time
from contextlib import closing
from functools import cache
from pathlib import Path

from noetl.errors import StoreError
from noetl.store.base import Store
from noetl.store.migrations import require_none_missing
from noetl.store.sqlite.bodies import BodyFiles, SqliteBodies
from noetl.store.sqlite.connections import MEMORY, connect, database_path
from noetl.store.sqlite.database import QUERIES, Inline, Lane, Readers, SqliteDatabase, Writer
from noetl.store.sqlite.faults import FORESEEN, fault, full
from noetl.store.sqlite.lock import FileLock
from noetl.store.sqlite.log import SqliteLog
from noetl.store.sqlite.queue import SqliteQueue
from noetl.store.sqlite.retention import SqliteRetention
from noetl.store.sqlite.schema import MIGRATIONS, applied, migrate, require_ours

READERS = 2
ROOM_MIN = 1 << 20
"""A disk with less free space counts as full."""


@cache
def _empty() -> bytes:
    """A database that nobody has used yet. To copy it takes a tenth of the time that its migrations
    take, which a process pays once, however many databases it makes.
    """
    with closing(connect(None, "writer")) as db:
        migrate(db, MEMORY)
        return db.serialize()


def _make(db: sqlite3.Connection) -> None:
    """Turn a database without any table into one of NoETL, in one transaction."""
    with closing(sqlite3.connect(MEMORY, isolation_level=None)) as made:
        made.deserialize(_empty())
        made.execute(QUERIES["make_another"])
        made.backup(db)


def no_database(path: Path) -> StoreError:
    return StoreError(
        f"{path} does not exist: nothing was run, registered or stored in this directory yet."
        " Go to where it was, or name another database with --db."
    )


class SqliteStore(Store):
    """See `noetl.store.base.Store`. Open it with `open`."""

    _database: SqliteDatabase
    exclusive = True
    channel = None

    def __init__(
        self, database: SqliteDatabase, files: BodyFiles | None = None, lock: FileLock | None = None
    ) -> None:
        super().__init__(database)
        self._has_files = files is not None
        self._lock = lock
        self.bodies = bodies = SqliteBodies(database, files)
        self.log = SqliteLog(database, bodies)
        self.queue = SqliteQueue(database)
        self.retention = SqliteRetention(database, files)

    @classmethod
    async def open(cls, url: str, *, read_only: bool = False, threads: bool = True) -> SqliteStore:
        """Open a database: `sqlite:///file`, a path or `:memory:`; create or upgrade it if
        necessary.

        `read_only`: beside the process that writes; a database that is missing or older is refused.
        Without `threads` every call is done on the caller's thread before it returns: for
        simulations, where the order must not vary.
        """
        path = database_path(url)
        place = str(path or MEMORY)
        try:
            if path is None:
                return cls._open_memory(threads)
            return cls._open_reading(path) if read_only else cls._open_file(path, threads)
        except FORESEEN as error:
            raise fault(error, place) from error

    @classmethod
    def _open_memory(cls, threads: bool) -> SqliteStore:
        db = connect(None, "writer")
        _make(db)
        # The database lives in its connection, so reads and writes take turns.
        lane: Lane = Writer(db) if threads else Inline(db)
        return cls(SqliteDatabase(MEMORY, writer=lane, reader=lane, threads=threads))

    @classmethod
    def _open_file(cls, path: Path, threads: bool) -> SqliteStore:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size:
            # Before anything is written to it or beside it.
            with closing(connect(path, "reader")) as db:
                require_ours(db, str(path))
        lock = FileLock(path)
        try:
            # Executions hold people's data, so only the user may read the file.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            db = connect(path, "writer")
            try:
                if db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
                    _make(db)
                else:
                    migrate(db, str(path))
                lane: Lane = Inline(db)
                reader = lane
                if threads:
                    readers = [connect(path, "reader") for _ in range(READERS)]
                    lane, reader = Writer(db), Readers(readers)
            except BaseException:
                db.close()
                raise
        except BaseException:
            lock.release()
            raise
        database = SqliteDatabase(str(path), writer=lane, reader=reader, threads=threads)
        return cls(database, BodyFiles(path), lock)

    @classmethod
    def _open_reading(cls, path: Path) -> SqliteStore:
        if not path.exists():
            raise no_database(path)
        db = connect(path, "reader")
        try:
            require_ours(db, str(path))
            require_none_missing(applied(db), MIGRATIONS, str(path))
        except BaseException:
            db.close()
            raise
        store = cls(SqliteDatabase(str(path), writer=None, reader=Readers([db])), BodyFiles(path))
        store.exclusive = False  # the process that writes may continue any execution
        return store

    async def close(self) -> None:
        """Goes on if the caller is cancelled meanwhile, whom it keeps until it is done: otherwise
        this process, which may live on, would hold the lock for good.
        """
        ending = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            raise

    async def _close(self) -> None:
        await self._database.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def time(self) -> float:
        return time.time()

    async def probe(self) -> None:
        if self._has_files:
            path = Path(self._database.place)
            await self._database.on_disk(lambda: _require_room(path))
        await self._database.change("probe")  # Writes an existing value again.

    async def _own_problems(self) -> list[str]:
        findings = await self._database.column("check_structure")
        strays = await self._database.tuples("check_references")
        return [
            *(f"The file itself: {finding}" for finding in findings if finding != "ok"),
            *(
                f"A row of {table} belongs to a row of {parent} that is not there"
                for table, _, parent, _ in strays
            ),
        ]


def _require_room(path: Path) -> None:
    room = shutil.disk_usage(path.parent).free
    if room < ROOM_MIN:
        raise full(str(path), f"{room:,} bytes are left")
