"""The catalog in SQLite. The promise is written in `noetl.store.catalog`."""

from __future__ import annotations

import sqlite3
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
from noetl.store.sqlite.database import Database, rows
from noetl.store.sqlite.queries import QUERIES
from noetl.store.sqlite.triggers import change, trigger
from noetl.store.triggers import Renewed


class SqliteCatalog:
    """See `noetl.store.catalog.Catalog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(
        self, entry: CatalogEntry, net: bytes, renewed: Renewed | None = None
    ) -> CatalogEntry:
        def write(db: sqlite3.Connection) -> CatalogEntry:
            kept = _register(db, entry, net)
            if renewed is not None:
                row = renewed(kept.version, trigger(db, kept.path))
                change(db, TriggerChange(row=row))
            return kept

        return await self._database.write(write)

    async def entry(self, path: str, version: int | None = None) -> CatalogEntry | None:
        name = "newest_entry" if version is None else "entry_of_version"
        found = await self._database.row(name, entry_of, path=path, version=version)
        return verified_entry(*found) if found else None

    async def entry_of(self, catalog_id: str) -> CatalogEntry | None:
        found = await self._database.row("entry_of_id", entry_of, catalog_id=catalog_id)
        return verified_entry(*found) if found else None

    async def entries(self, *, kind: str | None = None, prefix: str = "") -> list[CatalogEntry]:
        found = await self._database.rows("newest_entries", entry_of, kind=kind, prefix=prefix)
        return [entry for entry, _ in found]

    async def versions(
        self, path: str, *, before: int | None = None, limit: int = 50
    ) -> list[CatalogEntry]:
        below = VERSION_MAX if before is None else before
        found = await self._database.rows(
            "versions", entry_of, path=path, before=below, limit=limit
        )
        return [entry for entry, _ in found]

    async def net(self, digest: str) -> bytes | None:
        found = await self._database.tuples("net", digest=digest)
        return verified_net(found[0][0], digest) if found else None

    async def put_net(self, digest: str, net: bytes) -> None:
        await self._database.change("put_net", digest=digest, body=net)


def _register(db: sqlite3.Connection, entry: CatalogEntry, net: bytes) -> CatalogEntry:
    """The newest version if its content is this, otherwise the next.

    Returning to an earlier content is a new version, too, because the newest one runs by default.
    """
    newest = next((found for found, _ in rows(db, "newest_entry", entry_of, path=entry.path)), None)
    refuse_other_kind(entry, newest)
    if newest is not None and (newest.kind, newest.content) == (entry.kind, entry.content):
        return newest
    db.execute(QUERIES["put_net"], {"digest": entry.digest, "body": net})
    new = msgspec.structs.replace(entry, version=newest.version + 1 if newest else 1)
    row = msgspec.structs.asdict(new) | {"checksum": entry_checksum(new)}
    db.execute(QUERIES["insert_catalog_entry"], row)
    return new


def entry_of(checksum: int | None, **fields: Any) -> tuple[CatalogEntry, int | None]:
    """An entry and its checksum."""
    return CatalogEntry(**fields), checksum
