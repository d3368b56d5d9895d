"""How commands reach the API: on a server or on a database, through the same routes.

A command is an async function that takes an `Api`. The decorators `looks` and `acts` add --db and
--server, open the API and close it. Reading works beside a process that writes the database; acting
calls the process that holds it, or is done here if none does. Both need a database. Commands that
`add` something make one, and open the API themselves once they know what to add. Commands that need
the database itself are `on_database`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from noetl import configured, wiring
from noetl.cli.options import (
    db_option,
    local_settings,
    server_option,
    settings_for,
    settings_for_server,
)
from noetl.errors import NotFound, Unreachable, Unsent
from noetl.model.spelling import did_you_mean

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.api.route import A, B, Q, Route
    from noetl.api.services import Services
    from noetl.model.answers import EventPage, WaitDocument
    from noetl.settings import Settings
    from noetl.store.log import EventRow

    Run = Callable[..., Coroutine[Any, Any, int | None]]
    Opened = Callable[[Settings], AbstractAsyncContextManager["Api"]]
    Reach = Callable[[], Awaitable[tuple[Client, Services | None, Callable[[], bool]]]]

LAST = "last"
PAGE = 1000
LOOK_SECONDS = 0.2
"""How often to poll a database that another process writes."""
WAIT_SECONDS = 20.0
"""How long a long poll waits, where the API supports it."""


class Api:
    """The API as a command calls it."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        system: Services | None,
        is_run: Callable[[], bool],
        patience: float = WAIT_SECONDS,
        reach: Reach | None = None,
    ) -> None:
        self.settings = settings
        self.client = client
        self.system = system
        """The services behind it, if they are in this process and may write."""
        self.is_run = is_run
        """Whether a process could be running executions: a server, or the holder of the
        database.
        """
        self.patience = patience
        self._reach = reach
        """Finds who holds the database now, if that may be another process than before."""
        self.has_moved = False
        """Whether the process that held the database has ended, and calls went elsewhere since."""

    async def call(
        self, route: Route[Q, B, A], *, headers: dict[str, str] | None = None, **given: Any
    ) -> A:
        """Call the route. If the process that held the database has ended and cannot have done it,
        or it may be done again, the process that holds the database now does it.
        """
        from noetl.api.connection import is_repeatable

        sent = self.client.keyed(route, headers)
        while True:
            try:
                return await self.client.call(route, headers=sent, **given)
            except Unreachable as error:
                is_safe = isinstance(error, Unsent) or is_repeatable(route.method, sent)
                if not (is_safe and await self.moves()):
                    raise

    async def moves(self) -> bool:
        """Turn to the process that holds the database now: another one, or this one. False for a
        server, which has no other in its place.
        """
        if self._reach is None or self.system is not None:
            return False
        self.client, self.system, self.is_run = await self._reach()
        self.has_moved = True
        return True

    async def find(self, written: str) -> str:
        """The id that people mean: the whole id, its beginning or end, or `last`."""
        from noetl.api.routes.executions import LIST, STATUS, Which

        if written == LAST:
            newest = await self.call(LIST, query=Which(q="parent:none", limit=1))
            if not newest.executions:
                raise NotFound("there are no executions yet. `noetl run FILE` starts one.")
            return newest.executions[0].execution_id
        try:
            await self.call(STATUS, execution_id=written)
        except NotFound:
            found: list[str] = []
            if written.isascii() and written.isdecimal():
                page = await self.call(LIST, query=Which(q=f"id:{written}", limit=6))
                found = [row.execution_id for row in page.executions]
            if len(found) == 1:
                return found[0]
            if found:
                some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
                raise NotFound(
                    f'"{written}" matches several executions: {some}. Write more of the id.'
                ) from None
            where = f" on {self.client.url}" if self.settings.server_url is not None else ""
            raise NotFound(
                f"there is no execution {written}{where}. `noetl executions list` lists all."
            ) from None
        return written

    async def document(self, execution_id: str) -> dict[str, Any]:
        """The whole execution."""
        from noetl.api.routes.executions import GET
        from noetl.control.documents import plain

        found = await self.call(GET, execution_id=execution_id)
        return plain(found)

    async def result(self, execution_id: str, step: str | None = None) -> Any:
        """The result of an execution or of one of its steps, or a reference to it. Raises NotFound
        if it has none.
        """
        document = await self.document(execution_id)
        found, what = document, f"execution {execution_id}"
        if step is not None:
            steps = {one["step"]: one for one in document["steps"]}
            if step not in steps:
                raise NotFound(
                    f'execution {execution_id} has run no step "{step}".'
                    f"{did_you_mean(step, steps)} It has run: {', '.join(steps) or 'none'}."
                )
            found, what = steps[step], f'step "{step}" of execution {execution_id}'
        if found["result"] is None and found["status"] not in ("COMPLETED", "done"):
            raise NotFound(
                f"{what} has no result: its status is {found['status'].lower()}."
                f" `noetl executions show {execution_id}` shows more."
            )
        return found["result"]

    async def text(self, path: str, version: int) -> str | None:
        """The text of a playbook in the catalog."""
        from noetl.api.routes.catalog import RESOURCE, Wanted

        try:
            return (await self.call(RESOURCE, body=Wanted(path=path, version=version))).content
        except NotFound:
            return None

    async def body(self, execution_id: str, key: str) -> bytes:
        """The body that a reference names, as JSON. Raises NotFound."""
        from noetl.api.routes.results import GET

        pieces = self.client.pieces(GET, execution_id=execution_id, key=key)
        return b"".join([piece async for piece in pieces])

    async def why(self, execution_id: str) -> list[WaitDocument]:
        """What an unfinished execution waits for."""
        from noetl.api.routes.executions import WHY

        return (await self.call(WHY, execution_id=execution_id)).waits_for

    async def pages(self, route: Route[Q, B, A], query: Q, **parameters: Any) -> AsyncIterator[A]:
        """A list that comes in pages: from the one that the query names to the last."""
        following: Any = query
        while following is not None:
            page = await self.call(route, query=following, **parameters)
            yield page
            following = _following(following, page)

    async def page(
        self,
        execution_id: str,
        *,
        after: int = 0,
        types: tuple[str, ...] = (),
        step: str | None = None,
        limit: int = PAGE,
        wait: float = 0.0,
    ) -> EventPage:
        """The next events. Raises Unreachable if the process that held the database has ended: a
        caller that waits must know that no process may be causing any.
        """
        from noetl.api.routes.executions import EVENTS, WhichEvents

        query = WhichEvents(after=after, limit=limit, type=types, step=step, wait=wait)
        return await self.client.call(EVENTS, execution_id=execution_id, query=query)

    async def events(self, execution_id: str, *, types: tuple[str, ...]) -> AsyncIterator[EventRow]:
        """All events of these types so far."""
        from noetl.api.routes.executions import EVENTS, WhichEvents
        from noetl.control.documents import restored

        query = WhichEvents(limit=PAGE, type=types)
        async for page in self.pages(EVENTS, query, execution_id=execution_id):
            for event in page.events:
                yield restored(event)

    async def left_to_do(self, execution_id: str) -> str:
        """The command that people must run for the execution to continue, if any."""
        from noetl.api.routes.executions import STATUS

        status = await self.call(STATUS, execution_id=execution_id)
        if status.status == "PAUSED":
            return f"; it is paused, and `noetl executions resume {execution_id}` continues it"
        if status.end_time is None and not self.is_run():
            return f"; no process runs it: `noetl executions resume {execution_id}` continues it"
        return ""


