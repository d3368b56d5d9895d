"""PostgreSQL for every kind that reaches one: credentials, connections in threads, failures."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from noetl.model.outcome import ErrorKind, TaskError
from noetl.tools.credentials import text_field
from noetl.tools.egress import check_database
from noetl.tools.failures import RETRYABLE, Foreseen
from noetl.tools.sql.rows import NO_KEY, quoted
from noetl.tools.sql.text import PLACE
from noetl.tools.sql.threads import Halt, in_background

# --- Credentials -------------------------------------------------------------------------------

NAMES = {
    "host": ("host", "db_host", "hostname", "server"),
    "hostaddr": ("hostaddr",),
    "port": ("port", "db_port"),
    "user": ("user", "db_user", "username"),
    "password": ("password", "db_password"),
    "dbname": ("dbname", "db_name", "database"),
    "sslmode": ("sslmode", "db_sslmode"),
    "sslrootcert": ("sslrootcert",),
    "options": ("options",),
    "connect_timeout": ("connect_timeout",),
    "application_name": ("application_name",),
    "target_session_attrs": ("target_session_attrs",),
}
NOWHERE = "/nonexistent/noetl"
NOT_LENT = {"password": "", "passfile": NOWHERE, "sslcert": NOWHERE}
"""What libpq would otherwise look for in the worker's environment and home directory."""
KEEPALIVES = {"keepalives_idle": "60", "keepalives_interval": "15", "keepalives_count": "4"}
"""A machine that vanished during a statement is missed within two minutes instead of two hours."""
OF_THE_WORKER = ("service", "servicefile", "passfile")
ADDRESSES = ("dsn", "url", "uri", "connection_string", "db_url", "conninfo")


class BadCredential(Foreseen):
    """The credential does not say how to connect. The text does not repeat its values."""

    kind = "auth"


def parameters(fields: Mapping[str, Any]) -> dict[str, str]:
    """Parameters by their libpq names, from fields, `db_…` fields, or a DSN or URL in one field."""
    found: dict[str, str] = {}
    address = next((fields[name] for name in ADDRESSES if fields.get(name)), None)
    if address is not None:
        found = _from_url(str(address)) if "://" in str(address) else _from_dsn(str(address))
    for parameter, names in NAMES.items():
        value = text_field(fields, *names)
        if value is not None:
            found[parameter] = value
    for name in OF_THE_WORKER:
        if name in found:
            raise BadCredential(
                f"auth: `{name}` names credentials of the worker's own; they are not lent to tasks."
                " Write host, user, password and dbname into the credential."
            )
    if not any(name in found for name in ("host", "hostaddr", "dbname")):
        raise BadCredential(
            "auth: the credential has neither `host` nor `dbname` nor a `dsn`. It needs host, "
            "port, user, password and dbname, or the same as db_host, db_port, …, or a DSN."
        )
    return found


async def login_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """The connection parameters from a credential's fields. Raises Refused."""
    found = parameters(fields)
    await check_database(*found.get("host", "").split(","), *found.get("hostaddr", "").split(","))
    return found


def _from_url(address: str) -> dict[str, str]:
    try:
        parts = urlsplit(address)
        if parts.scheme.partition("+")[0] not in ("postgres", "postgresql"):
            raise ValueError
        if re.search(r":\d+,|,.*:\d", parts.netloc.rpartition("@")[2]):
            # Only libpq reads several hosts with their ports.
            return _from_dsn(f"postgresql://{address.partition('://')[2]}")
        found = {
            "host": unquote(parts.hostname or ""),
            "port": str(parts.port or ""),
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "dbname": unquote(parts.path.lstrip("/")),
            **dict(parse_qsl(parts.query)),
        }
    except ValueError:
        raise BadCredential(
            "auth: the credential's address is not like postgresql://user:password@host/database."
        ) from None
    return {name: value for name, value in found.items() if value}


def _from_dsn(text: str) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except psycopg.ProgrammingError:
        raise BadCredential(
            "auth: the credential's DSN is not like host=… port=… user=… password=… dbname=…."
        ) from None


# --- Connections in threads --------------------------------------------------------------------

