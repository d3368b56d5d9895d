"""Executions on a server, looked at with the same eyes as those in a database.

The same questions as `control.records.Records`, answered by the API: so a command that shows
something need not know where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import msgspec

from noetl.control import documents
from noetl.control.records import LAST, PAGE, Records
from noetl.engine.evolve import evolve
from noetl.errors import NotFound
from noetl.model.answers import ExecutionPage, Logs, WaitDocument
from noetl.model.events import decode
from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState
from noetl.store.base import EventRow

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.settings import Settings

EVENTS_PAGE = 500
WAIT_SECONDS = 20.0


class Executions(Protocol):
    """What commands ask about executions, wherever they are."""

    async def find(self, written: str) -> ExecutionId: ...

    async def state(self, execution_id: ExecutionId) -> ExecutionState: ...

    async def document(self, execution_id: ExecutionId) -> dict[str, Any]: ...

    async def text(self, path: str, version: int) -> str | None: ...

    async def body(self, execution_id: ExecutionId, key: str) -> bytes: ...

    async def export(self, execution_id: ExecutionId) -> AsyncIterator[bytes]: ...

    async def why(self, execution_id: ExecutionId) -> list[WaitDocument]: ...

    async def events(
        self,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        types: tuple[str, ...] = (),
        step: str | None = None,
        limit: int | None = None,
    ) -> list[EventRow]: ...

    async def logs(
        self,
        execution_id: ExecutionId,
        *,
        step: str | None = None,
        grep: str | None = None,
        after: int = 0,
        limit: int = PAGE,
    ) -> Logs: ...

    async def listed(self, query: str, *, limit: int) -> ExecutionPage: ...

    async def label_counts(self, label: str, *, since: float | None) -> list[tuple[str, int]]: ...


@asynccontextmanager
async def looking(settings: Settings) -> AsyncIterator[Executions]:
    """Executions on the server, if one is meant, else those in the database."""
    if settings.server_url is not None:
        async with connected(settings) as client:
            yield RemoteExecutions(client)
        return
    from noetl import wiring

    async with wiring.looking(settings) as store:
        yield Records(store)


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Client]:
    """A client of the server that is meant."""
    from noetl.api.client import Client

    async with Client(settings.server_urls, settings.token) as client:
        yield client


class RemoteExecutions:
    """See `Executions`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def find(self, written: str) -> ExecutionId:
        if written != LAST and await self._exists(written):
            return written
        found: list[ExecutionId] = []
        async for row in self._all():
            if written == LAST and row["parent_execution_id"] is None:
                return str(row["execution_id"])
            if written.isdecimal() and _is_short_for(written, row["execution_id"]):
                found.append(row["execution_id"])
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
            raise NotFound(f'"{written}" could be any of {some}. Write more of the id.')
        raise NotFound(
            f"there is no execution {written} on {self.client.url}."
            " `noetl executions list` shows those there are."
        )

    async def _exists(self, execution_id: ExecutionId) -> bool:
        try:
            await self.client.get(f"/api/executions/{quote(execution_id, safe='')}/status")
        except NotFound:
            return False
        return True

    async def _all(self) -> AsyncIterator[dict[str, Any]]:
        cursor = None
        while True:
            page = await self.client.get("/api/executions", limit=PAGE, cursor=cursor)
            for row in page["executions"]:
                yield row
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def state(self, execution_id: ExecutionId) -> ExecutionState:
        state = ExecutionState()
        for row in await self.events(execution_id):
            evolve(state, decode(row.body))
        return state

    async def document(self, execution_id: ExecutionId) -> dict[str, Any]:
        return await self.client.execution(execution_id)

    async def text(self, path: str, version: int) -> str | None:
        try:
            found = await self.client.post(
                "/api/catalog/resource", {"path": path, "version": version}
            )
        except NotFound:
            return None
        return str(found["content"])

    async def body(self, execution_id: ExecutionId, key: str) -> bytes:
        return await self.client.body(execution_id, key)

    async def export(self, execution_id: ExecutionId) -> AsyncIterator[bytes]:
        whole = await self.client.export(execution_id)

        async def pieces() -> AsyncIterator[bytes]:
            yield whole

        return pieces()

    async def why(self, execution_id: ExecutionId) -> list[WaitDocument]:
        answer = await self.client.get(f"/api/executions/{execution_id}/why")
        return msgspec.convert(answer["waits_for"], list[WaitDocument])

    async def events(
        self,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        types: tuple[str, ...] = (),
        step: str | None = None,
        limit: int | None = None,
    ) -> list[EventRow]:
        found: list[EventRow] = []
        more = True
        while more and (limit is None or len(found) < limit):
            room = EVENTS_PAGE if limit is None else min(EVENTS_PAGE, limit - len(found))
            page = await self.client.events(
                execution_id, after=after, limit=room, type=types or None, step=step
            )
            found += [documents.restored(one) for one in page["events"]]
            after, more = page["next_after"], page["more"]
        return found

    async def logs(
        self,
        execution_id: ExecutionId,
        *,
        step: str | None = None,
        grep: str | None = None,
        after: int = 0,
        limit: int = PAGE,
        wait: float = 0,
    ) -> Logs:
        route = f"/api/executions/{quote(execution_id, safe='')}/logs"
        found = await self.client.get(
            route, step=step, grep=grep, after=after, limit=limit, wait=wait
        )
        return msgspec.convert(found, Logs)

    async def label_counts(self, label: str, *, since: float | None) -> list[tuple[str, int]]:
        found = await self.client.get(
            f"/api/labels/{quote(label, safe='')}", since=documents.moment(since)
        )
        return [(one["value"], one["executions"]) for one in found["values"]]

    async def listed(self, query: str, *, limit: int) -> ExecutionPage:
        page = await self.client.get("/api/executions", q=query, limit=min(limit, PAGE))
        return msgspec.convert(page, ExecutionPage)


def _is_short_for(written: str, execution_id: str) -> bool:
    return execution_id.startswith(written) or execution_id.endswith(written)


class RemoteFollowing:
    """An execution on a server, kept up to date by asking what is new."""

    def __init__(self, client: Client, execution_id: ExecutionId, state: ExecutionState) -> None:
        self._client = client
        self.execution_id = execution_id
        self.state = state

    async def catch_up(self, patience: float = WAIT_SECONDS) -> list[EventRow]:
        """Fold what happened since; the new events. Waits for the next one, but not for ever."""
        page = await self._client.events(
            self.execution_id,
            after=self.state.seq,
            limit=EVENTS_PAGE,
            wait=0 if self.state.is_finished else patience,
        )
        rows = [documents.restored(one) for one in page["events"]]
        for row in rows:
            evolve(self.state, decode(row.body))
        return rows

    async def pause(self) -> None:
        """The server has waited already."""
        await asyncio.sleep(0)