def _following(query: Any, page: Any) -> Any:
    """The query for the next page; None after the last one."""
    match page:
        case object(next_cursor=cursor):
            return None if cursor is None else replace(query, cursor=cursor)
        case object(next_after=after, more=more):
            return replace(query, after=after) if more else None
        case _:
            return None if page.next_after is None else replace(query, after=page.next_after)


@asynccontextmanager
async def looking(settings: Settings) -> AsyncIterator[Api]:
    """The API, for reading."""
    is_server = settings.server_url is not None
    async with wiring.reached(settings, reads=True) as (client, _):
        yield Api(
            settings,
            client,
            None,
            lambda: is_server or configured.is_in_use(settings),
            WAIT_SECONDS if is_server else LOOK_SECONDS,
        )


@asynccontextmanager
async def acting(settings: Settings) -> AsyncIterator[Api]:
    """The API, for changes."""
    async with AsyncExitStack() as opened:

        async def reach() -> tuple[Client, Services | None, Callable[[], bool]]:
            found = wiring.reached(settings)
            client, system = await opened.enter_async_context(found)
            is_run = system is None or configured.is_server(settings.database_url)
            return client, system, lambda: is_run

        is_server = settings.server_url is not None
        yield Api(settings, *await reach(), reach=None if is_server else reach)


@asynccontextmanager
async def changing(settings: Settings) -> AsyncIterator[Api]:
    """The API, for changes of what is there: a database is not made for them."""
    configured.require_database(settings)
    async with acting(settings) as api:
        yield api


@asynccontextmanager
async def holding(settings: Settings) -> AsyncIterator[Api]:
    """The API of a database that this process holds, to run executions here. Raises StoreBusy if
    another process holds it.
    """
    # What was loaded so far stays until the end, and no search for cycles goes through it. The last
    # search still frees what libraries report as leaked: they are loaded after this.
    gc.freeze()
    async with wiring.embedded(settings, work=False) as system:
        client, _ = wiring.here(system)
        yield Api(settings, client, system, lambda: True)


def looks(run: Run) -> Callable[..., None]:
    """Makes a command that only reads; adds --db and --server."""
    return _command(run, looking)


def acts(run: Run) -> Callable[..., None]:
    """Makes a command that changes something; adds --db and --server."""

    return _command(run, changing)


def adds(run: Run) -> Callable[..., None]:
    """Makes a command that adds something to a database, and to a new one where there is none. It
    is given the settings, and opens the API (`acting`) when it knows that what it adds is right.
    """
    return _on_settings(run, settings_for)


def adds_on_server(run: Run) -> Callable[..., None]:
    """The same, on a server unless --db names a database."""

    def chosen(db: str | None, server: str | None) -> Settings:
        return settings_for(db, server) if db is not None else settings_for_server(server)

    return _on_settings(run, chosen)


def on_database(run: Run) -> Callable[..., None]:
    """Makes a command that always works on a database; adds --db. It is given the settings."""

    @db_option
    @wraps(run)
    def command(db: str | None, **given: Any) -> None:
        _finish(run(local_settings(db), **given))

    return command


def _command(run: Run, opened: Opened) -> Callable[..., None]:
    @wraps(run)
    async def on_api(settings: Settings, **given: Any) -> int | None:
        async with opened(settings) as api:
            if "execution_id" in given:
                given["execution_id"] = await api.find(given["execution_id"])
            return await run(api, **given)

    return _on_settings(on_api, settings_for)


def _on_settings(run: Run, chosen: Callable[..., Settings]) -> Callable[..., None]:
    @db_option
    @server_option
    @wraps(run)
    def command(db: str | None, server: str | None, **given: Any) -> None:
        _finish(run(chosen(db, server), **given))

    return command


def _finish(running: Coroutine[Any, Any, int | None]) -> None:
    if code := asyncio.run(running):
        sys.exit(code)
