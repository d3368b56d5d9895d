"""DuckDB for every kind that opens one: connections in bounded memory, literals, failures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb

from noetl.model.outcome import ErrorKind
from noetl.tools.failures import Failed
from noetl.tools.sql.threads import Halt

MEMORY = "256MB"
"""For copying records. Data that does not fit spills to the disk, which needs a limit."""
THREADS = 1
"""For copying records. They keep their order, so more threads are no faster, and each that runs
ahead holds its data in memory that is not counted."""


def connection_to(place: Path | str, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection without progress bars, and which does not take our variables for
    tables.
    """
    connection = duckdb.connect(str(place), read_only=read_only)
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET python_enable_replacements = false")
    return connection


@contextmanager
def bounded(
    folder: Path, halt: Halt | None = None, database: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in bounded memory that spills into `folder`; stopping the task interrupts it."""
    with ExitStack() as stack:
        connection = stack.enter_context(closing(connection_to(database or ":memory:")))
        if halt is not None:
            stack.enter_context(halt.stoppable(connection.interrupt))
        connection.execute("SET autoinstall_known_extensions = false")
        connection.execute(f"SET temp_directory = {literal(str(folder / 'spill'))}")
        connection.execute(f"SET memory_limit = {literal(MEMORY)}")
        if database is None:
            connection.execute(f"SET threads = {THREADS}")
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if "\0" in value:
        raise Failed("client_error", "A text in SQL cannot hold a NUL character.")
    return "'" + str(value).replace("'", "''") + "'"


# --- Failures ----------------------------------------------------------------------------------

ONE_WRITTEN = "can only write to a single attached database"
KINDS: tuple[tuple[type[duckdb.Error], ErrorKind], ...] = (
    (duckdb.ConstraintException, "db_constraint"),
    (duckdb.TransactionException, "db_deadlock"),
    (duckdb.HTTPException, "db_connection"),
    (duckdb.FatalException, "db_connection"),
    (duckdb.ConnectionException, "db_connection"),
    (duckdb.OutOfMemoryException, "db_connection"),
    (duckdb.PermissionException, "auth"),
)
NO_DATABASE = re.compile(r"not a valid DuckDB|not a database")
"""An error about a file that retrying will not cure."""


def failure(
    error: duckdb.Error,
    halt: Halt,
    hide: Callable[[str], str] = str,
    told: ErrorKind | None = None,
) -> Exception:
    """The error of DuckDB, in our words.

    `hide` masks its text; `told` is the error kind that an attached database reported.
    """
    # Internal errors come with pages of addresses.
    text = hide(str(error).partition("Stack Trace:")[0].strip())
    # To DuckDB, a stopped query of PostgreSQL is a failure like any other.
    if isinstance(error, duckdb.InterruptException) or halt.late or halt.wanted:
        if halt.late:
            said = "A statement took longer than `timeout` and was stopped."
            return Failed("db_timeout", said)
        return InterruptedError("the task was stopped")
    if told is not None:
        return Failed(told, text)
    if NO_DATABASE.search(text):
        return Failed("db_connection", text, retryable=False)
    if ONE_WRITTEN in text:
        return Failed("client_error", text)
    for kind_of_error, kind in KINDS:
        if isinstance(error, kind_of_error):
            return Failed(kind, text)
    if isinstance(error, duckdb.IOException):
        return _io_failure(text)
    if "malformed" in text.lower() or "error when sniffing" in text.lower():
        return Failed("parse", text)
    return Failed("client_error", text)


NO_FILE = re.compile(r'No files found that match the pattern "([^"]*)"')


def _io_failure(text: str) -> Exception:
    if missing := NO_FILE.search(text):
        told = f'No file of this worker matches "{missing[1]}". Check the path and its base.'
        return Failed("not_found", told)
    if "No such file" in text:
        return Failed("not_found", text)
    return Failed("db_connection", text)
