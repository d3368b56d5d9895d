"""Credentials with their encrypted data, and encrypted secrets in the cache."""

from __future__ import annotations

from typing import Literal

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.database import Database, columns_of


class StoredCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A credential, its data encrypted by the vault."""

    name: str
    type: str
    data: bytes
    description: str = ""
    tags: tuple[str, ...] = ()
    playbooks: tuple[str, ...] = ()
    """Patterns of paths that may use it; all if empty."""
    created_at: float = 0.0
    updated_at: float = 0.0


class CachedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A cached secret, encrypted."""

    cache_key: str
    credential_name: str
    credential_type: str
    cache_type: Literal["secret", "token"]
    scope_type: Literal["execution", "global"]
    execution_id: ExecutionId | None = None
    parent_execution_id: ExecutionId | None = None
    data_encrypted: bytes
    expires_at: float
    created_at: float
    accessed_at: float
    access_count: int = 1


class Credentials:
    """Credentials, and the cache of secrets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, credential: StoredCredential) -> None:
        """Create it, or replace its type, data, description and tags."""
        await self._database.change("put_credential", **columns_of(credential))

    async def get(self, name: str) -> StoredCredential | None:
        """By name."""
        return await self._database.row("credential", StoredCredential, name=name)

    async def all(self) -> list[StoredCredential]:
        """All, by name."""
        return await self._database.rows("credentials", StoredCredential)

    async def reseal(self, name: str, *, old: bytes, new: bytes) -> bool:
        """Replace its data. Returns False, and changes nothing, if that is no longer `old`."""
        return await self._database.change("reseal_credential", name=name, old=old, new=new) > 0

    async def delete(self, name: str) -> bool:
        """Delete it. Returns whether it existed."""
        return await self._database.change("delete_credential", name=name) > 0

    async def put_cached(self, secret: CachedSecret) -> None:
        """Store it under its key; an existing one gets the new data and times, and its access count
        grows.
        """
        await self._database.change("put_cached_secret", **columns_of(secret))

    async def cached(self, cache_key: str, *, now: float) -> CachedSecret | None:
        """By key, unless it has expired."""
        return await self._database.row("cached_secret", CachedSecret, cache_key=cache_key, now=now)

    async def forget_cached(self) -> None:
        """Delete all of them, because the credentials they were fetched with have changed."""
        await self._database.change("forget_cached_secrets")
