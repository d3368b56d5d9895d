"""Upgrades a database file to the schema of this code, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from noetl.errors import StoreError
from noetl.store.migrations import Migration, missing, read_migrations

MIGRATIONS = read_migrations(__package__)


def applied(db: sqlite3.Connection) -> list[tuple[int, str]]:
    """Applied migrations, version and name; empty for a new file."""
    known = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'noetl_schema'").fetchone()
    if known is None:
        return []
    return db.execute("SELECT version, name FROM noetl_schema").fetchall()


def require_ours(db: sqlite3.Connection, place: str) -> None:
    """Raise StoreError for the file of another program."""
    tables = [
        name
        for (name,) in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'"
            " ESCAPE '\\' ORDER BY rowid"
        )
    ]
    if tables and "noetl_schema" not in tables:
        shown = ", ".join(tables[:3]) + (", …" if len(tables) > 3 else "")
        raise StoreError(
            f"{place} is a database of another program: it has tables ({shown}) and none of NoETL."
            " It was left as it is. Name another file with --db; one that does not exist is made."
        )


def migrate(
    db: sqlite3.Connection, place: str, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Apply what is missing, atomically."""
    # A table can be made anew, under its old name, only while references to it are not watched.
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("BEGIN IMMEDIATE")
    try:
        steps = missing(applied(db), migrations, place)
        db.execute(
            "CREATE TABLE IF NOT EXISTS noetl_schema"
            " (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT"
        )
        for version, name, script in steps:
            for statement in _statements(script):
                db.execute(statement)
            db.execute("INSERT INTO noetl_schema VALUES (?, ?)", (version, name))
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.execute("PRAGMA foreign_keys = ON")


def _statements(script: str) -> Iterator[str]:
    """One by one, because `executescript` would commit before it starts."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""
