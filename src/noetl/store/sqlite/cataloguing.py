"""What is kept by name: documents in versions, nets by digest, credentials."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from noetl.model.triggers import TriggerChange
from noetl.store.base import VERSION_MAX, CatalogEntry, SavedView, StoredCredential
from noetl.store.checksums import (
    entry_checksum,
    refuse_other_kind,
    verified_entry,
    verified_net,
)
from noetl.store.sqlite import triggers
from noetl.store.sqlite.queries import QUERIES
from noetl.store.triggers import Renewed

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


def register(
    db: sqlite3.Connection, entry: CatalogEntry, net: bytes, renewed: Renewed | None
) -> CatalogEntry:
    kept = _register(db, entry, net)
    if renewed is not None:
        row = renewed(kept.version, triggers.trigger(db, kept.path))
        triggers.change(db, TriggerChange(row=row))
    return kept


def _register(db: sqlite3.Connection, entry: CatalogEntry, net: bytes) -> CatalogEntry:
    """The newest version if its content is this, else the next.

    Going back to an earlier content is a new version too: by default the newest is what runs.
    """
    found = db.execute(QUERIES["newest_entry"], (entry.path,)).fetchone()
    newest = entry_of(found)[0] if found else None
    refuse_other_kind(entry, newest)
    if newest is not None and (newest.kind, newest.content) == (entry.kind, entry.content):
        return newest
    put_net(db, entry.digest, net)
    new = msgspec.structs.replace(entry, version=newest.version + 1 if newest else 1)
    row = (new.path, new.version, new.catalog_id, new.kind, new.digest)
    more = (new.content, new.description, new.created_at, entry_checksum(new))
    db.execute(QUERIES["insert_catalog_entry"], row + more)
    return new


def catalog_entry(db: sqlite3.Connection, path: str, version: int | None) -> CatalogEntry | None:
    if version is None:
        row = db.execute(QUERIES["newest_entry"], (path,)).fetchone()
    else:
        row = db.execute(QUERIES["entry_of_version"], (path, version)).fetchone()
    return verified_entry(*entry_of(row)) if row else None


def catalog_entry_of(db: sqlite3.Connection, catalog_id: str) -> CatalogEntry | None:
    row = db.execute(QUERIES["entry_of_id"], (catalog_id,)).fetchone()
    return verified_entry(*entry_of(row)) if row else None


def catalog(db: sqlite3.Connection, kind: str | None, prefix: str) -> list[CatalogEntry]:
    rows = db.execute(QUERIES["newest_entries"], {"kind": kind, "prefix": prefix})
    return [entry_of(row)[0] for row in rows]


def versions(
    db: sqlite3.Connection, path: str, before: int | None, limit: int
) -> list[CatalogEntry]:
    chosen = {"path": path, "before": VERSION_MAX if before is None else before, "limit": limit}
    return [entry_of(row)[0] for row in db.execute(QUERIES["versions"], chosen)]


def views(db: sqlite3.Connection) -> list[SavedView]:
    return [
        SavedView(name=name, q=q, columns=_decode_names(columns), owner=owner, updated_at=at)
        for name, q, columns, owner, at in db.execute(QUERIES["views"])
    ]


def put_view(db: sqlite3.Connection, view: SavedView) -> None:
    columns = {"columns": msgspec.json.encode(view.columns).decode()}
    db.execute(QUERIES["put_view"], msgspec.structs.asdict(view) | columns)


def delete_view(db: sqlite3.Connection, name: str) -> bool:
    return db.execute(QUERIES["delete_view"], {"name": name}).rowcount > 0


def entry_of(row: tuple[Any, ...]) -> tuple[CatalogEntry, int | None]:
    """An entry and its checksum."""
    catalog_id, path, version, kind, digest, content, description, created_at, checksum = row
    entry = CatalogEntry(
        catalog_id=catalog_id,
        path=path,
        version=version,
        kind=kind,
        digest=digest,
        content=content,
        description=description,
        created_at=created_at,
    )
    return entry, checksum


def put_net(db: sqlite3.Connection, digest: str, net: bytes) -> None:
    db.execute(QUERIES["put_net"], (digest, net))


def net(db: sqlite3.Connection, digest: str) -> bytes | None:
    row = db.execute(QUERIES["net"], (digest,)).fetchone()
    return verified_net(row[0], digest) if row else None


def put_credential(db: sqlite3.Connection, new: StoredCredential) -> None:
    lists = (msgspec.json.encode(one).decode() for one in (new.tags, new.playbooks))
    times = (new.created_at, new.updated_at)
    row = (new.name, new.type, new.data, new.description, *lists, *times)
    db.execute(QUERIES["put_credential"], row)


def credential(db: sqlite3.Connection, name: str) -> StoredCredential | None:
    row = db.execute(QUERIES["credential"], (name,)).fetchone()
    return _credential(row) if row else None


def credentials(db: sqlite3.Connection) -> list[StoredCredential]:
    return [_credential(row) for row in db.execute(QUERIES["credentials"])]


def _credential(row: tuple[Any, ...]) -> StoredCredential:
    name, type_, data, description, tags, playbooks, created_at, updated_at = row
    return StoredCredential(
        name=name,
        type=type_,
        data=data,
        description=description,
        tags=_decode_names(tags),
        playbooks=_decode_names(playbooks),
        created_at=created_at,
        updated_at=updated_at,
    )


def reseal_credential(db: sqlite3.Connection, name: str, old: bytes, new: bytes) -> bool:
    return db.execute(QUERIES["reseal_credential"], (new, name, old)).rowcount > 0


def delete_credential(db: sqlite3.Connection, name: str) -> bool:
    return db.execute(QUERIES["delete_credential"], (name,)).rowcount > 0
