"""A database of another age, many that start at once, and statements that walk indexes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest

from noetl.errors import StoreError
from noetl.model.execution_query import Field, parse
from noetl.store import records
from noetl.store.migrations import Migration, newest_of
from noetl.store.postgres import PostgresStore
from noetl.store.postgres.database import QUERIES, WRITTEN, connect, translated
from noetl.store.postgres.schema import MIGRATIONS, applied, migrate
from noetl.store.records import ENDS, LOOKED_UP, composed, looked_up, page
from tests.servers import unused_database
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
        assert newest_of(await applied(db)) == NEXT
        cursor = await db.execute("SELECT execution_id, note FROM noetl.execution")
        assert await cursor.fetchall() == [{"execution_id": ONE, "note": "none; yet"}]

    with pytest.raises(StoreError, match="a newer NoETL wrote it"):
        await PostgresStore.open(new_database_url)
    with pytest.raises(StoreError, match="a newer NoETL wrote it"):
        await PostgresStore.open(new_database_url, read_only=True)


async def test_an_upgrade_that_fails_changes_nothing(new_database_url: str):
    await filled(new_database_url)
    async with await connect(new_database_url) as db:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await migrate(db, "here", (*MIGRATIONS, BETTER, BROKEN))
        assert newest_of(await applied(db)) == MIGRATIONS[-1].version

    store = await PostgresStore.open(new_database_url)
    assert await store.log.events(ONE) == events(1, 3)
    await store.close()


async def test_who_only_looks_creates_nothing(new_database_url: str):
    with pytest.raises(StoreError, match="noetl db migrate"):
        await PostgresStore.open(new_database_url, read_only=True)

    async with await connect(new_database_url) as db:
        assert newest_of(await applied(db)) == 0


READS_EVERYTHING = {"newest_entries", "credentials", "open_commands", "queue_sizes", "runtimes"}
READS_EVERYTHING |= {"users", "tokens", "forget_cached_secrets", "holds"}
STATEMENTS = {name for name in QUERIES if not name.startswith("where_")}


def test_no_query_walks_a_whole_table(database_url: str):
    asyncio.run(filled(database_url))
    walks = {}
    with psycopg.connect(database_url) as db:
        db.execute("SET enable_seqscan = off")
        for name in STATEMENTS:
            query = QUERIES[name].decode()
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
    ways = {fragment for _, fragment in LOOKED_UP.values()}
    assert conditions == {f"where_{field}" for field in (*get_args(Field), *ways, *ENDS.values())}


def rows_touched(plan: dict[str, Any]) -> float:
    """How many rows of tables a statement looked at, those included that did not match."""
    touched = sum(rows_touched(part) for part in plan.get("Plans", ()))
    if "Relation Name" in plan:
        filtered = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
        each = plan["Actual Rows"] + sum(plan.get(name, 0) for name in filtered)
        touched += each * plan["Actual Loops"]
    return touched


@pytest.fixture(scope="module")
def many(postgres_server: Any) -> Iterator[psycopg.Connection]:
    """10 000 executions, for as long as this transaction lasts: one in a hundred failed, one in a
    thousand was called by nobody, and one in a thousand has a rare label."""
    url = unused_database(postgres_server, "many")
    # A statement that psycopg prepares is planned once for all values: each is to be planned.
    with psycopg.connect(url, prepare_threshold=None) as db:
        db.execute("SET enable_seqscan = off")
        db.commit()
        # A table from which rows have gone, as all have after a while: in one that is full of
        # executions in their order, PostgreSQL would rather read the newest than those of a path.
        _insert_many(db)
        db.rollback()
        _insert_many(db)
        yield db
        db.rollback()


def _insert_many(db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO noetl.execution (execution_id, seq, checksum, path, digest, status,"
        " requested_at, ended_at, parent_execution_id, error, failed_step, labels)"
        " SELECT n::text, 0, 0, 'shop/' || n % 50, 'd',"
        " CASE WHEN n % 100 = 1 THEN 'FAILED' ELSE 'COMPLETED' END, n, n + 1,"
        " CASE WHEN n % 1000 > 0 THEN (n / 1000 * 1000)::text END,"
        " CASE WHEN n % 100 = 1 THEN 'duplicate key ' || n END,"
        " CASE WHEN n % 100 = 1 THEN 'load' ELSE '' END,"
        ' CASE WHEN n % 10 > 0 THEN \'{"team":"a"}\' END FROM generate_series(1, 10000) AS n'
    )
    db.execute(
        "INSERT INTO noetl.label SELECT execution_id, 'rare', 'yes', requested_at"
        " FROM noetl.execution WHERE execution_id::int % 1000 = 7"
    )
    db.execute(
        "INSERT INTO noetl.label SELECT execution_id, 'team', 'a', requested_at"
        " FROM noetl.execution WHERE labels IS NOT NULL"
    )
    db.execute("ANALYZE noetl.execution, noetl.label")


@pytest.mark.parametrize(
    ("query", "touched"),
    [
        ("", 51),
        ("status:failed", 100),
        ("path:shop/7", 200),
        ("path:*op/7", 200),
        ("path:nowhere/*", 0),
        ("parent:none", 10),
        ("parent:none status:failed", 10),
        ("parent:none error:*", 10),
        ("parent:1000", 999),
        ("parent:1000 status:failed", 110),
        ("until:1970-01-01T00:10:00Z", 51),
        ("until:1970-01-01T00:10:00Z parent:*", 60),
        ("error:*", 100),
        ("error:nowhere", 100),
        ("nowhere", 100),
        ("step:nowhere", 100),
        ("label.rare=yes", 20),
        ("label.rare=no", 0),
        ("label.rare=*", 20),
        ("label.team=a", 100),
        ("-label.team=a", 600),
    ],
)
def test_a_page_of_a_query_touches_hardly_more_rows_than_it_shows(
    many: psycopg.Connection, query: str, touched: int, monkeypatch: pytest.MonkeyPatch
):
    """How PostgreSQL walks the index (straight, or by a bitmap with a sort) is its own choice; how
    many rows it has to look at is not."""
    monkeypatch.setattr(records, "FEW", 100)
    wanted = parse(query, 0.0)

    async def column(name: str, /, **values: Any) -> list[Any]:
        return [one for (one,) in many.execute(QUERIES[name], values)]

    with many.transaction():
        ways = asyncio.run(looked_up(wanted, column))
        statement, values = composed(WRITTEN, "summaries", wanted, 0.0, ways)
        explained = f"EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) {translated(statement)}".encode()
        [[[found]]] = many.execute(explained, values | page(wanted, None, 51)).fetchall()

    assert rows_touched(found["Plan"]) <= touched, found
