"""Stored credentials: sealed in the store, opened with the operator's key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from noetl.control.clock import Clock
from noetl.control.grants import no_credential, require_playbook
from noetl.errors import NoetlError
from noetl.model.ids import ExecutionId
from noetl.model.net import KeychainEntry, Net
from noetl.model.outcome import TaskError
from noetl.secrets.keychain import Sources, manager_of, resolve
from noetl.store.credentials import CachedSecret, Credentials, StoredCredential
from noetl.templates import compile_value

if TYPE_CHECKING:
    from noetl.secrets.vault import Vault

HANDED_OUT_SECONDS = 3600.0
OpenVault = Callable[[str, bool], "Vault"]
"""The vault of an installation; whether it may make a new key, because nothing is sealed yet."""


def _kept(given: tuple[str, ...] | None, old: StoredCredential | None) -> tuple[str, ...]:
    """For which playbooks a credential is now."""
    if given is None:
        return old.playbooks if old is not None else ()
    return () if "*" in given else given


class Keys:
    """The credentials of one system."""

    def __init__(
        self,
        credentials: Credentials,
        installation: Callable[[], Awaitable[str]],
        open_vault: OpenVault,
        clock: Clock,
        sources: Sources,
    ) -> None:
        self._credentials = credentials
        self._installation = installation
        self._open_vault = open_vault
        self._opened: Vault | None = None
        self._opening = asyncio.Lock()
        self._clock = clock
        self._sources = sources
        self.changes = 0
        """How often credentials were changed here: what was read of them before is old."""
        self.on_put: list[Callable[[], None]] = []

    async def vault(self) -> Vault:
        """Opened when it is first needed: most executions use no stored credential."""
        if self._opened is None:
            async with self._opening:  # a passphrase is slow on purpose
                if self._opened is None:
                    sealed = await self._credentials.all()
                    salt = await self._installation()
                    self._opened = await asyncio.to_thread(self._open_vault, salt, not sealed)
        return self._opened

    async def prepare(self) -> None:
        """See to it that there is a key. Raises WrongKey if the one that was used is gone."""
        await self.vault()

    def derived_from(self) -> list[bytes]:
        """The keys that others are derived from, newest first. Call `prepare` before."""
        assert self._opened is not None
        return self._opened.secrets

    async def put(
        self,
        name: str,
        kind: str,
        fields: dict[str, Any],
        description: str = "",
        tags: tuple[str, ...] = (),
        playbooks: tuple[str, ...] | None = None,
    ) -> None:
        """Create a credential, or replace it: nothing is left of the one before, nor of what was
        fetched with it. Without `playbooks` it stays for those that it was for; `*` is all.
        """
        now = self._clock.now()
        old = await self._credentials.get(name)
        vault = await self.vault()
        await self._credentials.put(
            StoredCredential(
                name=name,
                type=kind,
                data=vault.seal(name, fields),
                description=description,
                playbooks=_kept(playbooks, old),
                tags=tags,
                created_at=old.created_at if old is not None else now,
                updated_at=now,
            )
        )
        self.changes += 1
        await self._credentials.forget_cached()
        for tell in self.on_put:
            tell()

    async def credential(self, name: str) -> dict[str, Any] | None:
        """Its fields, or None if there is none of that name."""
        found = await self._credentials.get(name)
        return None if found is None else (await self.vault()).open(name, found.data)

    async def hand_out(
        self,
        name: str,
        *,
        execution_id: ExecutionId | None = None,
        parent_execution_id: ExecutionId | None = None,
    ) -> dict[str, Any]:
        """The fields of a credential for a caller outside; that it went out is kept for a while,
        without what went out.

        Raises NotFound.
        """
        row = await self._credentials.get(name)
        if row is None:
            raise await no_credential(self._credentials, name)
        fields = (await self.vault()).open(name, row.data)
        now = self._clock.now()
        await self._credentials.put_cached(
            CachedSecret(
                cache_key=f"secret:{name}:{execution_id or 'global'}",
                credential_name=name,
                credential_type=row.type,
                cache_type="secret",
                scope_type="global" if execution_id is None else "execution",
                execution_id=execution_id,
                parent_execution_id=parent_execution_id,
                data_encrypted=b"",
                expires_at=now + HANDED_OUT_SECONDS,
                created_at=now,
                accessed_at=now,
            )
        )
        return fields

    async def missing(self, net: Net) -> TaskError | None:
        """The first keychain entry that cannot be resolved, as the reason not to start."""
        names = {entry.name for entry in net.keychain}
        for entry in net.keychain:
            try:
                await self._check(entry, names, net.path)
            except NoetlError as error:
                return TaskError(kind="auth", code=error.code, message=str(error))
        return None

    async def _check(self, entry: KeychainEntry, names: set[str], path: str) -> None:
        """Raises NotFound or NotAllowed for what is known to be missing before anything runs.

        What a manager outside keeps, and what depends on the run, is found out by the worker.
        """
        if not compile_value(entry.config).is_literal:
            return
        if manager_of(entry) is None:
            await resolve(entry, partial(self.granted, path), self._sources)
            return
        auth = entry.config.get("auth")
        if isinstance(auth, str) and auth not in names:
            await self.granted(path, auth)

    async def granted(self, path: str, name: str) -> dict[str, Any]:
        """The fields of a credential, for a playbook or trigger of this path. Raises NotFound, and
        NotAllowed for one that is for others."""
        row = await self._credentials.get(name)
        if row is None:
            raise await no_credential(self._credentials, name, path)
        require_playbook(row, path)
        return (await self.vault()).open(name, row.data)

    async def delete(self, name: str) -> bool:
        """Delete a credential and what was fetched with it. Returns whether it existed."""
        known = await self._credentials.delete(name)
        self.changes += 1
        await self._credentials.forget_cached()
        return known

    async def rotate(self, renew: Callable[[str], Vault]) -> int:
        """Put every credential under the newest key of another vault; how many were not yet.

        One that is changed meanwhile stays as changed, and is looked at again.
        """
        new = await asyncio.to_thread(renew, await self._installation())
        # First, so that what is stored from now on is under the new key.
        self._opened = new
        moved = 0
        while old := [one for one in await self._credentials.all() if not new.is_current(one.data)]:
            for found in old:
                data = new.rotated(found.name, found.data)
                moved += await self._credentials.reseal(found.name, old=found.data, new=data)
        await self._credentials.forget_cached()  # under the old key, and fetched again
        return moved
