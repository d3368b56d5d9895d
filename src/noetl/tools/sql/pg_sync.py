"""PostgreSQL in a thread: for long streams of rows, where a round of the event loop for each row
would cost more than the row."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg

from noetl.tools.sql.pg_connections import CONNECT_SECONDS
from noetl.tools.sql.pg_credentials import NOT_LENT
from noetl.tools.sql.rows import quoted
from noetl.tools.sql.threads import Halt, in_background

CANCEL_SECONDS = 0.5
KEY_COLUMNS = """
    SELECT attname
      FROM pg_index
      JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
     WHERE indrelid = %s::regclass AND indisprimary
     ORDER BY array_position(indkey::int2[], attnum)
"""


@contextmanager
def connected(login: Mapping[str, str], halt: Halt) -> Iterator[psycopg.Connection[Any]]:
    """A connection that writes dates, times and numbers as everybody reads them."""
    settings: dict[str, Any] = {
        "application_name": "noetl",
        "connect_timeout": str(CONNECT_SECONDS),
        **NOT_LENT,
        **login,
    }
    connection = psycopg.connect(**settings, autocommit=True)
    with closing(connection), halt.stoppable(in_background(lambda: _stop(connection))):
        connection.execute(
            "SET datestyle = ISO; SET timezone = 'UTC'; SET client_encoding = 'UTF8'; "
            "SET extra_float_digits = 1; SET bytea_output = hex"
        )
        yield connection


def _stop(connection: psycopg.Connection[Any]) -> None:
    """Ask the server first, so that it stops working; then hang up, whatever it says."""
    with suppress(psycopg.Error, OSError):
        connection.cancel_safe(timeout=CANCEL_SECONDS)
    line = socket.socket(fileno=connection.fileno())
    try:
        line.shutdown(socket.SHUT_RDWR)
    finally:
        # It belongs to the connection, which closes it.
        line.detach()


def ordered_by(connection: psycopg.Connection[Any], table: str) -> str:
    """The order of a table's primary key, as the end of a query; nothing if it has none."""
    found = connection.execute(KEY_COLUMNS, [table]).fetchall()
    names = ", ".join(quoted(name) for (name,) in found)
    return f" ORDER BY {names}" if names else ""
