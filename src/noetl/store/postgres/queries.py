"""The statements of `queries.sql` and `access.sql` by name."""

from __future__ import annotations

from importlib.resources import files

from noetl.store.queries import read_queries

FILES = ("queries.sql", "access.sql")
QUERIES = read_queries(
    "\n".join((files(__package__) / name).read_text(encoding="utf-8") for name in FILES)
)
