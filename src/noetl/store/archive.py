"""The archive for recordings of executions before they are removed: a folder, or a bucket.

An object is complete or absent. Its name contains the playbook, the day and the execution:
`shop/orders/2026-11-17/4711.noetl`. Writing one again replaces it by the same content.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from tempfile import mkstemp
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from noetl.errors import BadSetting, NotFound, StoreError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SUFFIX = ".noetl"
PIECE = 1 << 20


class Archived(NamedTuple):
    """An object of the archive."""

    name: str
    size: int
    modified_at: float


class Archive(Protocol):
    """A place for files by name."""

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Store a file. Raises StoreError if that fails."""

    async def get(self, name: str) -> AsyncIterator[bytes]:
        """The content of a file. Raises NotFound."""

    async def names(self, prefix: str, after: str, limit: int) -> list[Archived]:
        """Files by name."""


def archive_at(url: str) -> Archive:
    """The archive that a setting names. Raises BadSetting."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return Folder(Path(unquote(parts.path) if parts.scheme else url))
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise BadSetting(
            "NOETL_ARCHIVE_URL names a bucket, but the library for buckets is not installed here."
            ' Install it with `pip install "noetl[store]"`, or name a folder.'
        ) from None
    try:
        return Bucket(from_url(url), url)
    except (BaseError, ValueError) as error:
        told = str(error).partition("\n")[0]
        raise BadSetting(
            f"NOETL_ARCHIVE_URL cannot be used: {told.rstrip('.')}."
            " Name a folder, or a bucket such as s3://bucket/noetl."
        ) from None


def checked(name: str) -> str:
    """The name, if it is a valid one. Raises NotFound, because it may come from outside."""
    parts = PurePosixPath(name).parts
    if (
        not name.endswith(SUFFIX)
        or name.startswith("/")
        or {"..", "."} & set(parts)
        or "\0" in name
    ):
        raise NotFound(f'the archive has no "{name[:200]}".')
    return name


class Folder:
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        path = self._root / checked(name)
        try:
            await asyncio.to_thread(path.parent.mkdir, 0o700, parents=True, exist_ok=True)
            handle, written = mkstemp(dir=path.parent, prefix=".writing-")
            try:
                with os.fdopen(handle, "wb") as file:
                    async for piece in pieces:
                        await asyncio.to_thread(file.write, piece)
                    file.flush()
                    await asyncio.to_thread(os.fsync, file.fileno())
                os.replace(written, path)
            except BaseException:
                Path(written).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StoreError(f"the archive {self._root} cannot be written: {error}.") from error

    async def get(self, name: str) -> AsyncIterator[bytes]:
        try:
            file = (self._root / checked(name)).open("rb")
        except OSError:
            raise NotFound(f'the archive has no "{name[:200]}".') from None

        async def pieces() -> AsyncIterator[bytes]:
            with file:
                while piece := await asyncio.to_thread(file.read, PIECE):
                    yield piece

        return pieces()

    async def names(self, prefix: str, after: str, limit: int) -> list[Archived]:
        def found() -> list[Archived]:
            listed = []
            for path in self._root.rglob(f"*{SUFFIX}"):
                name = path.relative_to(self._root).as_posix()
                if name.startswith(prefix) and name > after:
                    about = path.stat()
                    listed.append(Archived(name, about.st_size, about.st_mtime))
            return sorted(listed)[:limit]

        return await asyncio.to_thread(found)


class Bucket:
    """Objects in a store that `obstore` supports: S3, Google Cloud Storage, Azure."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        import obstore
        from obstore.exceptions import BaseError

        try:
            await obstore.put_async(self._store, checked(name), pieces)
        except BaseError as error:
            told = str(error).partition("\n")[0]
            raise StoreError(f"the archive {self._url} cannot be written: {told}.") from error

    async def get(self, name: str) -> AsyncIterator[bytes]:
        import obstore
        from obstore.exceptions import BaseError

        try:
            found = await obstore.get_async(self._store, checked(name))
        except (BaseError, FileNotFoundError) as error:
            raise NotFound(f'the archive has no "{name[:200]}".') from error

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in found.stream(min_chunk_size=PIECE):
                yield bytes(piece)

        return pieces()

    async def names(self, prefix: str, after: str, limit: int) -> list[Archived]:
        import obstore
        from obstore.exceptions import BaseError

        # Buckets list whole folders; a prefix may end within one.
        folder = prefix.rpartition("/")[0]
        listed: list[Archived] = []
        try:
            stream = obstore.list(self._store, prefix=folder or None, offset=after or None)
            async for batch in stream:
                for one in batch:
                    if one["path"].startswith(prefix) and one["path"].endswith(SUFFIX):
                        at = one["last_modified"].timestamp()
                        listed.append(Archived(one["path"], one["size"], at))
                if len(listed) >= limit:
                    break
        except BaseError as error:
            told = str(error).partition("\n")[0]
            raise StoreError(f"the archive {self._url} cannot be read: {told}.") from error
        return sorted(listed)[:limit]
