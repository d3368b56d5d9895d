"""Databases that are a file, opened inside the worker: which file a task means, and who has it."""

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
"""Of files that a task wants alone."""
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
    """See to it that the file can be opened; raises Failed for one that should be there."""
    if not config.read_only:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise Failed("not_found", f'The database "{config.database or path.name}" does not exist.')


@contextmanager
def alone(path: Path, halt: Halt) -> Iterator[None]:
    """While this lasts, no other task of this process that asks for the file has it."""
    with _LOCKS_CHANGE:
        lock = _LOCKS.setdefault(path.resolve(), threading.Lock())
    while not lock.acquire(timeout=TICK_SECONDS):
        halt.check()
    try:
        yield
    finally:
        lock.release()
