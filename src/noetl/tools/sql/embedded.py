"""Databases that are files, opened inside the worker: which file a task means, and its lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed
from noetl.tools.sql.config import FileDatabase
from noetl.tools.sql.threads import TICK_SECONDS, Halt

_LOCKS: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
"""Locks of files that a task uses exclusively."""
_LOCKS_CHANGE = threading.Lock()


async def database_of(config: FileDatabase, context: ToolContext) -> Path | None:
    """The file that the task or its credential names; None for a database in memory."""
    written = config.database
    if written is None and config.auth is not None:
        fields = await context.credential(config.auth)
        written = fields.get("database") or fields.get("path") or fields.get("dbname")
        if written is None:
            raise Failed("auth", "auth: the credential has no field `database`.")
    return None if written in (None, ":memory:") else context.resources.path(str(written))


def prepare(path: Path, config: FileDatabase) -> None:
    """Make sure that the file can be opened. Raises Failed if it should exist and does not."""
    if not config.read_only:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise Failed("not_found", f'The database "{config.database or path.name}" does not exist.')


@contextmanager
def alone(path: Path, halt: Halt) -> Iterator[None]:
    """While this is entered, no other task of this process that also locks the file has it."""
    with _LOCKS_CHANGE:
        lock = _LOCKS.setdefault(path.resolve(), threading.Lock())
    while not lock.acquire(timeout=TICK_SECONDS):
        halt.check()
    try:
        yield
    finally:
        lock.release()
