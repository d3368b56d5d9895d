"""Stored credentials: sealed in the store, opened for whoever holds the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.control.clock import Clock
from noetl.errors import NoetlError, NotFound
from noetl.model.ids import ExecutionId
from noetl.model.net import Net
from noetl.model.outcome import TaskError
from noetl.secrets.keychain import Sources, resolve
from noetl.store.access import CachedSecret
from noetl.store.base import Store, StoredCredential

if TYPE_CHECKING:
    from noetl.secrets.vault import Vault

HANDED_OUT_SECONDS = 3600.0
OpenVault = Callable[[bool], "Vault"]
"""The vault; whether it may make a new key, because nothing is sealed yet."""


class Keys:
    """The credentials of one system."""

    def __init__(self, store: Store, open_vault: OpenVault, clock: Clock, sources: Sources) -> None:
        self._store = store
        self._open_vault = open_vault
        self._opened: Vault | None = None
        self._clock = clock
        self._sources = sources

    async def _vault(self) -> Vault:
        """Opened when it is first needed: most executions use no stored credential."""
        if self._opened is None:
            sealed = await self._store.credentials()
            self._opened = self._open_vault(not sealed)
        return self._opened

    async def prepare(self) -> None:
        """See to it that there is a key. Raises WrongKey if the one that was used is gone."""
        await self._vault()

    async def put(
        self, name: str, kind: str, fields: dict[str, Any], description: str = ""
    ) -> None:
        """Create a credential, or replace it."""
        now = self._clock.now()
        old = await self._store.credential(name)
        vault = await self._vault()
        await self._store.put_credential(
            StoredCredential(
                name=name,
                type=kind,
                data=vault.seal(name, fields),
                description=description,
                created_at=old.created_at if old is not None else now,
                updated_at=now,
            )
        )

    async def credential(self, name: str) -> dict[str, Any] | None:
        """Its fields, or None if there is none of that name."""
        found = await self._store.credential(name)
        return None if found is None else (await self._vault()).open(name, found.data)

    async def hand_out(
        self,
        name: str,
        *,
        execution_id: ExecutionId | None = None,
        parent_execution_id: ExecutionId | None = None,
    ) -> dict[str, Any]:
        """The fields of a credential for somebody outside; that it went out is kept for a while.

        Raises NotFound.
        """
        row = await self._store.credential(name)
        if row is None:
            raise NotFound(f'there is no credential "{name}".')
        vault = await self._vault()
        fields = vault.open(name, row.data)
        now = self._clock.now()
        await self._store.put_cached_secret(
            CachedSecret(
                cache_key=f"secret:{name}:{execution_id or 'global'}",
                credential_name=name,
                credential_type=row.type,
                cache_type="secret",
                scope_type="global" if execution_id is None else "execution",
                execution_id=execution_id,
                parent_execution_id=parent_execution_id,
                data_encrypted=vault.seal(name, fields),
                expires_at=now + HANDED_OUT_SECONDS,
                created_at=now,
                accessed_at=now,
            )
        )
        return fields

    async def missing(self, net: Net) -> TaskError | None:
        """The first keychain entry that cannot be resolved, as the reason not to start."""
        for entry in net.keychain:
            try:
                await resolve(entry, self._existing, self._sources)
            except NoetlError as error:
                return TaskError(kind="auth", code=error.code, message=str(error))
        return None

    async def _existing(self, name: str) -> dict[str, Any]:
        found = await self.credential(name)
        if found is None:
            raise NotFound(
                f'there is no credential "{name}", which the keychain needs.'
                f" `noetl credential set {name} KEY=VALUE …` stores one."
            )
        return found

    async def rotate(self, new: Vault) -> int:
        """Put every credential under the newest key of another vault; how many were not yet."""
        moved = 0
        for found in await self._store.credentials():
            if not new.is_current(found.data):
                data = new.rotated(found.name, found.data)
                await self._store.put_credential(msgspec.structs.replace(found, data=data))
                moved += 1
        self._opened = new
        return moved
