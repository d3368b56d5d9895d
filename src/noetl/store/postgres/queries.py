"""The statements of this store by name."""

from __future__ import annotations

from noetl.store.queries import read_queries

QUERIES = read_queries(__package__)
