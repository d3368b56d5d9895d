"""The catalog: versioned documents, and compiled nets by digest."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from zlib import crc32

import msgspec

from noetl.errors import Conflict, Corrupted
from noetl.store.database import Database, Transaction
from noetl.store.triggers import Renewed, locked_row, write_row

VERSION_MAX = 2**31 - 1


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A registered document. Versions of a path count from 1."""

    catalog_id: str
    path: str
    version: int
    kind: str
    digest: str
    content: str
    description: str = ""
    created_at: float = 0.0


class Catalog:
    """Documents and nets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(
        self, entry: CatalogEntry, net: bytes, renewed: Renewed | None = None
    ) -> CatalogEntry:
        """Register a document. The same content again yields the same version; new content is the
        next.

        Raises Conflict if the path belongs to a document of another kind. The trigger row that
        `renewed` returns is written in the same transaction; `renewed` may be called again.
        """

        async def write(db: Transaction) -> CatalogEntry:
            kept = await _register(db, entry, net)
            if renewed is not None:
                await write_row(db, renewed(kept.version, await locked_row(db, kept.path)))
            return kept

        return await self._database.together(write)

    async def entry(self, path: str, version: int | None = None) -> CatalogEntry | None:
        """A version, by default the newest."""
        if version is not None and version > VERSION_MAX:
            return None
        name = "newest_entry" if version is None else "entry_of_version"
        found = await self._database.row(name, entry_of, path=path, version=version)
        return verified_entry(*found) if found else None

    async def entry_of(self, catalog_id: str) -> CatalogEntry | None:
        """The version that has this id."""
        found = await self._database.row("entry_of_id", entry_of, catalog_id=catalog_id)
        return verified_entry(*found) if found else None

    async def entries(self, *, kind: str | None = None, prefix: str = "") -> list[CatalogEntry]:
        """The newest version of every path, by path."""
        found = await self._database.rows("newest_entries", entry_of, kind=kind, prefix=prefix)
        return [entry for entry, _ in found]

    async def versions(
        self, path: str, *, before: int | None = None, limit: int = 50
    ) -> list[CatalogEntry]:
        """Versions of a path below `before`, newest first."""
        below = VERSION_MAX if before is None else before
        found = await self._database.rows(
            "versions", entry_of, path=path, before=below, limit=limit
        )
        return [entry for entry, _ in found]

    async def net(self, digest: str) -> bytes | None:
        """The canonical bytes of a net."""
        found = await self._database.column("net", digest=digest)
        return verified_net(found[0], digest) if found else None

    async def put_net(self, digest: str, net: bytes) -> None:
        """Store a net that is not in the catalog: a file run directly."""
        await self._database.change("put_net", digest=digest, body=net)


async def _register(db: Transaction, entry: CatalogEntry, net: bytes) -> CatalogEntry:
    """The newest version if its content is this, otherwise the next.

    Returning to an earlier content is a new version, too, because the newest one runs by default.
    """
    await db.lock("lock_path", path=entry.path)
    found = await db.row("newest_entry", entry_of, path=entry.path)
    newest = found[0] if found else None
    if newest is not None and newest.kind != entry.kind:
        raise Conflict(
            f'"{entry.path}" is a {newest.kind} in the catalog, so no {entry.kind} can stand there.'
            " Give this one another `metadata.path`."
        )
    if newest is not None and newest.content == entry.content:
        return newest
    await db.change("put_net", digest=entry.digest, body=net)
    new = msgspec.structs.replace(entry, version=newest.version + 1 if newest else 1)
    columns = msgspec.structs.asdict(new)
    await db.change("insert_catalog_entry", **columns, checksum=entry_checksum(new))
    return new


def entry_of(checksum: int | None, **fields: Any) -> tuple[CatalogEntry, int | None]:
    """An entry and its checksum."""
    return CatalogEntry(**fields), checksum


def entry_checksum(entry: CatalogEntry) -> int:
    """The checksum over all columns of a catalog row."""
    return crc32(msgspec.json.encode(msgspec.structs.astuple(entry)))


def verified_entry(entry: CatalogEntry, checksum: int | None) -> CatalogEntry:
    """The entry. Raises Corrupted if it is not what was written. Old ones have no checksum."""
    if checksum is not None and entry_checksum(entry) != checksum:
        raise Corrupted(
            f'Version {entry.version} of "{entry.path}" in the catalog is not what was written.'
            " It is not started any more, other versions are not affected. Restore it from a"
            " backup, or register the playbook again."
        )
    return entry


def verified_net(body: bytes, digest: str) -> bytes:
    """The bytes of a net. Raises Corrupted if their digest does not match."""
    if not isinstance(body, bytes) or sha256(body).hexdigest() != digest:
        raise Corrupted(
            f"The compiled playbook {digest[:12]} is not what was written: its sha256 is not its"
            " digest. Executions of it are not served, others are not affected. Restore it from a"
            " backup, or delete its row and register the playbook again."
        )
    return body
