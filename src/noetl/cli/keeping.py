"""Where playbooks and credentials are kept, as commands see it: on a server, or in a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import msgspec

from noetl.cli.whoami import user_name
from noetl.control import documents
from noetl.errors import NotFound
from noetl.model.problems import Problem
from noetl.model.spelling import did_you_mean
from noetl.store.access import NAMELESS, AuditEntry

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.settings import Settings
    from noetl.wiring import System

Document = dict[str, Any]


class Keeper(Protocol):
    """What commands do with what is kept by name."""

    async def playbook(self, text: str) -> tuple[Document, tuple[Problem, ...]]:
        """Keep a playbook; its entry, and what was noticed. Raises PlaybookRejected."""

    async def put_credential(
        self,
        name: str,
        kind: str,
        data: dict[str, Any],
        description: str,
        playbooks: tuple[str, ...] | None = None,
    ) -> bool:
        """Create it or replace it; whether there was one."""

    async def credentials(self) -> list[Document]:
        """What is stored, without any secret."""

    async def credential(self, name: str) -> Document:
        """One with its `data`. Raises NotFound."""

    async def delete_credential(self, name: str) -> None:
        """Raises NotFound."""


@asynccontextmanager
async def keeping(settings: Settings) -> AsyncIterator[Keeper]:
    """Whoever keeps things, for writing."""
    if settings.server_url is not None:
        from noetl.cli.remote import connected

        async with connected(settings) as client:
            yield ServerKeeper(client)
        return
    from noetl import wiring

    async with wiring.embedded(settings, work=False) as system:
        yield DatabaseKeeper(system)


class DatabaseKeeper:
    """See `Keeper`."""

    def __init__(self, system: System) -> None:
        self._system = system

    async def playbook(self, text: str) -> tuple[Document, tuple[Problem, ...]]:
        entry, compiled = await self._system.catalog.register(text)
        await self._note("playbook.register", f"{entry.path} version {entry.version}")
        about = documents.plain(documents.catalog_entry(entry))
        wanted = ("kind", "path", "version", "catalog_id")
        return {name: about[name] for name in wanted}, compiled.problems

    async def put_credential(
        self,
        name: str,
        kind: str,
        data: dict[str, Any],
        description: str,
        playbooks: tuple[str, ...] | None = None,
    ) -> bool:
        known = await self._system.store.credential(name)
        await self._system.keys.put(name, kind, data, description, playbooks=playbooks)
        await self._note("credential.put", name)
        return known is not None

    async def credentials(self) -> list[Document]:
        rows = await self._system.store.credentials()
        return [documents.plain(documents.credential(row)) for row in rows]

    async def credential(self, name: str) -> Document:
        row = await self._system.store.credential(name)
        if row is None:
            known = [found.name for found in await self._system.store.credentials()]
            raise NotFound(f'there is no credential "{name}".{did_you_mean(name, known)}')
        return documents.plain(documents.credential(row, await self._system.keys.credential(name)))

    async def delete_credential(self, name: str) -> None:
        if not await self._system.keys.delete(name):
            raise NotFound(f'there is no credential "{name}". `noetl credential list` shows all.')
        await self._note("credential.deleted", name)

    async def _note(self, action: str, target: str) -> None:
        """Remember who did it, as a server would."""
        who, now = user_name() or NAMELESS, self._system.clock.now()
        entry = AuditEntry(at=now, who=who, action=action, target=target)
        await self._system.store.put_audit(entry)


class ServerKeeper:
    """See `Keeper`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def playbook(self, text: str) -> tuple[Document, tuple[Problem, ...]]:
        answer = await self._client.post("/api/catalog/register", {"content": text})
        wanted = ("kind", "path", "version", "catalog_id")
        problems = msgspec.convert(answer["problems"], tuple[Problem, ...])
        return {name: answer[name] for name in wanted}, problems

    async def put_credential(
        self,
        name: str,
        kind: str,
        data: dict[str, Any],
        description: str,
        playbooks: tuple[str, ...] | None = None,
    ) -> bool:
        known = any(row["name"] == name for row in await self.credentials())
        body: dict[str, Any] = {"name": name, "type": kind, "data": data}
        body |= {"description": description, "playbooks": playbooks}
        await self._client.post("/api/credentials", body)
        return known

    async def credentials(self) -> list[Document]:
        found: list[Document] = (await self._client.get("/api/credentials"))["credentials"]
        return found

    async def credential(self, name: str) -> Document:
        path = f"/api/credentials/{quote(name, safe='')}"
        found: Document = await self._client.get(path, include_data="true")
        return found

    async def delete_credential(self, name: str) -> None:
        await self._client.delete(f"/api/credentials/{quote(name, safe='')}")
