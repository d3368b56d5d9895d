"""DuckDB for every kind that opens one: connections in bounded memory, what SQL may not do,
literals, failures.

Database extensions open files and connections regardless of DuckDB's own settings, so they could
escape the worker's directory and the egress policy. A task therefore names what they open under
`attach`, where both are enforced; statements may not open anything. Nor may text that is built
while a statement runs, because it cannot be checked.

Views and macros that are stored in a file can open what statements cannot, but only where an
extension is loaded. DuckDB has one instance of a file for all tasks of this process, so an
extension that one of them loads is there for all of them. Therefore a task looks at what is stored
if any task that has the file open may load an extension (`sharing`); and one that may do so while
others have the file open looks before it loads the first, too. Other tasks need not look, which
would take longer than all else that a small task does.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from noetl.model.outcome import ErrorKind
from noetl.tools.failures import Failed
from noetl.tools.processes.programs import spawner
from noetl.tools.sql.rows import NO_KEY
from noetl.tools.sql.text import PLACE, BadSql
from noetl.tools.sql.threads import Halt

MEMORY = "256MB"
"""For copying records. Data that does not fit spills to the disk, which needs a limit."""
THREADS = 1
"""For copying records. They keep their order, so more threads are no faster, and each that runs
ahead holds its data in memory that is not counted."""

OPENS = re.compile(r"\b(?:sqlite|postgres|mysql)_(?:scan\w*|attach)\b", re.IGNORECASE)
"""Functions that open what their caller names. Also checked inside quotes, which may become SQL."""
RUNS_TEXT = re.compile(r"\bjson_execute_serialized_sql\b|\bquery\"?\s*(?:\(|--|/\*)", re.IGNORECASE)
EXPLAINED = re.compile(r"\b(?:attach|load|install)\b", re.IGNORECASE)
LOADS_UNNAMED = re.compile(r"known_extensions|reset|import", re.IGNORECASE)
"""In settings and statements: DuckDB may be told to load extensions where it finds their functions.
The statements of an imported database are known only when it is imported."""
LOGS = re.compile(r"\b(?:enable_(?:http_)?logging|log_query_path)\b", re.IGNORECASE)
"""DuckDB logs the statements of all that have a file open, with the passwords in them. A log that
cannot be written ends the whole process (seen with 1.5.5)."""
ATTACH = "Name the database under `attach` of a `duckdb` task."
EXTENSIONS = "Name it under `extensions` of a `duckdb` task."
VIEWS = "SELECT database_name, view_name, sql FROM duckdb_views() WHERE NOT internal"
MACROS = """
    SELECT database_name, function_name, macro_definition FROM duckdb_functions()
     WHERE NOT internal AND macro_definition IS NOT NULL
"""


def connection_to(place: Path | str, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection without progress bars, and which does not take our variables for
    tables.
    """
    return _quiet(duckdb.connect(str(place), read_only=read_only))


