"""A database of another age, many that start at once, and statements that walk indexes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import get_args

import psycopg
import pytest

from noetl.errors import StoreError
from noetl.model.execution_query import Field, parse
from noetl.store.migrations import Migration
from noetl.store.postgres import PostgresStore
from noetl.store.postgres.database import connect
from noetl.store.postgres.queries import QUERIES
from noetl.store.postgres.records import DIALECT
from noetl.store.postgres.schema import MIGRATIONS, migrate, schema_version
from noetl.store.records import composed, page
from tests.store.making import ONE, events, start

NEXT = MIGRATIONS[-1].version + 1
BETTER = Migration(
    NEXT,
    "notes",
    "ALTER TABLE noetl.execution ADD COLUMN note text NOT NULL DEFAULT 'none; yet';",
)
BROKEN = Migration(NEXT + 1, "broken", "CREATE TABLE noetl.half (x int); SELECT 1 / 0;")

QUERIES_MIN = 50


async def filled(url: str) -> None:
    store = await PostgresStore.open(url)
    await store.log.commit([start(ONE, count=3)])
    await store.close()


def test_migrations_are_numbered_from_1_without_gaps():
    assert [migration.version for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


async def test_many_that_start_at_once_make_one_schema(new_database_url: str):
    stores = await asyncio.gather(*(PostgresStore.open(new_database_url) for _ in range(8)))

    assert await stores[0].log.commit([start(ONE)]) == []
    assert [await store.log.events(ONE) for store in stores] == [events(1, 1)] * 8
    await asyncio.gather(*(store.close() for store in stores))


async def test_an_older_schema_is_upgraded_in_place(new_database_url: str):
    await filled(new_database_url)
    async with await connect(new_database_url) as db:
        await migrate(db, "here", (*MIGRATIONS, BETTER))
        assert await schema_version(db) == NEXT
        cursor = await db.execute("SELECT execution_id, note FROM noetl.execution")
        assert await cursor.fetchall() == [{"execution_id": ONE, "note": "none; yet"}]

    with pytest.raises(StoreError, match="a newer NoETL wrote it"):
        await PostgresStore.open(new_database_url)
    with pytest.raises(StoreError, match="a newer NoETL wrote it"):
        await PostgresStore.open(new_database_url, shared=True)


async def test_an_upgrade_that_fails_changes_nothing(new_database_url: str):
    await filled(new_database_url)
    async with await connect(new_database_url) as db:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await migrate(db, "here", (*MIGRATIONS, BETTER, BROKEN))
        assert await schema_version(db) == MIGRATIONS[-1].version

    store = await PostgresStore.open(new_database_url)
    assert await store.log.events(ONE) == events(1, 3)
    await store.close()


async def test_who_only_looks_creates_nothing(new_database_url: str):
    with pytest.raises(StoreError, match="noetl db migrate"):
        await PostgresStore.open(new_database_url, shared=True)

    async with await connect(new_database_url) as db:
        assert await schema_version(db) == 0


READS_EVERYTHING = {"newest_entries", "credentials", "open_commands", "queue_sizes", "runtimes"}
READS_EVERYTHING |= {"users", "tokens", "forget_cached_secrets", "holds"}
STATEMENTS = {name for name in QUERIES if not name.startswith("where_")}


def test_no_query_walks_a_whole_table(database_url: str):
    asyncio.run(filled(database_url))
    walks = {}
    with psycopg.connect(database_url) as db:
        db.execute("SET enable_seqscan = off")
        for name in STATEMENTS:
            query = QUERIES[name]
            if not name.startswith("check_") and name not in READS_EVERYTHING:
                values = dict.fromkeys(re.findall(r"%\((\w+)\)s", query))
                plan = db.execute(f"EXPLAIN {query}".encode(), values).fetchall()
                walks[name] = [line for (line,) in plan if re.search(r"Seq Scan on \w", line)]

    assert {name: lines for name, lines in walks.items() if lines} == {}
    assert len(walks) > QUERIES_MIN


def test_every_query_is_used():
    folder = Path(PostgresStore.open.__code__.co_filename).parent
    own, shared = folder.glob("*.py"), folder.parent.glob("*.py")
    source = "".join(file.read_text() for file in (*own, *shared))

    assert [name for name in STATEMENTS if f'"{name}"' not in source] == []
    conditions = {name for name in QUERIES if name.startswith("where_")}
    assert conditions == {f"where_{field}" for field in get_args(Field)}


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("", "newest"),
        ("status:failed", "status"),
        ("path:shop/7", "path"),
        ("parent:none", "roots"),
        ("parent:none status:failed", "roots"),
        ("parent:1000", "parent"),
    ],
)
def test_a_page_of_a_query_walks_the_index_made_for_it(database_url: str, query: str, index: str):
    """Of 10 000 executions one in a hundred failed, and one in a thousand was called by nobody."""
    statement, chosen = composed(DIALECT, "summaries", parse(query, 0.0), 0.0)
    with psycopg.connect(database_url) as db:
        db.execute("SET enable_seqscan = off")
        db.execute(
            "INSERT INTO noetl.execution (execution_id, seq, checksum, path, digest, status,"
            " requested_at, ended_at, parent_execution_id)"
            " SELECT n::text, 0, 0, 'shop/' || n % 50, 'd',"
            " CASE WHEN n % 100 = 1 THEN 'FAILED' ELSE 'COMPLETED' END, n, n + 1,"
            " CASE WHEN n % 1000 > 0 THEN (n / 1000 * 1000)::text END"
            " FROM generate_series(1, 10000) AS n"
        )
        db.execute("ANALYZE noetl.execution")
        plan = db.execute(f"EXPLAIN {statement}".encode(), chosen | page(None, 50)).fetchall()
        text = "\n".join(line for (line,) in plan)
        db.rollback()

    assert f"using execution_{index} on" in text, text
    assert "Sort" not in text
