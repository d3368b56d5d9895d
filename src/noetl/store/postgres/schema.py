"""Upgrades a database to the schema of this code, even if many processes start at once."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.store.migrations import Migration, missing, read_migrations
from noetl.store.postgres.database import Connection

MIGRATIONS = read_migrations(__package__)
LOCK = 0x6E6F65746C  # "noetl": one process migrates a database at a time.


async def applied(db: Connection) -> list[tuple[int, str]]:
    """Applied migrations, version and name; empty for a database without our schema."""
    # Not to_regclass: within a transaction it may remember that the schema was missing.
    cursor = await db.execute(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables"
        " WHERE schemaname = 'noetl' AND tablename = 'schema') AS known"
    )
    row = await cursor.fetchone()
    if row is None or not row["known"]:
        return []
    cursor = await db.execute("SELECT version, name FROM noetl.schema")
    return [(row["version"], row["name"]) for row in await cursor.fetchall()]


async def migrate(db: Connection, place: str, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply what is missing, atomically."""
    if not missing(await applied(db), migrations, place):
        return
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": LOCK})
        steps = missing(await applied(db), migrations, place)
        await db.execute("CREATE SCHEMA IF NOT EXISTS noetl")
        await db.execute(
            "CREATE TABLE IF NOT EXISTS noetl.schema"
            " (version integer NOT NULL PRIMARY KEY, name text NOT NULL)"
        )
        for migration in steps:
            await db.execute(migration.script.encode())
            await db.execute(
                "INSERT INTO noetl.schema (version, name) VALUES (%(version)s, %(name)s)",
                {"version": migration.version, "name": migration.name},
            )
