"""The catalog in PostgreSQL. The promise is written in `noetl.store.catalog`."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.model.triggers import TriggerChange
from noetl.store.catalog import (
    VERSION_MAX,
    CatalogEntry,
    entry_checksum,
    refuse_other_kind,
    verified_entry,
    verified_net,
)
from noetl.store.postgres.database import Connection, Database, change, rows
from noetl.store.postgres.triggers import locked, write_change
from noetl.store.triggers import Renewed


class PostgresCatalog:
    """See `noetl.store.catalog.Catalog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(
        self, entry: CatalogEntry, net: bytes, renewed: Renewed | None = None
    ) -> CatalogEntry:
        async def write(db: Connection) -> CatalogEntry:
            kept = await _register(db, entry, net)
            if renewed is not None:
                row = renewed(kept.version, await locked(db, kept.path))
                await write_change(db, TriggerChange(row=row))
            return kept

        return await self._database.together(write)

    async def entry(self, path: str, version: int | None = None) -> CatalogEntry | None:
        name = "newest_entry" if version is None else "entry_of_version"
        found = await self._database.row(name, entry_of, {"path": path, "version": version})
        return verified_entry(*found) if found else None

    async def entry_of(self, catalog_id: str) -> CatalogEntry | None:
        found = await self._database.row("entry_of_id", entry_of, {"catalog_id": catalog_id})
        return verified_entry(*found) if found else None

    async def entries(self, *, kind: str | None = None, prefix: str = "") -> list[CatalogEntry]:
        chosen = {"kind": kind, "prefix": prefix}
        found = await self._database.rows("newest_entries", entry_of, chosen)
        return [entry for entry, _ in found]

    async def versions(
        self, path: str, *, before: int | None = None, limit: int = 50
    ) -> list[CatalogEntry]:
        chosen = {"path": path, "before": VERSION_MAX if before is None else before, "limit": limit}
        return [entry for entry, _ in await self._database.rows("versions", entry_of, chosen)]

    async def net(self, digest: str) -> bytes | None:
        row = await self._database.one("net", {"digest": digest})
        return verified_net(row["body"], digest) if row else None

    async def put_net(self, digest: str, net: bytes) -> None:
        await self._database.change("put_net", {"digest": digest, "body": net})


async def _register(db: Connection, entry: CatalogEntry, net: bytes) -> CatalogEntry:
    """The newest version if its content is this, otherwise the next.

    Returning to an earlier content is a new version, too, because the newest one runs by default.
    """
    await rows(db, "lock_path", {"path": entry.path})
    found = await rows(db, "newest_entry", {"path": entry.path})
    newest = entry_of(**found[0])[0] if found else None
    refuse_other_kind(entry, newest)
    if newest is not None and (newest.kind, newest.content) == (entry.kind, entry.content):
        return newest
    await change(db, "put_net", {"digest": entry.digest, "body": net})
    new = msgspec.structs.replace(entry, version=newest.version + 1 if newest else 1)
    row = msgspec.structs.asdict(new) | {"checksum": entry_checksum(new)}
    await change(db, "insert_catalog_entry", row)
    return new


def entry_of(checksum: int | None, **fields: Any) -> tuple[CatalogEntry, int | None]:
    """An entry and its checksum."""
    return CatalogEntry(**fields), checksum