CONNECT_SECONDS = 10
CANCEL_SECONDS = 0.5
KEY_COLUMNS = """
    SELECT attname
      FROM pg_index
      JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
     WHERE indrelid = %s::regclass AND indisprimary
     ORDER BY array_position(indkey::int2[], attnum)
"""


def settings(login: Mapping[str, str], seconds: float = CONNECT_SECONDS) -> dict[str, Any]:
    """How to connect with these parameters."""
    usual = {"application_name": "noetl", "connect_timeout": str(max(2, int(seconds)))}
    return {**usual, **KEEPALIVES, **NOT_LENT, **login}


@contextmanager
def connected(login: Mapping[str, str], halt: Halt) -> Iterator[psycopg.Connection[Any]]:
    """A connection with portable output of dates, times and numbers."""
    connection = psycopg.connect(**settings(login), autocommit=True)
    with closing(connection), halt.stoppable(in_background(lambda: _stop(connection))):
        connection.execute(
            "SET datestyle = ISO; SET timezone = 'UTC'; SET client_encoding = 'UTF8'; "
            "SET extra_float_digits = 1; SET bytea_output = hex"
        )
        yield connection


def _stop(connection: psycopg.Connection[Any]) -> None:
    """Ask the server to stop, then close the connection in any case."""
    with suppress(psycopg.Error, OSError):
        connection.cancel_safe(timeout=CANCEL_SECONDS)
    line = socket.socket(fileno=connection.fileno())
    try:
        line.shutdown(socket.SHUT_RDWR)
    finally:
        # It belongs to the connection, which closes it.
        line.detach()


def ordered_by(connection: psycopg.Connection[Any], table: str) -> str:
    """An ORDER BY clause for a table's primary key; empty if it has none."""
    found = connection.execute(KEY_COLUMNS, [table]).fetchall()
    names = ", ".join(quoted(name) for (name,) in found)
    return f" ORDER BY {names}" if names else ""


# --- Failures ----------------------------------------------------------------------------------

KINDS: dict[str, ErrorKind] = {
    "57014": "db_timeout",
    "55P03": "db_timeout",
    "25P03": "db_timeout",
    "25P04": "db_timeout",
    "40001": "db_deadlock",
    "40P01": "db_deadlock",
    "57P01": "db_connection",
    "57P02": "db_connection",
    "57P03": "db_connection",
    "3D000": "db_connection",
    "08": "db_connection",
    "53": "db_connection",
    "58": "db_connection",
    "23": "db_constraint",
    "28": "auth",
}
FINAL = frozenset(["3D000"])
"""Of the retryable kinds, the error that is not: a database that does not exist."""
_REFUSED = re.compile(
    r"password authentication failed|no pg_hba\.conf entry|no password supplied"
    r"|authentication failed|role .* does not exist|is not permitted to log in",
    re.IGNORECASE,
)
_MISSING = re.compile(r"database .* does not exist", re.IGNORECASE)


def failure(error: psycopg.Error) -> TaskError:
    """The error of the server, in our words."""
    state = error.sqlstate
    kind = _kind(error, state)
    # Messages of the driver itself have several lines, and may end with a question.
    message = " ".join((error.diag.message_primary or str(error)).split()).rstrip(".")
    remedy = NO_KEY if "matching the ON CONFLICT" in message else None
    said = error.diag.message_detail, error.diag.message_hint, remedy
    extra = [text for text in said if text]
    final = state in FINAL or bool(state is None and _MISSING.search(message))
    return TaskError(
        kind=kind,
        code=state,
        message=" ".join([f"PostgreSQL: {message}" + "." * (message[-1:] != "?"), *extra]),
        retryable=kind in RETRYABLE and not final,
        details={"sql": found[0].rstrip()} if (found := PLACE.search(str(error))) else None,
    )


def _kind(error: psycopg.Error, state: str | None) -> ErrorKind:
    if state is not None:
        return KINDS.get(state) or KINDS.get(state[:2]) or "client_error"
    if isinstance(error, psycopg.OperationalError):
        return "auth" if _REFUSED.search(str(error)) else "db_connection"
    return "schema" if isinstance(error, psycopg.DataError) else "client_error"
