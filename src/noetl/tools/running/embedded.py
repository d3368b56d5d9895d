"""Databases that are a file, opened inside the worker: which file a task means."""

from __future__ import annotations

from pathlib import Path

from noetl.tools.base import ToolContext
from noetl.tools.duckdb import DuckDb
from noetl.tools.running.failures import Failed
from noetl.tools.sqlite import Sqlite


async def database_of(config: DuckDb | Sqlite, context: ToolContext) -> Path | None:
    """The file that the task or its credential names; None for a database in memory."""
    written = config.database
    if written is None and config.auth is not None:
        fields = await context.credential(config.auth)
        written = fields.get("database") or fields.get("path") or fields.get("dbname")
        if written is None:
            raise Failed("auth", "auth: the credential has no field `database`.")
    return None if written in (None, ":memory:") else context.resources.path(str(written))


def prepare(path: Path, config: DuckDb | Sqlite) -> None:
    """See to it that the file can be opened; raises Failed for one that should be there."""
    if not config.read_only:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise Failed("not_found", f'The database "{config.database or path.name}" does not exist.')
