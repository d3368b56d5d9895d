"""SQLite for every kind that opens one: its errors, and how SQL is confined to its own file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from noetl.model.outcome import ErrorKind
from noetl.tools.failures import Failed
from noetl.tools.sql.rows import NO_KEY
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


def failure(error: sqlite3.Error, halt: Halt) -> Exception:
    """The error of SQLite, in our words."""
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
    return Failed("client_error", text, code=name)


def no_other_files(action: int, first: str | None, *_: object) -> int:
    """An authorizer that prevents SQL from attaching files."""
    # An empty name is the temporary database that VACUUM needs.
    is_other = action == sqlite3.SQLITE_ATTACH and first != ""
    return sqlite3.SQLITE_DENY if is_other else sqlite3.SQLITE_OK
