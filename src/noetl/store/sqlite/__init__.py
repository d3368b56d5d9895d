"""Executions in one SQLite file: the store of a laptop and of a small server."""

from noetl.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
