"""The connection pool through which every statement goes, and how broken connections are handled.

A statement that met a broken connection is sent again for a while: everything here is idempotent,
so a database that restarts costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, TupleRow, dict_row, tuple_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from noetl.errors import NoetlError, StoreBusy, StoreError, StoreFull
from noetl.store.database import (
    PARAMETER,
    Database,
    Rows,
    Transaction,
    Undo,
    fields_of,
    read_queries,
)
from noetl.store.postgres.commit_connection import (
    CONNECT_SECONDS,
    STATEMENT_SECONDS,
    CommitConnection,
    Silence,
    Statement,
    Value,
    configure,
    cut,
    limited,
)
from noetl.store.postgres.faults import CLOSED, FORESEEN, fault, is_passing

T = TypeVar("T")
Connection = psycopg.AsyncConnection[DictRow]
Job = Callable[[Connection], Awaitable[T]]

WRITTEN = read_queries(__package__, tables="noetl.")
"""The statements of this store by name, as its files have them."""


def translated(statement: str) -> str:
    """A statement with its parameters as psycopg takes them."""
    return PARAMETER.sub(r"%(\1)s", statement)


QUERIES = {name: translated(statement).encode() for name, statement in WRITTEN.items()}
"""The same for psycopg."""

CONNECTIONS_MAX = 10
PATIENCE_SECONDS = 15.0
"""How long a statement that met a broken connection is retried."""
BODY_SECONDS = 60.0
"""Timeout of a statement that may carry large data or read much: a result, a whole log."""
TABLE_SECONDS = 600.0
"""Timeout of a statement that reads a whole table."""
SECONDS = dict.fromkeys(
    (
        *("put_result", "result", "result_is_whole", "result_piece"),
        *("load", "trees", "spans", "add_partitions"),
    ),
    BODY_SECONDS,
) | {name: TABLE_SECONDS for name in QUERIES if name.startswith("check_")}
"""Statements that may take longer than the others."""
SCANNED_AT_ONCE = 20
"""Rows that are in memory together while a table is read. Each may be large."""
CHECK_SECONDS = 2.0
"""Timeout of the check of a pooled connection."""
CLOSE_SECONDS = 3.0
"""How long `close` waits for statements under way."""
PROBE_BYTES = 1 << 20
PAUSE_FIRST, PAUSE_MAX = 0.05, 1.0

SETTINGS = {
    "application_name": "noetl",
    "connect_timeout": f"{CONNECT_SECONDS:.0f}",
    # A machine that vanished is noticed within about ten seconds instead of two hours.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


COMMITS = {
    query: Statement.of(query, WRITTEN[query], parameters)
    for query, parameters in {
        "commit": (
            *("executions", "log", "commands", "closed", "timers", "timers_cleared", "audit"),
            *("ids", "home"),
        ),
        "commit_one": (
            *("execution_id", "seq_before", "checksum_before", "seq", "checksum", "events"),
            *("status", "ended_at", "current_steps", "error", "failed_step", "waits", "closed"),
            *("command_id", "pool", "priority", "turn", "body", "body_checksum", "worker_id"),
            *("lease_expires_at", "home"),
        ),
    }.items()
}
"""Statements with a connection of their own, with their parameters in order."""


def conninfo_of(url: str) -> str:
    """The connection string: the URL, with our defaults."""
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise StoreError(
            f"The URL of the database cannot be read: {error}."
            " Write it as postgresql://user:password@host/database."
        ) from None
    left_open = {key: value for key, value in SETTINGS.items() if key not in said}
    return make_conninfo(url, client_encoding="UTF8", **left_open)


def place_of(conninfo: str) -> str:
    """The database for messages: without its password."""
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


class _Pool(AsyncConnectionPool[Connection]):
    """A pool that does not wait for ever when it checks a connection."""

    @staticmethod
    async def check_connection(conn: Connection) -> None:
        with limited(conn, CHECK_SECONDS):
            await AsyncConnectionPool.check_connection(conn)


class PostgresDatabase(Database):
    """All access to the tables. Every call is answered in time, or fails."""

    queries = WRITTEN

    def __init__(self, conninfo: str) -> None:
        self.place = place_of(conninfo)
        self.home = secrets.token_hex(8)
        """Distinguishes the commands opened by this process from those of others."""
        self._pool = _Pool(
            conninfo,
            connection_class=psycopg.AsyncConnection[DictRow],
            # One statement is one transaction and one round trip; several use an explicit one.
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 1},
            min_size=1,
            max_size=CONNECTIONS_MAX,
            timeout=PATIENCE_SECONDS,
            # The pool's reconnection pauses double until it gives up, and restart with the next
            # statement: otherwise a database that was gone for minutes would be missed for minutes
            # more.
            reconnect_timeout=PATIENCE_SECONDS,
            configure=configure,
            open=False,
        )
        self._commits = CommitConnection(conninfo, COMMITS)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._lent: set[Connection] = set()
        self._renewed_at = 0.0
        """When all pooled connections were last replaced, because one was silent."""
        self._closed = False
        self._has_failed = False
        """The database was unreachable or full, and nothing was written since."""

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        """Finish statements under way, then close. A silent database is not waited for."""
        self._closed = True
        late: set[asyncio.Task[Any]] = set()
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=CLOSE_SECONDS)
        if late:
            for db in list(self._lent):
                cut(db)
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=1.0)
        await self._commits.close(0.0 if late else CLOSE_SECONDS)
        await self._pool.close(timeout=1.0)

    async def run(self, job: Job[T], seconds: float = STATEMENT_SECONDS) -> T:
        """Run this on a connection, within `seconds`; again, if the connection breaks.

        A caller may stop waiting; the statement continues to its end. Cancelled during the
        hand-over of a connection, the pool would lose it for good, and might swallow the
        cancellation.
        """
        if self._closed:
            raise StoreError(CLOSED)
        doing = asyncio.create_task(self._patiently(job, seconds))
        self._under_way.add(doing)
        doing.add_done_callback(self._ended)
        return await asyncio.shield(doing)

    def _ended(self, doing: asyncio.Task[Any]) -> None:
        self._under_way.discard(doing)
        if not doing.cancelled():
            # Asyncio would print the error of a statement that nobody waits for any more.
            doing.exception()

    async def _patiently(self, job: Job[T], seconds: float) -> T:
        now = asyncio.get_running_loop().time
        deadline = now() + PATIENCE_SECONDS
        pause = PAUSE_FIRST
        while True:
            began = now()
            try:
                # Within the remaining time: a broken connection was met before, or the pool is
                # exhausted.
                async with self._pool.connection(timeout=max(deadline - began, 1.0)) as db:
                    self._lent.add(db)
                    try:
                        with limited(db, seconds):
                            return await job(db)
                    finally:
                        self._lent.discard(db)
            except FORESEEN as error:
                is_over = isinstance(error, PoolTimeout) or self._closed or now() >= deadline
                if is_over or not is_passing(error):
                    raise self.fault(error) from error
                is_silent = isinstance(error, Silence)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX)
            # Other pooled connections are probably broken, too.
            if is_silent:
                await self._renew(began)
            else:
                await self._pool.check()

    async def _renew(self, began: float) -> None:
        """A statement that began then got no answer: replace all connections, unless that has been
        done.
        """
        if self._renewed_at < began:
            self._renewed_at = asyncio.get_running_loop().time()
            await self._pool.drain()

    def fault(self, error: Exception) -> NoetlError:
        """The error to raise instead."""
        found = fault(error, self.place)
        if isinstance(found, StoreBusy | StoreFull):
            self._has_failed = True
        return found

    async def commit(self, query: str, values: Sequence[Value]) -> list[str]:
        """The first column of the answer to a commit, which has a connection of its own."""
        if self._commits.is_free and not self._closed:
            began = asyncio.get_running_loop().time()
            try:
                found = await self._commits.ask(query, values)
            except FORESEEN as error:
                if not is_passing(error):
                    raise
                if isinstance(error, Silence):
                    await self._renew(began)
            else:
                self._has_failed = False
                return found
        # It is in use, or broke: use the pool, with its retries.
        return await self.run(lambda db: commit(db, query, values))

    async def probe(self) -> None:
        """Raise StoreError if the database cannot be reached, or written since that last failed.

        PostgreSQL does not report free space, so this writes a body and rolls it back.
        """
        if not self._has_failed:
            await self.tuples("time")
            return

        async def write(db: Transaction) -> None:
            body = os.urandom(PROBE_BYTES)
            row = {"execution_id": "", "key": "probe", "sha256": sha256(body).hexdigest()}
            await db.change("put_result", **row, size=len(body), body=body)
            raise Undo(None)

        await self.together(write)
        self._has_failed = False

    async def tuples(self, query: str, /, **values: Any) -> list[Any]:
        return await self.run(lambda db: tuples(db, query, values), _seconds(query))

    async def rows(self, query: str, kind: Callable[..., T], /, **values: Any) -> list[T]:
        return await self.run(lambda db: rows(db, query, kind, values), _seconds(query))

    async def change(self, query: str, /, **values: Any) -> int:
        return await self.run(lambda db: change(db, query, values), _seconds(query))

    async def returned(self, query: str, /, **values: Any) -> list[Any]:
        return await self.tuples(query, **values)

    async def composed(self, statement: str, values: dict[str, Any]) -> list[Any]:
        statement = translated(statement)

        async def ask(db: Connection) -> list[TupleRow]:
            cursor = db.cursor(binary=True, row_factory=tuple_row)
            # Not prepared: the plan for one query is a poor one for another.
            await cursor.execute(statement.encode(), values, prepare=False)
            return await cursor.fetchall()

        return await self.run(ask)

    async def scan(
        self, query: str, job: Callable[[Rows], Coroutine[Any, Any, T]], /, **values: Any
    ) -> T:
        async def whole(db: Connection) -> T:
            async with db.transaction(), db.cursor("scan") as cursor:
                cursor.itersize = SCANNED_AT_ONCE
                await cursor.execute(QUERIES[query], values, binary=True)
                return await job(aiter(cursor))

        return await self.run(whole, _seconds(query))

    async def together(
        self,
        job: Callable[[PostgresTransaction], Coroutine[Any, Any, T]],
        *,
        is_long: bool = False,
    ) -> T:
        async def whole(db: Connection) -> T:
            try:
                async with db.transaction():
                    return await job(PostgresTransaction(db, self.home))
            except Undo as undo:
                result: T = undo.result
                return result

        return await self.run(whole, BODY_SECONDS if is_long else STATEMENT_SECONDS)


class PostgresTransaction(Transaction):
    """Runs statements on one connection."""

    def __init__(self, db: Connection, home: str) -> None:
        self._db = db
        self.home = home
        self.pipeline = db.pipeline
        """Within it, statements are sent without waiting for answers."""

    async def tuples(self, query: str, /, **values: Any) -> list[Any]:
        return await tuples(self._db, query, values)

    async def rows(self, query: str, kind: Callable[..., T], /, **values: Any) -> list[T]:
        return await rows(self._db, query, kind, values)

    async def change(self, query: str, /, **values: Any) -> int:
        return await change(self._db, query, values)

    async def change_all(self, query: str, rows: Sequence[msgspec.Struct], /) -> int:
        cursor = self._db.cursor()
        await cursor.executemany(QUERIES[query], [*map(msgspec.structs.asdict, rows)])
        return cursor.rowcount

    async def lock(self, query: str, /, **values: Any) -> None:
        await self.tuples(query, **values)

    async def commit(self, query: str, values: Sequence[Value]) -> list[str]:
        """The first column of the answer to a commit."""
        return await commit(self._db, query, values)


def _seconds(query: str) -> float:
    return SECONDS.get(query, STATEMENT_SECONDS)


async def tuples(db: Connection, query: str, values: Mapping[str, Any]) -> list[TupleRow]:
    cursor = db.cursor(binary=True, row_factory=tuple_row)
    await cursor.execute(QUERIES[query], values)
    return await cursor.fetchall()


async def rows(
    db: Connection, query: str, kind: Callable[..., T], values: Mapping[str, Any]
) -> list[T]:
    cursor = await db.execute(QUERIES[query], values, binary=True)
    return [kind(**fields_of(row)) for row in await cursor.fetchall()]


async def change(db: Connection, query: str, values: Mapping[str, Any]) -> int:
    return (await db.execute(QUERIES[query], values)).rowcount


async def commit(db: Connection, query: str, values: Sequence[Value]) -> list[str]:
    return [one for (one, *_) in await tuples(db, query, COMMITS[query].named(values))]
