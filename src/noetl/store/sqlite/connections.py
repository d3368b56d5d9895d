"""Connections to a database file, configured for this store."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from noetl.errors import StoreError

MEMORY = ":memory:"
OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""

LOG_PAGES = 2000
LOG_BYTES = LOG_PAGES * (4096 + 24)
"""The size of the WAL just before it is checkpointed: pages, each with its header."""

WRITER_SETUP = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA cache_size = -32000",
    # The bound under steady load; the writer's own checkpoints come sooner, when it is idle.
    f"PRAGMA wal_autocheckpoint = {LOG_PAGES}",
    "PRAGMA journal_size_limit = 67108864",
)
READER_SETUP = ("PRAGMA query_only = ON", "PRAGMA cache_size = -8000")
EVERYWHERE = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA temp_store = MEMORY",
)


def database_path(url: str) -> Path | None:
    """The file that a URL or a plain path names; None for `:memory:`. What is beside it (lock, log,
    socket, key) is found by every name that leads to it.
    """
    text = url
    if url.startswith("sqlite:"):
        # Three slashes are relative to the working directory, four absolute.
        text = unquote(urlsplit(url).path).removeprefix("/") or MEMORY
    return None if text == MEMORY else Path(os.path.realpath(text))


def _lenient_text(data: bytes) -> str:
    return data.decode(errors="replace")


def connect(path: Path | None, role: Literal["writer", "reader"]) -> sqlite3.Connection:
    """A connection in autocommit, for one thread at a time."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old: NoETL needs 3.37 or newer."
            " Use a newer Python, or NOETL_DATABASE_URL=postgresql://…"
        )
    name = MEMORY
    if path is not None:
        name = f"{path.as_uri()}?mode={'rwc' if role == 'writer' else 'ro'}"
    connection = sqlite3.connect(
        name, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    if role == "reader":
        # Damaged text must not hide the rows beside it; checksums tell which one it is.
        connection.text_factory = _lenient_text
    try:
        for statement in EVERYWHERE + (WRITER_SETUP if role == "writer" else READER_SETUP):
            connection.execute(statement)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def grow_log(db: sqlite3.Connection) -> None:
    """Give the WAL its final size at once, because flushing a growing file takes twice as long.

    To SQLite, zeros after the last frame are the end of the log.
    """
    (_, _, path) = db.execute("PRAGMA database_list").fetchone()
    if not path:
        return  # There is no WAL in memory.
    # If the disk is full, the next commit reports that to someone who can act on it.
    with suppress(OSError), Path(f"{path}-wal").open("r+b") as log:
        size = log.seek(0, os.SEEK_END)
        log.write(bytes(max(0, LOG_BYTES - size)))
