"""Upgrades a database file to the schema of this code, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from noetl.store.migrations import (
    Migration,
    read_migrations,
    refuse_newer,
    refuse_older,
    refuse_others,
)

MIGRATIONS = read_migrations(__package__)


def applied(db: sqlite3.Connection) -> list[tuple[int, str]]:
    """Applied migrations, version and name; empty for a new file."""
    known = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'noetl_schema'").fetchone()
    if known is None:
        return []
    return db.execute("SELECT version, name FROM noetl_schema").fetchall()


def schema_version(db: sqlite3.Connection) -> int:
    """The newest applied migration; 0 for a new file."""
    return max((version for version, _ in applied(db)), default=0)


def require_current(
    db: sqlite3.Connection, place: str, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Raise unless this code can read and write the database as it is."""
    version, newest = schema_version(db), migrations[-1].version
    refuse_others(applied(db), migrations, place)
    refuse_newer(version, newest, place)
    refuse_older(version, newest, place)


def migrate(
    db: sqlite3.Connection, place: str, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Apply what is missing, atomically."""
    # A table can be made anew, under its old name, only while references to it are not watched.
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("BEGIN IMMEDIATE")
    try:
        version = schema_version(db)
        refuse_others(applied(db), migrations, place)
        refuse_newer(version, migrations[-1].version, place)
        db.execute(
            "CREATE TABLE IF NOT EXISTS noetl_schema"
            " (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT"
        )
        for migration in migrations:
            if migration.version > version:
                _apply(db, migration)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.execute("PRAGMA foreign_keys = ON")


def _apply(db: sqlite3.Connection, migration: Migration) -> None:
    for statement in _statements(migration.script):
        db.execute(statement)
    db.execute("INSERT INTO noetl_schema VALUES (?, ?)", (migration.version, migration.name))


def _statements(script: str) -> Iterator[str]:
    """One by one, because `executescript` would commit before it starts."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""
