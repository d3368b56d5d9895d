"""Executions in PostgreSQL: the store of several servers and many workers."""

from noetl.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
