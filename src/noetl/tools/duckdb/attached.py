"""Databases attached to DuckDB: how to reach and stop them, and the meaning of their errors."""

from __future__ import annotations

import ctypes
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
import msgspec
import psycopg

from noetl.model.outcome import ErrorKind
from noetl.model.secrets import without_values
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of
from noetl.tools.duckdb import Attach
from noetl.tools.failures import Failed, failed_with
from noetl.tools.sql.duckdb import NO_DATABASE, literal
from noetl.tools.sql.postgres import CONNECT_SECONDS, NOT_LENT, connected, login_of
from noetl.tools.sql.postgres import failure as postgres_failure
from noetl.tools.sql.rows import quoted
from noetl.tools.sql.text import BadSql
from noetl.tools.sql.threads import Halt, in_background

CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
CANCEL_SECONDS = 0.2
SAID: tuple[tuple[re.Pattern[str], ErrorKind], ...] = (
    (re.compile(r"violates .+ constraint|constraint fail|Duplicate entry"), "db_constraint"),
    (re.compile(r"deadlock|could not serialize", re.IGNORECASE), "db_deadlock"),
    (re.compile(r"database is locked|(statement|[Ll]ock|[Ll]ock wait) timeout"), "db_timeout"),
    (re.compile(r"server closed|terminating connection|no connection|gone away"), "db_connection"),
    (re.compile(r"Access denied"), "auth"),
)
"""DuckDB passes on errors of PostgreSQL, SQLite and MySQL as text only."""


class Attached(msgspec.Struct, frozen=True):
    """A database to attach: its address, and which parts of that are secret."""

    kind: str
    place: str
    read_only: bool
    password: str = ""
    login: dict[str, str] = {}
    """How to reach the same PostgreSQL without DuckDB."""

    __repr__ = without_values

    @property
    def on_server(self) -> bool:
        return self.kind in ("postgres", "mysql")


async def attached(name: str, written: Attach, context: ToolContext) -> Attached:
    """The database that is meant, within what the operator allows. Raises Refused, BadSql or
    Failed.
    """
    if written.kind in ("sqlite", "duckdb"):
        if written.database is None:
            raise BadSql(f"attach: {written.kind} needs `database`, the path of its file.")
        path = context.resources.path(written.database)
        if written.read_only and not path.exists():
            told = f'attach {name}: the database "{written.database}" does not exist.'
            raise Failed("not_found", told)
        return Attached(written.kind, str(path), written.read_only)
    if written.auth is None:
        raise BadSql(f"attach: {written.kind} needs `auth`.")
    login = await login_of(await fields_of(written.auth, context))
    found = dict(login)
    password = found.pop("password", "")
    if written.kind == "mysql":
        found["database"] = found.pop("dbname", "")
    else:
        found["application_name"] = _own_name(found.get("application_name", "noetl"))
        found.setdefault("connect_timeout", str(CONNECT_SECONDS))
        found = NOT_LENT | found
        found.pop("password")
    quote = '"' if written.kind == "mysql" else "'"
    place = " ".join(f"{key}={_escaped(value, quote)}" for key, value in found.items() if value)
    if written.kind == "postgres" and not password:
        place += " password=''"  # otherwise libpq would look for one
    known = {**found, "password": password} if written.kind == "postgres" else {}
    return Attached(written.kind, place, written.read_only, password, known)


def _own_name(given: str) -> str:
    """A unique name, by which a server can identify the connections of this task."""
    return f"{given[:40]} {secrets.token_hex(6)}"


def _escaped(value: str, quote: str) -> str:
    return quote + value.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote


def attach(connection: duckdb.DuckDBPyConnection, name: str, one: Attached, halt: Halt) -> None:
    options = [f"TYPE {one.kind}"] if one.kind != "duckdb" else []
    options += ["READ_ONLY"] if one.read_only else []
    try:
        if one.on_server:
            # Statements can read where a database is, but not what is in a secret. One without
            # a password keeps DuckDB from looking for secrets of its own.
            secret = quoted(_own_name("noetl"))
            said = f", PASSWORD {literal(one.password)}" if one.password else ""
            connection.execute(f"CREATE TEMPORARY SECRET {secret} (TYPE {one.kind}{said})")
            options.append(f"SECRET {secret}")
        how = f" ({', '.join(options)})" if options else ""
        connection.execute(f"ATTACH {literal(one.place)} AS {quoted(name)}{how}")
    except duckdb.Error as error:
        _ask_server(one, halt)
        text = hidden(str(error), [one])
        retryable = False if NO_DATABASE.search(text) else None
        kind = kind_of(error) or "db_connection"
        raise Failed(kind, f"attach {name}: {text}", retryable=retryable) from None


def _ask_server(one: Attached, halt: Halt) -> None:
    """Raise the server's own error; DuckDB only passes on its text."""
    if one.kind != "postgres":
        return
    try:
        with connected(_present(one.login), halt):
            return
    except psycopg.Error as error:
        raise failed_with(postgres_failure(error)) from None


@contextmanager
def stoppable(one: Attached, halt: Halt) -> Iterator[None]:
    """While this is entered, stopping the task stops its queries in PostgreSQL.

    DuckDB always waits for the server's answer. Between two of its queries there is nothing to
    stop, so this keeps trying until the task has ended.
    """
    if one.kind != "postgres":
        yield
        return
    ended = threading.Event()

    def stop() -> None:
        login = _present(one.login)
        mine = login.pop("application_name")
        with psycopg.connect(**login, autocommit=True) as connection:
            while not ended.is_set():
                connection.execute(CANCEL, [mine])
                ended.wait(CANCEL_SECONDS)

    with halt.stoppable(in_background(stop)):
        try:
            yield
        finally:
            ended.set()


def _present(login: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in login.items() if value}


@contextmanager
def closed_in_the_end(
    connection: duckdb.DuckDBPyConnection, attached: Mapping[str, Attached]
) -> Iterator[None]:
    """Roll back an open transaction, detach the attached databases, then close.

    DuckDB would roll back on close, but if an attached server is gone by then, that ends the whole
    process (seen with 1.5.5). If the rollback fails, the connection is never closed.
    """
    is_safe = True
    try:
        yield
    except BaseException:
        is_safe = _rolled_back(connection) or not any(one.on_server for one in attached.values())
        raise
    finally:
        if is_safe:
            # Other tasks that have the same file open would otherwise find them attached.
            for name in attached:
                # A statement may have detached it, or may have made it the current database.
                with suppress(duckdb.Error):
                    connection.execute(f"DETACH {quoted(name)}")
            connection.close()
        else:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _rolled_back(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.execute("ROLLBACK")
    except duckdb.FatalException:
        return False
    except duckdb.Error:
        # There was nothing to roll back, or the server is gone: the transaction is over either way.
        return True
    return True


# --- What went wrong ---------------------------------------------------------------------------


def hidden(text: str, databases: Sequence[Attached]) -> str:
    """The text without the addresses and secrets of these servers."""
    for one in databases:
        if one.on_server:
            text = text.replace(one.place, "…")
        if one.password:
            text = text.replace(one.password, "***")
    return text


def kind_of(error: duckdb.Error) -> ErrorKind | None:
    """The error kind that an attached database reported; None if unknown."""
    if type(error) not in (duckdb.Error, duckdb.IOException, duckdb.InternalException):
        return None
    text = str(error)
    return next((kind for said, kind in SAID if said.search(text)), None)
