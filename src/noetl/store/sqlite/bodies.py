"""Result bodies in SQLite: small ones in their rows, large ones as files beside the database, named
by their checksum. The protocol is `noetl.store.bodies`.

A file is complete before any row refers to it. The same body again is the same file, so repeats are
harmless; a file without a row, left by a crash, only takes space.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from noetl.errors import Corrupted
from noetl.model.ids import ExecutionId
from noetl.store.bodies import PIECE, BodyCopies, Pieces, checked, gathered, one_piece
from noetl.store.checksums import damaged_result, verified_result
from noetl.store.database import Transaction
from noetl.store.sqlite.database import SqliteDatabase

ROW_MAX = 1 << 20
"""Larger bodies go to files: in rows they would pass through the WAL and the page cache."""
SETTLED_SECONDS = 3600.0
"""After this time, the rows that a file was written for exist."""

Filed = Mapping[tuple[ExecutionId, str], tuple[str, int]]
"""Bodies that are already in files: (execution, key) → sha256 and size."""


def result_row(execution_id: ExecutionId, key: str, body: bytes, filed: Filed) -> dict[str, Any]:
    """A body in its row, or if it is in a file, the reference to it."""
    if in_file := filed.get((execution_id, key)):
        return _row(execution_id, key, *in_file, None)
    return _row(execution_id, key, sha256(body).hexdigest(), len(body), body)


def _row(*values: Any) -> dict[str, Any]:
    return dict(zip(("execution_id", "key", "sha256", "size", "body"), values, strict=True))


class SqliteBodies:
    """See `noetl.store.bodies.Bodies`."""

    copies: BodyCopies | None = None

    def __init__(self, database: SqliteDatabase, files: BodyFiles | None) -> None:
        self._database = database
        self._files = files

    async def filed(self, body: bytes) -> tuple[str, int] | None:
        """Put a large body into a file; None if it belongs in its row."""
        files = self._files
        if files is None or len(body) <= ROW_MAX:
            return None
        await self._database.require_writer()
        return await self._database.on_disk(lambda: files.write(body))

    async def put(self, execution_id: ExecutionId, key: str, body: bytes) -> str:
        entry = await self.filed(body)
        filed = {(execution_id, key): entry} if entry else {}
        return await self._put_row(result_row(execution_id, key, body, filed))

    async def _put_row(self, row: dict[str, Any]) -> str:
        async def put(db: Transaction) -> str:
            await db.change("put_result", **row)
            [(checksum, _)] = await db.tuples("result_checksum", **row)
            return str(checksum)

        return await self._database.together(put)

    async def put_pieces(
        self,
        execution_id: ExecutionId,
        key: str,
        pieces: AsyncIterator[bytes],
        check: Callable[[str, int], None],
    ) -> str:
        files, on_disk = self._files, self._database.on_disk
        coming = gathered(pieces, PIECE)
        first = await anext(coming, b"")
        second = await anext(coming, b"")
        if files is None or not second:
            rest = [piece async for piece in coming]
            return await self.put(
                execution_id, key, checked(b"".join((first, second, *rest)), check)
            )
        await self._database.require_writer()
        with await on_disk(files.begin) as file:
            await on_disk(lambda: file.write(first))
            await on_disk(lambda: file.write(second))
            async for piece in coming:
                await on_disk(partial(file.write, piece))
            check(file.digest, file.size)
            entry = await on_disk(file.keep)
        return await self._put_row(_row(execution_id, key, *entry, None))

    async def get_pieces(self, execution_id: ExecutionId, key: str) -> Pieces | None:
        row = await self._row(execution_id, key)
        if row is None:
            return None
        digest, size, body = row
        if body is not None:
            return Pieces(size, one_piece(verified_result(body, digest, execution_id, key)))
        files = self._body_files()
        file = await self._database.on_disk(lambda: files.verified(digest, execution_id, key))
        return Pieces(size, self._read_on(file))

    async def _read_on(self, file: BufferedReader) -> AsyncIterator[bytes]:
        with file:
            while piece := await self._database.on_disk(lambda: file.read(PIECE)):
                yield piece

    async def get(self, execution_id: ExecutionId, key: str) -> bytes | None:
        row = await self._row(execution_id, key)
        if row is None:
            return None
        digest, _, body = row
        if body is not None:
            return verified_result(body, digest, execution_id, key)
        files = self._body_files()
        return await self._database.on_disk(lambda: files.read(digest, execution_id, key))

    async def verify(self, execution_id: ExecutionId, key: str) -> None:
        row = await self._row(execution_id, key)
        if row is None:
            return
        digest, _, body = row
        if body is not None:
            verified_result(body, digest, execution_id, key)
            return
        files = self._body_files()
        await self._database.on_disk(lambda: files.verified(digest, execution_id, key).close())

    async def _row(
        self, execution_id: ExecutionId, key: str
    ) -> tuple[str, int, bytes | None] | None:
        found = await self._database.tuples("result", execution_id=execution_id, key=key)
        return found[0] if found else None

    def _body_files(self) -> BodyFiles:
        assert self._files is not None, "a database in memory keeps every body in its row"
        return self._files


class BodyFiles:
    """The directory `<database>.results`."""

    def __init__(self, database: Path) -> None:
        self._directory = database.with_name(database.name + ".results")

    def write(self, body: bytes) -> tuple[str, int]:
        """Store a body. Returns its sha256 and size. On return it survives a power failure."""
        with self.begin() as file:
            file.write(body)
            return file.keep()

    def begin(self) -> BodyFile:
        """A file for a body that arrives in chunks."""
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, exist_ok=True)
            _flush_directory(self._directory.parent)
        return BodyFile(self._directory)

    def read(self, digest: str, execution_id: ExecutionId, key: str) -> bytes:
        with self._opened(digest, execution_id, key) as file:
            return verified_result(file.read(), digest, execution_id, key)

    def verified(self, digest: str, execution_id: ExecutionId, key: str) -> BufferedReader:
        """The file of a body, verified and at its beginning."""
        file = self._opened(digest, execution_id, key)
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            file.close()
            raise damaged_result(execution_id, key, digest)
        file.seek(0)
        return file

    def settled(self) -> list[str]:
        """Bodies whose file is not new: a row refers to each, or none will.

        A body is written before the row that refers to it, and again if it already exists.
        """
        if not self._directory.is_dir():
            return []
        long_ago = time.time() - SETTLED_SECONDS
        with os.scandir(self._directory) as found:
            return [
                entry.name
                for entry in found
                if entry.stat(follow_symlinks=False).st_mtime < long_ago
            ]

    def remove(self, digest: str) -> int:
        """Remove the file of an unreferenced body. Returns its size. One that has been written
        again meanwhile stays.
        """
        file = self._directory / digest
        about = file.stat(follow_symlinks=False)
        if about.st_mtime >= time.time() - SETTLED_SECONDS:
            return 0
        file.unlink()
        return about.st_size

    def _opened(self, digest: str, execution_id: ExecutionId, key: str) -> BufferedReader:
        try:
            return (self._directory / digest).open("rb")
        except FileNotFoundError:
            raise Corrupted(
                f"{self._directory / digest} is missing: the body of result {key!r} of execution"
                f" {execution_id}. Restore it from a backup, or run the execution anew."
            ) from None


class BodyFile:
    """A body that is being written. Unless it is kept, leaving this deletes it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        handle, self._name = mkstemp(dir=directory, prefix="writing-")
        self._file = os.fdopen(handle, "wb")
        self._digest = sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    def keep(self) -> tuple[str, int]:
        """Its sha256 and size. On return it survives a power failure."""
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._name, self._directory / self.digest)
        _flush_directory(self._directory)
        return self.digest, self.size

    def __enter__(self) -> BodyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._name)


def _flush_directory(directory: Path) -> None:
    """Make a new name survive a power failure. Windows cannot, and need not."""
    if os.name == "nt":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
