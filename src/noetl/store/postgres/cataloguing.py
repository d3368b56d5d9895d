"""What is kept by name: documents in versions, and credentials."""

from __future__ import annotations

from typing import Any

import msgspec
from psycopg.rows import DictRow

from noetl.model.triggers import TriggerChange
from noetl.store.base import CatalogEntry, SavedView, StoredCredential
from noetl.store.checksums import entry_checksum, refuse_other_kind
from noetl.store.postgres import triggers
from noetl.store.postgres.connections import Connection, change, rows
from noetl.store.triggers import Renewed

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


async def register(
    db: Connection, entry: CatalogEntry, net: bytes, renewed: Renewed | None
) -> CatalogEntry:
    kept = await _register(db, entry, net)
    if renewed is not None:
        row = renewed(kept.version, await triggers.locked(db, kept.path))
        await triggers.write_change(db, TriggerChange(row=row))
    return kept


async def _register(db: Connection, entry: CatalogEntry, net: bytes) -> CatalogEntry:
    """The newest version if its content is this, else the next.

    Going back to an earlier content is a new version too: by default the newest is what runs.
    """
    await rows(db, "lock_path", {"path": entry.path})
    found = await rows(db, "newest_entry", {"path": entry.path})
    newest = entry_of(found[0])[0] if found else None
    refuse_other_kind(entry, newest)
    if newest is not None and (newest.kind, newest.content) == (entry.kind, entry.content):
        return newest
    await change(db, "put_net", {"digest": entry.digest, "body": net})
    new = msgspec.structs.replace(entry, version=newest.version + 1 if newest else 1)
    row = msgspec.structs.asdict(new) | {"checksum": entry_checksum(new)}
    await change(db, "insert_catalog_entry", row)
    return new


def entry_of(row: DictRow) -> tuple[CatalogEntry, int | None]:
    """An entry and its checksum."""
    checksum = row.pop("checksum")
    return CatalogEntry(**row), checksum


def credential_row(credential: StoredCredential) -> dict[str, Any]:
    lists = {"tags": credential.tags, "playbooks": credential.playbooks}
    written = {name: msgspec.json.encode(one).decode() for name, one in lists.items()}
    return msgspec.structs.asdict(credential) | written


def credential_of(row: DictRow) -> StoredCredential:
    lists = {name: _decode_names(row[name]) for name in ("tags", "playbooks")}
    return StoredCredential(**row | lists)


def view_of(row: DictRow) -> SavedView:
    return SavedView(**row | {"columns": _decode_names(row["columns"])})
