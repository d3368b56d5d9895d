"""The catalog: versioned documents, and compiled nets by digest."""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol
from zlib import crc32

import msgspec

from noetl.errors import Conflict, Corrupted
from noetl.store.triggers import Renewed

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


class Catalog(Protocol):
    """What every store promises about documents."""

    async def register(
        self, entry: CatalogEntry, net: bytes, renewed: Renewed | None = None
    ) -> CatalogEntry:
        """Register a document. The same content again yields the same version; new content is the
        next.

        Raises Conflict if the path belongs to a document of another kind. The trigger row that
        `renewed` returns is written in the same transaction; `renewed` may be called again.
        """

    async def entry(self, path: str, version: int | None = None) -> CatalogEntry | None:
        """A version, by default the newest."""

    async def entry_of(self, catalog_id: str) -> CatalogEntry | None:
        """The version that has this id."""

    async def entries(self, *, kind: str | None = None, prefix: str = "") -> list[CatalogEntry]:
        """The newest version of every path, by path."""

    async def versions(
        self, path: str, *, before: int | None = None, limit: int = 50
    ) -> list[CatalogEntry]:
        """Versions of a path below `before`, newest first."""

    async def net(self, digest: str) -> bytes | None:
        """The canonical bytes of a net."""

    async def put_net(self, digest: str, net: bytes) -> None:
        """Store a net that is not in the catalog: a file run directly."""


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


def refuse_other_kind(entry: CatalogEntry, newest: CatalogEntry | None) -> None:
    """Raise Conflict if the path of the entry belongs to a document of another kind."""
    if newest is not None and newest.kind != entry.kind:
        raise Conflict(
            f'"{entry.path}" is a {newest.kind} in the catalog, so no {entry.kind} can stand there.'
            " Give this one another `metadata.path`."
        )


def verified_net(body: bytes, digest: str) -> bytes:
    """The bytes of a net. Raises Corrupted if their digest does not match."""
    if not isinstance(body, bytes) or sha256(body).hexdigest() != digest:
        raise Corrupted(
            f"The compiled playbook {digest[:12]} is not what was written: its sha256 is not its"
            " digest. Executions of it are not served, others are not affected. Restore it from a"
            " backup, or delete its row and register the playbook again."
        )
    return body
