"""The pool through which every statement goes, and what happens when the line breaks.

A statement that met a broken line is sent again for a while: everything here has the effect of
once however often it is sent, so a database that restarts costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from noetl.errors import StoreError
from noetl.store.postgres.faults import CLOSED, FORESEEN, fault, is_passing
from noetl.store.postgres.line import Line, Value, configure
from noetl.store.postgres.queries import QUERIES

T = TypeVar("T")
Connection = psycopg.AsyncConnection[DictRow]
Job = Callable[[Connection], Awaitable[T]]

CONNECTIONS_MAX = 10
PATIENCE_SECONDS = 15.0
"""So long a statement that met a broken line is tried again."""
PAUSE_FIRST, PAUSE_MAX = 0.05, 1.0

LINE = {
    "application_name": "noetl",
    "connect_timeout": "5",
    # A machine that vanished is noticed within about ten seconds instead of two hours.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def conninfo_of(url: str) -> str:
    """How to connect: what the URL says, and what it leaves open."""
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise StoreError(
            f"The URL of the database cannot be read: {error}."
            " Write it as postgresql://user:password@host/database."
        ) from None
    left_open = {key: value for key, value in LINE.items() if key not in said}
    return make_conninfo(url, client_encoding="UTF8", **left_open)


def place_of(conninfo: str) -> str:
    """The database as people may see it: without its password."""
    said = conninfo_to_dict(conninfo)
    host = said.get("host") or said.get("hostaddr") or "this machine"
    return f"PostgreSQL database {said.get('dbname') or said.get('user') or ''} on {host}"


async def connect(conninfo: str) -> Connection:
    """A connection beside the pool, in autocommit."""
    try:
        return await psycopg.AsyncConnection.connect(
            conninfo, autocommit=True, row_factory=dict_row
        )
    except FORESEEN as error:
        raise fault(error, place_of(conninfo)) from error


class Database:
    """All access to the tables."""

    def __init__(self, conninfo: str) -> None:
        self.place = place_of(conninfo)
        self._pool = AsyncConnectionPool(
            conninfo,
            connection_class=psycopg.AsyncConnection[DictRow],
            # One statement is one transaction and one round trip; several say so themselves.
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 1},
            min_size=1,
            max_size=CONNECTIONS_MAX,
            timeout=PATIENCE_SECONDS,
            # Its pauses double until it gives up, and begin anew with the next statement: without
            # this, a database that was gone for minutes would be missed for minutes more.
            reconnect_timeout=PATIENCE_SECONDS,
            configure=configure,
            open=False,
        )
        self._line = Line(conninfo, ("commit", "commit_one"))
        self._under_way: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        """Finish what is under way, then let go."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._line.close()
        await self._pool.close()

    async def run(self, job: Job[T]) -> T:
        """Do this on a connection; again, if the line breaks.

        Whoever asked may stop waiting; the statement goes on to its end. The pool would lose a
        connection for good to whoever is cancelled while it is handed over, and may swallow that.
        """
        if self._closed:
            raise StoreError(CLOSED)
        doing = asyncio.create_task(self._patiently(job))
        self._under_way.add(doing)
        doing.add_done_callback(self._under_way.discard)
        return await asyncio.shield(doing)

    async def _patiently(self, job: Job[T]) -> T:
        now = asyncio.get_running_loop().time
        deadline = now() + PATIENCE_SECONDS
        pause = PAUSE_FIRST
        while True:
            try:
                async with self._pool.connection() as db:
                    return await job(db)
            except FORESEEN as error:
                if not is_passing(error) or isinstance(error, PoolTimeout) or now() >= deadline:
                    raise fault(error, self.place) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX)
            # Its neighbours in the pool are probably broken, too.
            await self._pool.check()

    async def column(self, query: str, values: Mapping[str, Value]) -> list[str]:
        """The first column of the answer to a commit, which has a line of its own."""
        if self._line.is_free and not self._closed:
            try:
                return await self._line.ask(query, values)
            except FORESEEN as error:
                if not is_passing(error):
                    raise
        # It is in use, or broke: there are others, and patience.
        return first_column(await self.all(query, values))

    async def all(self, query: str, values: Mapping[str, Any] | None = None) -> list[DictRow]:
        """Every row of one statement's answer."""
        return await self.run(lambda db: rows(db, query, values))

    async def one(self, query: str, values: Mapping[str, Any] | None = None) -> DictRow | None:
        found = await self.all(query, values)
        return found[0] if found else None

    async def change(self, query: str, values: Mapping[str, Any] | None = None) -> int:
        """Send a statement that has no answer; how many rows it changed."""
        return await self.run(lambda db: change(db, query, values))

    async def together(self, job: Job[T]) -> T:
        """Several statements in one transaction."""

        async def whole(db: Connection) -> T:
            async with db.transaction():
                return await job(db)

        return await self.run(whole)


async def rows(
    db: Connection, query: str, values: Mapping[str, Any] | None = None
) -> list[DictRow]:
    cursor = await db.execute(QUERIES[query].encode(), values, binary=True)
    return await cursor.fetchall()


def first_column(found: list[DictRow]) -> list[Any]:
    return [next(iter(row.values())) for row in found]


async def change(db: Connection, query: str, values: Mapping[str, Any] | None = None) -> int:
    return (await db.execute(QUERIES[query].encode(), values)).rowcount
