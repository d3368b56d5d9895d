"""Credentials, their data sealed by the vault, and secrets that were handed out, sealed again."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from noetl.model.ids import ExecutionId


class StoredCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A credential, its data encrypted by the vault."""

    name: str
    type: str
    data: bytes
    description: str = ""
    tags: tuple[str, ...] = ()
    playbooks: tuple[str, ...] = ()
    """Paths that may use it, as patterns; all if there are none."""
    created_at: float = 0.0
    updated_at: float = 0.0


class CachedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was handed out, sealed again (document 000 §5.2)."""

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


class Credentials(Protocol):
    """What every store promises about secrets."""

    async def put(self, credential: StoredCredential) -> None:
        """Create it, or replace its type, data, description and tags."""

    async def get(self, name: str) -> StoredCredential | None:
        """By name."""

    async def all(self) -> list[StoredCredential]:
        """All, by name."""

    async def reseal(self, name: str, *, old: bytes, new: bytes) -> bool:
        """Replace its data; False, and nothing is changed, if that is not `old` any more."""

    async def delete(self, name: str) -> bool:
        """Whether there was one."""

    async def put_cached(self, secret: CachedSecret) -> None:
        """Keep it under its key; again: newer data and times, one access more."""

    async def cached(self, cache_key: str, *, now: float) -> CachedSecret | None:
        """By key, if it has not expired."""

    async def forget_cached(self) -> None:
        """Forget all of them: what they were fetched with has changed."""
