"""The statements of `queries.sql` by name."""

from __future__ import annotations

from importlib.resources import files

from noetl.store.queries import read_queries

QUERIES = read_queries((files(__package__) / "queries.sql").read_text(encoding="utf-8"))
