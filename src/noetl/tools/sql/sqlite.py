"""SQLite for every kind that opens one: its errors, and how SQL is confined to its own file."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from urllib.parse import quote

from noetl.model.outcome import ErrorKind
from noetl.model.spelling import did_you_mean
from noetl.tools.failures import Failed
from noetl.tools.sql.rows import NO_KEY, quoted
from noetl.tools.sql.threads import Halt

BUSY_SECONDS = 5.0
"""How long those wait for other writers that need not be stopped meanwhile."""


def connection_to(path: Path | None, mode: str = "rwc", wait: float = 0.0) -> sqlite3.Connection:
    """A connection without transactions of its own, which another thread may interrupt.

    It waits so many seconds for other writers. Without a path it is in memory.
    """
    place = ":memory:" if path is None else f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(
        place, timeout=wait, uri=True, isolation_level=None, check_same_thread=False
    )


_UNKNOWN = re.compile(r"no such (table|column): (?:\w+\.)?(.+)")
TABLES_NAMED = 20
"""How many tables a message lists at most."""


def known_instead(error: sqlite3.Error, connection: sqlite3.Connection) -> str:
    """What is there where a table or column is not: the nearest name, or all tables. A sentence to
    add to the error; empty if there is nothing to say.
    """
    found = _UNKNOWN.fullmatch(str(error))
    if found is None:
        return ""
    tables: dict[str, str] = {}
    columns: list[str] = []
    in_memory = True
    try:
        for _, schema, file in connection.execute("PRAGMA database_list").fetchall():
            in_memory = in_memory and not file
            listed = f"SELECT name FROM {quoted(schema)}.sqlite_master"  # noqa: S608 - quoted
            kinds = "type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            rows = connection.execute(f"{listed} WHERE {kinds} ORDER BY name")
            tables.update({name: schema for (name,) in rows})
        if found[1] == "column":
            asked = "SELECT name FROM pragma_table_info(?, ?)"
            for table in tables.items():
                columns += [name for (name,) in connection.execute(asked, table)]
            return did_you_mean(found[2], columns)
    except sqlite3.Error:
        return ""  # Only a hint: where the database does not answer, the error stands by itself.
    if not tables:
        alone = " Without `database` each task has an empty one." if in_memory else ""
        return f" The database has no tables.{alone}"
    few = list(tables)[:TABLES_NAMED]
    more = ", …" if len(tables) > len(few) else ""
    return did_you_mean(found[2], tables) or f" There are: {', '.join(few)}{more}."


def failure(error: sqlite3.Error, halt: Halt, hint: str = "") -> Exception:
    """The error of SQLite, in our words. `hint` is for an error in a statement."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    name = getattr(error, "sqlite_errorname", None)
    text = f"SQLite: {error}."
    if "ON CONFLICT clause does not match" in text:
        return Failed("client_error", f"{text} {NO_KEY}", code=name)
    base = code & 0xFF
    if halt.late and base == sqlite3.SQLITE_INTERRUPT:
        return Failed("db_timeout", "A statement took longer than `timeout` and was stopped.")
    if base == sqlite3.SQLITE_CONSTRAINT:
        return Failed("db_constraint", text, code=name)
    if base in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        moved = code == sqlite3.SQLITE_BUSY_SNAPSHOT
        kind: ErrorKind = "db_deadlock" if moved else "db_timeout"
        return Failed(kind, text, code=name)
    if base in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
        return Failed("db_connection", text, code=name)
    if base in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return Failed("db_connection", text, code=name, retryable=False)
    if base in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PERM):
        return Failed("auth", text, code=name)
    return Failed("client_error", text + hint, code=name)


OF_THE_PROCESS = frozenset(
    ["hard_heap_limit", "soft_heap_limit", "temp_store_directory", "data_store_directory"]
)
"""Pragmas that hold for every connection of this process, also those of other tasks and of NoETL's
own database."""


def keep_to_itself(connection: sqlite3.Connection, root: str | None) -> None:
    """From now on its SQL changes nothing for others in this process, and with a `root` attaches no
    files.
    """

    def judge(action: int, first: str | None, *_: object) -> int:
        is_shared = action == sqlite3.SQLITE_PRAGMA and str(first).lower() in OF_THE_PROCESS
        # An empty name is the temporary database that VACUUM needs.
        is_other = action == sqlite3.SQLITE_ATTACH and root is not None and first != ""
        return sqlite3.SQLITE_DENY if is_shared or is_other else sqlite3.SQLITE_OK

    connection.set_authorizer(judge)
