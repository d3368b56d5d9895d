"""The statements of the SQL files of this store by name."""

from __future__ import annotations

from importlib.resources import files

from noetl.store.queries import read_queries

FILES = ("queries.sql", "access.sql", "triggers.sql")
QUERIES = read_queries(
    "\n".join((files(__package__) / name).read_text(encoding="utf-8") for name in FILES)
)
