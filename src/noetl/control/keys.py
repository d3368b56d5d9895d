"""Stored credentials: sealed in the store, opened for whoever holds the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.control.clock import Clock
from noetl.errors import NoetlError, NotFound
from noetl.model.net import Net
from noetl.model.outcome import TaskError
from noetl.secrets.keychain import resolve
from noetl.secrets.vault import Vault
from noetl.store.base import Store, StoredCredential


class Keys:
    """The credentials of one system."""

    def __init__(
        self, store: Store, vault: Vault, clock: Clock, variables: Mapping[str, str]
    ) -> None:
        self._store = store
        self._vault = vault
        self._clock = clock
        self._variables = variables

    async def put(
        self, name: str, kind: str, fields: dict[str, Any], description: str = ""
    ) -> None:
        """Create a credential, or replace it."""
        now = self._clock.now()
        old = await self._store.credential(name)
        await self._store.put_credential(
            StoredCredential(
                name=name,
                type=kind,
                data=self._vault.seal(name, fields),
                description=description,
                created_at=old.created_at if old is not None else now,
                updated_at=now,
            )
        )

    async def credential(self, name: str) -> dict[str, Any] | None:
        """Its fields, or None if there is none of that name."""
        found = await self._store.credential(name)
        return None if found is None else self._vault.open(name, found.data)

    async def missing(self, net: Net) -> TaskError | None:
        """The first keychain entry that cannot be resolved, as the reason not to start."""
        for entry in net.keychain:
            try:
                await resolve(entry, self._existing, self._variables)
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
        """Put every credential under another master key; how many there are."""
        stored = await self._store.credentials()
        for found in stored:
            data = self._vault.rewrap(found.name, found.data, new)
            await self._store.put_credential(msgspec.structs.replace(found, data=data))
        self._vault = new
        return len(stored)
