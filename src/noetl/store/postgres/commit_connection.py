"""A dedicated connection for commits, without the overhead of a general one.

A commit is sent for every step, and its caller waits for nothing else. A pool that lends
connections, cursors that adapt types, a task per statement: around one short statement they take
four times as long as libpq itself (docs/decisions/0015). So this sends text, reads text, and does
one thing at a time.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from noetl.store.database import PARAMETER

Value = bytes | None
"""A parameter as sent: UTF-8 text, or bytes that are stored as they are."""

BINARY, TEXT = pq.Format.BINARY, pq.Format.TEXT
BYTES = frozenset({"events", "body"})
"""Parameters that are bytes, not text."""

STATEMENT_SECONDS = 10.0
"""Timeout of a statement. A commit takes milliseconds."""
CONNECT_SECONDS = 5.0


class Silence(psycopg.OperationalError):
    """No answer arrived in time. The connection was cut; whether the statement was executed is
    unknown.
    """


@contextmanager
def limited(db: psycopg.AsyncConnection[Any], seconds: float) -> Iterator[None]:
    """Cut the connection if the body takes longer; a pending call then raises Silence.

    A connection whose other end has vanished never answers, and psycopg waits for ever: to cancel a
    statement it asks the other end. Shutting down the socket wakes the waiting call.
    """
    is_late = False

    def end() -> None:
        nonlocal is_late
        is_late = True
        cut(db)

    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        yield
    except psycopg.OperationalError as error:
        if is_late:
            raise Silence(f"no answer within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()


def cut(db: psycopg.AsyncConnection[Any]) -> None:
    """Shut down the socket of a connection, regardless of what is under way."""
    if not db.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(db.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


async def configure(db: psycopg.AsyncConnection[Any]) -> None:
    """Set up a new connection.

    Our statements use indexes, and a plan outlives the table sizes it was made for. No statement
    runs long enough to be worth JIT compilation, which PostgreSQL before version 18 would choose
    for plans without an index, because it takes them for endless. When we stop waiting, PostgreSQL
    also stops: waiting for a lock, working on an abandoned statement, and holding the locks of a
    transaction whose client is silent.
    """
    with limited(db, CONNECT_SECONDS):
        await db.execute(
            "SELECT set_config('enable_seqscan', 'off', false),"
            " set_config('jit', 'off', false),"
            " set_config('lock_timeout', '10s', false),"
            " set_config('statement_timeout', '70s', false),"
            " set_config('idle_in_transaction_session_timeout', '30s', false)"
        )


class Statement(NamedTuple):
    """A statement that is prepared once per connection, and its parameters in order."""

    name: bytes
    preparing: bytes
    parameters: tuple[str, ...]
    formats: tuple[pq.Format, ...]
    texts: tuple[int, ...]
    """Which of the parameters are text."""

    @classmethod
    def of(cls, query: str, text: str, parameters: tuple[str, ...]) -> Statement:
        """The query of that name and text, with its parameters in this order."""
        numbered = PARAMETER.sub(lambda at: f"${parameters.index(at[1]) + 1}", text)
        formats = tuple(BINARY if name in BYTES else TEXT for name in parameters)
        texts = tuple(n for n, name in enumerate(parameters) if name not in BYTES)
        preparing = f"PREPARE {query} AS {numbered}".encode()
        return cls(query.encode(), preparing, parameters, formats, texts)

    def named(self, values: Sequence[Value]) -> dict[str, str | Value]:
        """The parameters as psycopg takes them."""
        return {
            name: value.decode() if value is not None and name not in BYTES else value
            for name, value in zip(self.parameters, values, strict=True)
        }


class CommitConnection:
    """Runs one statement at a time. Opens on first use, and again after a break."""

    def __init__(self, conninfo: str, statements: Mapping[str, Statement]) -> None:
        self._conninfo = conninfo
        self._statements = statements
        self._connection: psycopg.AsyncConnection | None = None
        self._socket = -1
        self._is_open = self._is_opening = False
        self._timer: asyncio.TimerHandle | None = None
        """Checks whether the current statement has taken too long. One timer serves many
        statements: nearly all are answered long before it fires.
        """
        self._sent_at = 0.0
        self._answer: asyncio.Future[pq.abc.PGresult] | None = None
        """The answer to the current statement."""
        self._result: pq.abc.PGresult | None = None

    @property
    def is_free(self) -> bool:
        return self._answer is None and not self._is_opening

    async def ask(self, query: str, values: Sequence[Value]) -> list[str]:
        """The first column of the answer; the connection must be free.

        A caller may stop waiting: the statement continues, and the connection is free at its end.
        """
        assert self.is_free
        if not self._is_open:
            await self._open()
        result = await self._send(query, values)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise error_from_result(result)
        return [(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)]

    async def close(self, seconds: float = STATEMENT_SECONDS) -> None:
        """Close once no call is pending; after `seconds` in any case."""
        if self._answer is not None:
            await asyncio.wait([self._answer], timeout=seconds)
        self._break(psycopg.OperationalError("the connection was closed"))
        await self._let_go()

    async def _let_go(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _open(self) -> None:
        self._is_opening = True
        try:
            await self._let_go()
            self._connection = db = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True
            )
            await configure(db)
            with limited(db, STATEMENT_SECONDS):
                for statement in [one.preparing for one in self._statements.values()]:
                    await db.execute(statement)
        finally:
            self._is_opening = False
        self._is_open, self._socket = True, db.pgconn.socket
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _send(self, query: str, values: Sequence[Value]) -> asyncio.Future[pq.abc.PGresult]:
        assert self._connection is not None
        statement = self._statements[query]
        if b"\0" in b"".join([values[n] or b"" for n in statement.texts]):
            # libpq would silently cut the text there.
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        try:
            self._connection.pgconn.send_query_prepared(statement.name, values, statement.formats)
        except psycopg.OperationalError as error:
            self._break(error)
            raise
        loop = asyncio.get_running_loop()
        self._answer = answer = loop.create_future()
        self._sent_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(STATEMENT_SECONDS, self._look_at_clock)
        self._write()
        return answer

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._answer is None:
            return
        loop = asyncio.get_running_loop()
        left = self._sent_at + STATEMENT_SECONDS - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._look_at_clock)
        else:
            self._break(Silence(f"no answer within {STATEMENT_SECONDS:g} s"))

    def _write(self, *, is_waiting: bool = False) -> None:
        """Continue sending. What the socket does not accept now is sent when it is ready."""
        assert self._connection is not None
        pgconn, loop = self._connection.pgconn, asyncio.get_running_loop()
        try:
            is_left = pgconn.flush() == 1
        except psycopg.OperationalError as error:
            self._break(error)
            return
        if is_left and not is_waiting:
            loop.add_writer(self._socket, partial(self._write, is_waiting=True))
        elif is_waiting and not is_left:
            loop.remove_writer(self._socket)

    def _read(self) -> None:
        """Read the available data; when the answer is complete, deliver it."""
        assert self._connection is not None
        pgconn = self._connection.pgconn
        try:
            pgconn.consume_input()
            while self._answer is not None and not pgconn.is_busy():
                if (result := pgconn.get_result()) is not None:
                    self._result = result
                    continue
                answer, self._answer = self._answer, None
                assert self._result is not None
                if not answer.done():
                    answer.set_result(self._result)
        except psycopg.OperationalError as error:
            self._break(error)

    def _break(self, error: psycopg.OperationalError) -> None:
        """This connection is over. The pending call fails; the next one opens another."""
        if self._is_open:
            self._is_open = False
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
