"""Large result bodies as files beside the database, named by their checksum.

A file is whole before any row refers to it. The same body again is the same file, so repeats are
harmless; a file that no row refers to after a crash is only space.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import mkstemp

from noetl.errors import Corrupted
from noetl.model.ids import ExecutionId
from noetl.store.checksums import damaged_result

ROW_MAX = 1 << 20
"""Larger bodies go to files: in rows they would pass through the log and the page cache."""


class BodyFiles:
    """The directory `<database>.results`."""

    def __init__(self, database: Path) -> None:
        self._directory = database.with_name(database.name + ".results")

    def write(self, body: bytes) -> tuple[str, int]:
        """Keep a body; its sha256 and size. On return it survives the power plug."""
        digest = sha256(body).hexdigest()
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, exist_ok=True)
            _flush_directory(self._directory.parent)
        handle, name = mkstemp(dir=self._directory, prefix="writing-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._directory / digest)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise
        _flush_directory(self._directory)
        return digest, len(body)

    def read(self, digest: str, execution_id: ExecutionId, key: str) -> bytes:
        try:
            body = (self._directory / digest).read_bytes()
        except FileNotFoundError:
            raise Corrupted(
                f"{self._directory / digest} is missing: the body of result {key!r} of execution"
                f" {execution_id}. Restore it from a backup, or run the execution anew."
            ) from None
        return verified(body, digest, execution_id, key)


def verified(body: bytes, digest: str, execution_id: ExecutionId, key: str) -> bytes:
    """The body, if it is what was written."""
    if sha256(body).hexdigest() != digest:
        raise damaged_result(execution_id, key, digest)
    return body


def _flush_directory(directory: Path) -> None:
    """Make a new name survive the power plug. Windows cannot, and need not."""
    if os.name == "nt":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
