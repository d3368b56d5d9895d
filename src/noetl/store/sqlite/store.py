"""The store in one SQLite file. Every method hands a job to the lane it belongs on.

What the methods promise is written in `noetl.store.base`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from noetl.errors import Corrupted, StoreError
from noetl.model.commands import Command, Lease
from noetl.model.execution_query import Wanted
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.base import (
    BodyCopies,
    CatalogEntry,
    Channel,
    Ended,
    EventRow,
    Forgotten,
    Hold,
    Holder,
    Lapsed,
    Loaded,
    Member,
    Pieces,
    Runtime,
    SavedView,
    SlotUse,
    StoredCredential,
    Summary,
    Write,
)
from noetl.store.checksums import first_sentence
from noetl.store.heads import Heads
from noetl.store.log import Selection
from noetl.store.pieces import PIECE, checked, gathered, one_piece
from noetl.store.sqlite import cataloguing, checking, committing, forgetting, reading, working
from noetl.store.sqlite.access import AccessMethods
from noetl.store.sqlite.bodies import ROW_MAX, BodyFiles, verified
from noetl.store.sqlite.connections import MEMORY, connect, database_path
from noetl.store.sqlite.faults import FORESEEN, fault, full
from noetl.store.sqlite.lanes import Inline, Job, Lane, Readers
from noetl.store.sqlite.lock import FileLock
from noetl.store.sqlite.queries import QUERIES
from noetl.store.sqlite.schema import migrate, require_current
from noetl.store.sqlite.triggers import TriggerMethods
from noetl.store.sqlite.writer import Writer
from noetl.store.triggers import Renewed

T = TypeVar("T")
READERS = 2
ROOM_MIN = 1 << 20
"""With less than so many bytes left, a disk is full: the next writes still fit, or do not."""


class SqliteStore(AccessMethods, TriggerMethods):
    """See `noetl.store.base.Store`. Open it with `open`."""

    exclusive = True
    channel: Channel | None = None
    copies: BodyCopies | None = None

    def __init__(
        self,
        place: str,
        *,
        writer: Lane | None,
        reader: Lane,
        files: BodyFiles | None = None,
        lock: FileLock | None = None,
        threads: bool = True,
    ) -> None:
        self._place = place
        self._writer = writer
        self._reader = reader
        self._files = files
        self._lock = lock
        self._threads = threads
        self._heads: Heads[committing.Standing] = Heads()

    @classmethod
    async def open(cls, url: str, *, shared: bool = False, threads: bool = True) -> SqliteStore:
        """Open a database: `sqlite:///file`, a path or `:memory:`; create or upgrade it if need be.

        `shared` only reads, beside the process that writes. Without `threads` every call is done
        when it returns, on the caller's thread: for simulations, where order must not vary.
        """
        path = database_path(url)
        place = str(path or MEMORY)
        try:
            if path is None:
                return cls._open_memory(threads)
            return cls._open_shared(path) if shared else cls._open_file(path, threads)
        except FORESEEN as error:
            raise fault(error, place) from error

    @classmethod
    def _open_memory(cls, threads: bool) -> SqliteStore:
        db = connect(None, "writer")
        migrate(db, MEMORY)
        # The database lives in its connection, so reading takes turns with writing.
        lane: Lane = Writer(db) if threads else Inline(db)
        return cls(MEMORY, writer=lane, reader=lane, threads=threads)

    @classmethod
    def _open_file(cls, path: Path, threads: bool) -> SqliteStore:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            # Executions hold what people work with: nobody else's to read.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            db = connect(path, "writer")
            try:
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
        files = BodyFiles(path)
        return cls(str(path), writer=lane, reader=reader, files=files, lock=lock, threads=threads)

    @classmethod
    def _open_shared(cls, path: Path) -> SqliteStore:
        if not path.exists():
            raise StoreError(
                f"{path} does not exist. Run a playbook first, or name another database with --db."
            )
        db = connect(path, "reader")
        try:
            require_current(db, str(path))
        except BaseException:
            db.close()
            raise
        return cls(str(path), writer=None, reader=Readers([db]), files=BodyFiles(path))

    async def time(self) -> float:
        return time.time()

    async def installation(self) -> str:
        return await self._read(working.installation)

    async def probe(self) -> None:
        path = Path(self._place)
        if self._files is not None:
            await self._on_disk(lambda: _require_room(path))
        await self._write(working.probe)

    async def close(self) -> None:
        await self._reader.close()
        if self._writer is not None:
            await self._writer.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # --- How calls travel ---

    async def _read(self, job: Job[T]) -> T:
        try:
            return await self._reader.run(job)
        except FORESEEN as error:
            raise fault(error, self._place) from error

    async def _write(self, job: Job[T]) -> T:
        try:
            return await self._writer_lane().run(job)
        except FORESEEN as error:
            raise fault(error, self._place) from error

    def _writer_lane(self) -> Lane:
        if self._writer is None:
            raise StoreError(f"{self._place} was opened for reading only.")
        return self._writer

    async def _on_disk(self, task: Callable[[], T]) -> T:
        """Work on files, beside the event loop."""
        try:
            return await asyncio.to_thread(task) if self._threads else task()
        except OSError as error:
            raise fault(error, self._place) from error

    # --- Writing executions ---

    async def commit(
        self, writes: Sequence[Write], *, tied: Sequence[Collection[ExecutionId]] = ()
    ) -> list[ExecutionId]:
        filed = await self._file_large_results(writes)
        try:
            moved, ends = await self._writer_lane().run(
                lambda db: committing.commit(db, writes, filed, tied, self._heads)
            )
        except (sqlite3.IntegrityError, committing.Outdated):
            # An id or key is taken, or we remember wrongly. Look whose it is, and write the rest.
            moved, ends = await self._write(
                lambda db: committing.commit(db, writes, filed, tied, None)
            )
        except FORESEEN as error:
            raise fault(error, self._place) from error
        for execution_id, end in ends.items():
            self._heads.remember(execution_id, end)
        return moved

    async def _file_large_results(self, writes: Sequence[Write]) -> committing.Filed:
        filed: dict[tuple[ExecutionId, str], tuple[str, int]] = {}
        for write in writes:
            for key, body in write.results:
                if entry := await self._filed(body):
                    filed[write.execution_id, key] = entry
        return filed

    async def _filed(self, body: bytes) -> tuple[str, int] | None:
        """Put a large body into a file; None if it belongs in its row."""
        files = self._files
        if files is None or len(body) <= ROW_MAX:
            return None
        self._writer_lane()
        return await self._on_disk(lambda: files.write(body))

    # --- Reading executions ---

    async def load(self, execution_id: ExecutionId) -> Loaded | None:
        return await self._read(lambda db: reading.load(db, execution_id))

    async def events(
        self,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        limit: int = 1000,
        types: Sequence[str] = (),
        step: str | None = None,
        size: int | None = None,
    ) -> list[EventRow]:
        wanted = Selection(after, limit, types, step, size)
        return await self._read(lambda db: reading.events(db, execution_id, wanted))

    async def summary(self, execution_id: ExecutionId) -> Summary | None:
        return await self._read(lambda db: reading.summary(db, execution_id))

    async def summaries(
        self,
        wanted: Wanted = (),
        *,
        now: float = 0.0,
        before: tuple[float, ExecutionId] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        return await self._read(lambda db: reading.summaries(db, wanted, now, before, limit))

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        [(count,)] = await self._read(lambda db: reading.found(db, "executions_count", wanted, now))
        return int(count)

    async def span(self, wanted: Wanted = (), *, now: float = 0.0) -> tuple[float, float] | None:
        [(first, last)] = await self._read(
            lambda db: reading.found(db, "executions_span", wanted, now)
        )
        return None if first is None else (first, last)

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        chosen = {"begin": begin, "width": width, "end": end}
        rows = await self._read(
            lambda db: reading.found(db, "executions_histogram", wanted, now, chosen)
        )
        return sorted((bucket, status, count) for bucket, status, count in rows)

    async def openings(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, bytes]:
        return await self._read(lambda db: reading.openings(db, execution_ids))

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        return await self._read(lambda db: reading.label_counts(db, label, since, limit))

    async def by_key(self, key: str) -> Summary | None:
        return await self._read(lambda db: reading.by_key(db, key))

    async def unfinished(self) -> list[ExecutionId]:
        return await self._read(reading.unfinished)

    async def heads(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, int]:
        return await self._read(lambda db: reading.heads(db, execution_ids))

    # --- Keeping and forgetting ---

    async def ended(
        self,
        *,
        before: float,
        prefix: str = "",
        after: tuple[float, ExecutionId] = (0.0, ""),
        limit: int = 200,
    ) -> list[Ended]:
        return await self._read(lambda db: forgetting.ended(db, before, prefix, after, limit))

    async def tree(self, execution_id: ExecutionId) -> list[Member]:
        return await self._read(lambda db: forgetting.tree(db, execution_id))

    async def forget(self, execution_ids: Collection[ExecutionId]) -> int:
        return await self._write(lambda db: forgetting.forget(db, execution_ids))

    async def forget_files(self) -> int:
        files = self._files
        if files is None:
            return 0
        freed = 0
        for digest in await self._on_disk(files.settled):
            if not await self._read(partial(forgetting.is_filed, digest=digest)):
                freed += await self._on_disk(partial(files.remove, digest))
        return freed

    async def forgotten(self, *, since_day: int = 0) -> list[Forgotten]:
        return await self._read(lambda db: forgetting.forgotten(db, since_day))

    async def reuse(self, execution_id: ExecutionId, source: ExecutionId) -> None:
        await self._write(lambda db: db.execute(QUERIES["reuse"], (execution_id, source)))

    async def hold(self, hold: Hold) -> bool:
        return await self._write(lambda db: forgetting.hold(db, hold))

    async def release(self, execution_id: ExecutionId) -> bool:
        return await self._write(
            lambda db: db.execute(QUERIES["release"], (execution_id,)).rowcount > 0
        )

    async def holds(self) -> list[Hold]:
        return await self._read(forgetting.holds)

    # --- Limits ---

    async def slot_uses(self, names: Collection[str], *, limit: int = 100) -> list[SlotUse]:
        return await self._read(lambda db: reading.slot_uses(db, names, limit))

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        return await self._read(lambda db: reading.admissible(db, limit))

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        return await self._read(lambda db: reading.displaced(db, limit))

    # --- Work ---

    async def claim(
        self,
        worker_id: str,
        *,
        pool: str,
        limit: int,
        expires_at: float,
        executions: Collection[ExecutionId] | None = None,
        commands: Collection[CommandId] | None = None,
        own: bool = False,  # Nobody else opens any.
    ) -> list[Lease]:
        return await self._write(
            lambda db: working.claim(db, worker_id, pool, limit, expires_at, executions, commands)
        )

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        return await self._write(lambda db: working.renew(db, commands, now, expires_at))

    async def holders(self, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
        return await self._read(lambda db: working.holders(db, commands))

    async def lapsed(self, *, now: float, limit: int = 100) -> list[Lapsed]:
        return await self._read(lambda db: working.lapsed(db, now, limit))

    async def free_pools(self) -> dict[str, int]:
        return await self._read(working.free_pools)

    async def queue_sizes(self) -> dict[str, tuple[int, int]]:
        return await self._read(working.queue_sizes)

    async def open_commands(
        self, execution_id: ExecutionId | None = None
    ) -> list[tuple[Command, str | None, float | None]]:
        return await self._read(lambda db: working.open_commands(db, execution_id))

    async def waiting_commands(self, *, limit: int = 1000) -> list[Command]:
        return await self._read(lambda db: working.waiting_commands(db, limit))

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        return await self._read(lambda db: working.due_timers(db, now, limit))

    async def timers(self, execution_id: ExecutionId) -> dict[str, float]:
        return await self._read(
            lambda db: dict(db.execute(QUERIES["timers_of"], (execution_id,)).fetchall())
        )

    async def next_timer(self) -> float | None:
        return await self._read(working.next_timer)

    # --- Who is there ---

    async def beat(self, runtime: Runtime) -> None:
        await self._write(lambda db: working.beat(db, runtime))

    async def runtimes(
        self, *, kind: str | None = None, since: float | None = None
    ) -> list[Runtime]:
        return await self._read(lambda db: working.runtimes(db, kind, since))

    async def leave(self, name: str) -> bool:
        return await self._write(lambda db: working.leave(db, name))

    # --- Results ---

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> str:
        entry = await self._filed(body)
        filed = {(execution_id, key): entry} if entry else {}

        def put(db: sqlite3.Connection) -> str:
            row = committing.result_row(execution_id, key, body, filed)
            db.execute(QUERIES["put_result"], row)
            (checksum,) = db.execute(QUERIES["result_checksum"], (execution_id, key)).fetchone()
            return str(checksum)

        return await self._write(put)

    async def put_pieces(
        self,
        execution_id: ExecutionId,
        key: str,
        pieces: AsyncIterator[bytes],
        check: Callable[[str, int], None],
    ) -> str:
        files = self._files
        coming = gathered(pieces, PIECE)
        first = await anext(coming, b"")
        second = await anext(coming, b"")
        if files is None or not second:
            rest = [piece async for piece in coming]
            return await self.put_result(
                execution_id, key, checked(b"".join((first, second, *rest)), check)
            )
        self._writer_lane()
        with await self._on_disk(files.begin) as file:
            await self._on_disk(lambda: file.write(first))
            await self._on_disk(lambda: file.write(second))
            async for piece in coming:
                await self._on_disk(partial(file.write, piece))
            check(file.digest, file.size)
            entry = await self._on_disk(file.keep)

        def put(db: sqlite3.Connection) -> str:
            db.execute(QUERIES["put_result"], (execution_id, key, *entry, None))
            (checksum,) = db.execute(QUERIES["result_checksum"], (execution_id, key)).fetchone()
            return str(checksum)

        return await self._write(put)

    async def get_pieces(self, execution_id: ExecutionId, key: str) -> Pieces | None:
        row = await self._read(
            lambda db: db.execute(QUERIES["result"], (execution_id, key)).fetchone()
        )
        if row is None:
            return None
        digest, size, body = row
        if body is not None:
            return Pieces(size, one_piece(verified(body, digest, execution_id, key)))
        files = self._files
        assert files is not None, "a database in memory keeps every body in its row"
        file = await self._on_disk(lambda: files.verified(digest, execution_id, key))
        return Pieces(size, self._read_on(file))

    async def _read_on(self, file: BufferedReader) -> AsyncIterator[bytes]:
        with file:
            while piece := await self._on_disk(lambda: file.read(PIECE)):
                yield piece

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes | None:
        row = await self._read(
            lambda db: db.execute(QUERIES["result"], (execution_id, key)).fetchone()
        )
        if row is None:
            return None
        digest, _, body = row
        if body is not None:
            return verified(body, digest, execution_id, key)
        files = self._files
        assert files is not None, "a database in memory keeps every body in its row"
        return await self._on_disk(lambda: files.read(digest, execution_id, key))

    # --- Variables ---

    async def get_vars(self, execution_id: ExecutionId) -> dict[str, bytes]:
        return await self._read(lambda db: reading.variables(db, execution_id))

    # --- Catalog and nets ---

    async def register(
        self, entry: CatalogEntry, net: bytes, renewed: Renewed | None = None
    ) -> CatalogEntry:
        return await self._write(lambda db: cataloguing.register(db, entry, net, renewed))

    async def catalog_entry(self, path: str, version: int | None = None) -> CatalogEntry | None:
        return await self._read(lambda db: cataloguing.catalog_entry(db, path, version))

    async def catalog_entry_of(self, catalog_id: str) -> CatalogEntry | None:
        return await self._read(lambda db: cataloguing.catalog_entry_of(db, catalog_id))

    async def catalog(self, *, kind: str | None = None, prefix: str = "") -> list[CatalogEntry]:
        return await self._read(lambda db: cataloguing.catalog(db, kind, prefix))

    async def versions(
        self, path: str, *, before: int | None = None, limit: int = 50
    ) -> list[CatalogEntry]:
        return await self._read(lambda db: cataloguing.versions(db, path, before, limit))

    async def net(self, digest: str) -> bytes | None:
        return await self._read(lambda db: cataloguing.net(db, digest))

    async def put_net(self, digest: str, net: bytes) -> None:
        await self._write(lambda db: cataloguing.put_net(db, digest, net))

    # --- Credentials ---

    async def put_credential(self, credential: StoredCredential) -> None:
        await self._write(lambda db: cataloguing.put_credential(db, credential))

    async def credential(self, name: str) -> StoredCredential | None:
        return await self._read(lambda db: cataloguing.credential(db, name))

    async def credentials(self) -> list[StoredCredential]:
        return await self._read(cataloguing.credentials)

    async def reseal_credential(self, name: str, *, old: bytes, new: bytes) -> bool:
        return await self._write(lambda db: cataloguing.reseal_credential(db, name, old, new))

    async def delete_credential(self, name: str) -> bool:
        return await self._write(lambda db: cataloguing.delete_credential(db, name))

    # --- Saved views ---

    async def views(self) -> list[SavedView]:
        return await self._read(cataloguing.views)

    async def put_view(self, view: SavedView) -> None:
        await self._write(lambda db: cataloguing.put_view(db, view))

    async def delete_view(self, name: str) -> bool:
        return await self._write(lambda db: cataloguing.delete_view(db, name))

    # --- Upkeep ---

    async def check(self) -> list[str]:
        """Everything that is not what was written, one sentence each; reads all there is."""
        found = await self._read(checking.row_problems)
        for execution_id, key in await self._read(checking.result_keys):
            try:
                await self.get_result(execution_id, key)
            except Corrupted as error:
                found.append(first_sentence(error))
        return found


def _require_room(path: Path) -> None:
    room = shutil.disk_usage(path.parent).free
    if room < ROOM_MIN:
        raise full(str(path), f"{room:,} bytes are left")
