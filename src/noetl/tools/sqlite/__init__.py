"""kind: sqlite. SQL on a SQLite file."""

from __future__ import annotations

from typing import Annotated

from noetl.tools.base import Duration, Size, about, run_of
from noetl.tools.sql.config import DATABASE_ERRORS, FileDatabase, sql_tool


class Sqlite(FileDatabase, frozen=True, kw_only=True):
    """What a playbook writes under `kind: sqlite`."""

    attach: Annotated[
        dict[str, str], about("Other database files to attach: the name they get → path.")
    ] = {}
    busy_timeout: Annotated[
        Duration, about("How long to wait while another writer holds the file.")
    ] = 5
    memory_limit: Annotated[Size | None, about("Memory it may use, e.g. `512MB`.")] = None
    pragmas: Annotated[
        dict[str, str | int | bool], about("Pragmas to set before the first statement.")
    ] = {}


EXAMPLE = """\
- step: remember
  tool:
    kind: sqlite
    database: state/seen.db
    commands:
      - CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, at TEXT NOT NULL)
      - INSERT INTO seen VALUES (:id, datetime('now')) ON CONFLICT DO NOTHING
    params: { id: "{{ workload.id }}" }
"""

TOOL = sql_tool(
    "sqlite",
    "Runs SQL on a SQLite file.",
    Sqlite,
    run_of("noetl.tools.sqlite.run"),
    example=EXAMPLE,
    # A task that writes locks the file from the beginning, so nothing changes under it.
    errors=tuple(kind for kind in DATABASE_ERRORS if kind != "db_deadlock"),
)