def _quiet(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET python_enable_replacements = false")
    return connection


@contextmanager
def bounded(
    folder: Path, halt: Halt | None = None, database: Path | None = None, spill: str = ""
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in bounded memory that spills into `folder`, or to where the `database` does;
    stopping the task interrupts it.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(closing(connection_to(database or ":memory:")))
        if halt is not None:
            stack.enter_context(halt.stoppable(connection.interrupt))
        connection.execute("SET autoinstall_known_extensions = false")
        connection.execute("SET autoload_known_extensions = false")
        spill_to(connection, spill or str(folder / "spill"))
        connection.execute(f"SET memory_limit = {literal(MEMORY)}")
        if database is None:
            connection.execute(f"SET threads = {THREADS}")
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@contextmanager
def of_file(
    path: Path, folder: Path, halt: Halt, root: str | None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same for a file whose views and macros others may have written: they lead no further than
    the statements of a task. With a `root`, the caller has the file `alone`.
    """
    with (
        sharing(path, folder, extends=False) as shared,
        bounded(folder, halt, path, shared.spill) as connection,
    ):
        if shared.is_extended:
            check_stored(connection, ["duckdb"])
        confine(connection, root, folder)
        yield connection


@contextmanager
def beside(
    connection: duckdb.DuckDBPyConnection, halt: Halt
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A second connection to the same database."""
    with closing(_quiet(connection.cursor())) as made, halt.stoppable(made.interrupt):
        made.execute("SET TimeZone = 'UTC'")
        yield made


def spill_to(connection: duckdb.DuckDBPyConnection, place: str) -> None:
    """What does not fit into memory goes there, not into the worker's own directory."""
    # Once a task has spilled, DuckDB lets nobody choose for its file any more.
    with suppress(duckdb.NotImplementedException):
        connection.execute(f"SET temp_directory = {literal(place)}")


def confine(connection: duckdb.DuckDBPyConnection, root: str | None, folder: Path) -> None:
    """From now on its SQL, and what is stored in its file, reads and writes files only below `root`
    and `folder`; without a root, everywhere.
    """
    if root is None:
        return
    allowed = ", ".join(literal(str(Path(one).resolve())) for one in (root, folder))
    connection.execute(f"SET allowed_directories = [{allowed}]")
    connection.execute("SET enable_external_access = false")


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if "\0" in value:
        raise Failed("client_error", "A text in SQL cannot hold a NUL character.")
    return "'" + str(value).replace("'", "''") + "'"


# --- Tasks that have the same file open --------------------------------------------------------


class Instance(msgspec.Struct):
    """DuckDB's instance of a file, as the tasks of this process share it."""

    tasks: int = 0
    is_extended: bool = False
    """Whether an extension is loaded, or will be."""
    spill: str = ""
    """Where all of them put what does not fit into memory. DuckDB removes it with the last."""
    stays: bool = False


_INSTANCES: dict[str, Instance] = {}
_INSTANCES_CHANGE = threading.Lock()


@contextmanager
def sharing(path: Path | None, folder: Path, *, extends: bool) -> Iterator[Instance]:
    """The instance that a task shares while this is entered, from before it opens the file until
    after it has closed it. `folder` is the task's; `extends`: it may load an extension.
    """
    if path is None:
        yield Instance(1, extends, str(folder / "spill"))
        return
    # It outlives the folder of the task that makes it.
    place = Path(spawner().folder or tempfile.gettempdir(), f"spill-{secrets.token_hex(8)}")
    key = os.path.abspath(path)
    with _INSTANCES_CHANGE:
        instance = _INSTANCES.setdefault(key, Instance(spill=str(place)))
        instance.tasks += 1
        instance.is_extended |= extends
    try:
        yield instance
    except BaseException:
        # Its connection may have to stay open (`closed_in_the_end`), and the extension with it.
        instance.stays |= extends
        raise
    finally:
        with _INSTANCES_CHANGE:
            instance.tasks -= 1
            if not instance.tasks and not instance.stays:
                del _INSTANCES[key]


# --- What statements may not do ----------------------------------------------------------------


def check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise BadSql for a statement that would open or load what the task does not name."""
    _check_text(sql, "A statement")
    for one in connection.extract_statements(sql):
        # DuckDB may expand a statement: IMPORT DATABASE reads files.
        _check_text(one.query, "A statement")
        is_explained = one.type == duckdb.StatementType.EXPLAIN and EXPLAINED.search(one.query)
        if one.type == duckdb.StatementType.ATTACH or is_explained:
            raise BadSql(f"A statement may not ATTACH. {ATTACH}")
        if one.type == duckdb.StatementType.LOAD:
            raise BadSql(f"A statement may not LOAD or INSTALL. {EXTENSIONS}")


def check_stored(connection: duckdb.DuckDBPyConnection, kinds: Collection[str]) -> None:
    """Raise BadSql for stored views and macros that would do so when they are used.

    `kinds` are those of the files that are open: macros are stored only in DuckDB's own.
    """
    queries = [VIEWS, MACROS] if "duckdb" in kinds else [VIEWS] if kinds else []
    for query in queries:
        for database, name, text in connection.execute(query).fetchall():
            _check_text(str(text), f'"{name}" in the database "{database}"')


def _check_text(text: str, what: str) -> None:
    if found := OPENS.search(text):
        raise BadSql(f"{what} may not use {found.group()}. {ATTACH}")
    if found := RUNS_TEXT.search(text):
        name = re.split(r"\W", found.group())[0]
        raise BadSql(f"{what} may not use {name}, which runs a text as SQL. Write the SQL.")
    check_log(text, what)


def check_log(text: str, what: str) -> None:
    """Raise BadSql for a text that would make DuckDB write a log."""
    if found := LOGS.search(text):
        raise BadSql(
            f"{what} may not use {found.group()}: DuckDB's log holds the statements of every task"
            " that has the file open."
        )


# --- Failures ----------------------------------------------------------------------------------

WITHOUT_KEY = "as conflict target are not referenced by"
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
    place = PLACE.search(text)
    details = {"sql": place[0].rstrip()} if place else None
    text = PLACE.sub("", text).strip()
    # To DuckDB, a stopped query of PostgreSQL is a failure like any other.
    if isinstance(error, duckdb.InterruptException) or halt.late or halt.wanted:
        if halt.late:
            return Failed("db_timeout", "A statement took longer than `timeout` and was stopped.")
        return InterruptedError("the task was stopped")
    if told is not None:
        return Failed(told, text, details=details)
    if NO_DATABASE.search(text):
        return Failed("db_connection", text, retryable=False)
    if WITHOUT_KEY in text:
        return Failed("client_error", f"{text}. {NO_KEY}")
    if ONE_WRITTEN in text:
        return Failed("client_error", text)
    for kind_of_error, kind in KINDS:
        if isinstance(error, kind_of_error):
            return Failed(kind, text, details=details)
    if isinstance(error, duckdb.IOException):
        return _io_failure(text)
    if "malformed" in text.lower() or "error when sniffing" in text.lower():
        return Failed("parse", text)
    return Failed("client_error", text, details=details)


NO_FILE = re.compile(r'No files found that match the pattern "([^"]*)"')


def _io_failure(text: str) -> Exception:
    if missing := NO_FILE.search(text):
        told = f'No file of this worker matches "{missing[1]}". Check the path and its base.'
        return Failed("not_found", told)
    if "No such file" in text:
        return Failed("not_found", text)
    return Failed("db_connection", text)
