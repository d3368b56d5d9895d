"""A database file of another age, and queries that walk indexes whatever there is in it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from noetl.errors import StoreError
from noetl.model.execution_query import Field, parse
from noetl.store.database import named
from noetl.store.migrations import Migration, newest_of
from noetl.store.records import ENDS, LOOKED_UP, composed
from noetl.store.sqlite import SqliteStore
from noetl.store.sqlite.connections import connect
from noetl.store.sqlite.database import QUERIES
from noetl.store.sqlite.schema import MIGRATIONS, applied, migrate
from tests.store.making import ONE, events, start

NEXT = MIGRATIONS[-1].version + 1
BETTER = Migration(
    NEXT,
    "notes",
    """
    -- Statements may hold semicolons; in comments and 'texts' too.
    ALTER TABLE noetl_execution ADD COLUMN note TEXT NOT NULL DEFAULT 'none; yet';
    CREATE TRIGGER noetl_noted AFTER UPDATE ON noetl_execution BEGIN
        UPDATE noetl_execution SET note = 'changed' WHERE execution_id = new.execution_id;
        SELECT 1;
    END;
    """,
)
BROKEN = Migration(NEXT + 1, "broken", "CREATE TABLE half_done (x);\nCREATE TABLE half_done (x);")

LOOKED_AT = (
    "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name",
    "SELECT version, name FROM noetl_schema ORDER BY version",
    "PRAGMA journal_mode",
    "PRAGMA page_size",
    "PRAGMA auto_vacuum",
)


async def filled(path: Path) -> None:
    store = await SqliteStore.open(str(path))
    await store.log.commit([start(ONE, count=3)])
    await store.close()


def test_migrations_are_numbered_from_1_without_gaps():
    assert [migration.version for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


async def test_a_new_file_is_what_all_migrations_make_and_an_installation_of_its_own(
    tmp_path: Path,
):
    with closing(connect(tmp_path / "migrated.db", "writer")) as db:
        migrate(db, "here")
        expected = [db.execute(sql).fetchall() for sql in LOOKED_AT]
    installations = set()
    for name in ("one.db", "two.db"):
        store = await SqliteStore.open(str(tmp_path / name))
        installations.add(await store.installation())
        await store.close()
        with closing(connect(tmp_path / name, "reader")) as db:
            assert [db.execute(sql).fetchall() for sql in LOOKED_AT] == expected

    assert len(installations) == 2


async def test_an_older_schema_is_upgraded_in_place(tmp_path: Path):
    path = tmp_path / "noetl.db"
    await filled(path)
    db = connect(path, "writer")

    migrate(db, "here", (*MIGRATIONS, BETTER))

    assert newest_of(applied(db)) == NEXT
    assert db.execute("SELECT execution_id, note FROM noetl_execution").fetchall() == [
        (ONE, "none; yet")
    ]
    migrate(db, "here", (*MIGRATIONS, BETTER))
    db.close()


async def test_executions_keep_all_that_belongs_to_them_when_their_table_is_made_anew(
    tmp_path: Path,
):
    """Schema 18 makes it anew; to drop a table that others refer to would empty those, too."""
    path = tmp_path / "noetl.db"
    db = connect(path, "writer")
    migrate(db, "here", MIGRATIONS[:17])
    row = (ONE, 3, 5, "a", 2, "d", "FAILED", 7.0, 8.0, None, "k", "[]", "no", "{}", "", "")
    db.execute(f"INSERT INTO noetl_execution VALUES ({', '.join('?' * len(row))})", row)
    db.execute("INSERT INTO noetl_log VALUES (?, 3, x'5b5d', 5)", (ONE,))
    before = db.execute("SELECT * FROM noetl_execution").fetchall()

    migrate(db, "here")

    assert db.execute("SELECT * FROM noetl_execution").fetchall() == before == [row]
    assert db.execute("SELECT count(*) FROM noetl_log").fetchone() == (1,)
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    with pytest.raises(sqlite3.IntegrityError, match="idempotency_key"):
        db.execute(f"INSERT INTO noetl_execution VALUES ('2', {', '.join('?' * 15)})", row[1:])
    db.execute("DELETE FROM noetl_execution")
    assert db.execute("SELECT count(*) FROM noetl_log").fetchone() == (0,)
    db.close()


async def test_people_can_look_at_events_with_sql(tmp_path: Path):
    path = tmp_path / "noetl.db"
    await filled(path)

    db = sqlite3.connect(path)
    rows = db.execute("SELECT seq, type, at, step, step_run_id, body FROM noetl_event").fetchall()
    db.close()
    assert rows == [(*one[:5], one.body.decode()) for one in events(1, 3)]


async def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path):
    path = tmp_path / "noetl.db"
    await filled(path)
    db = connect(path, "writer")
    with pytest.raises(sqlite3.OperationalError, match="half_done"):
        migrate(db, "here", (*MIGRATIONS, BETTER, BROKEN))

    assert newest_of(applied(db)) == MIGRATIONS[-1].version
    db.close()
    store = await SqliteStore.open(str(path))
    assert await store.log.events(ONE) == events(1, 3)
    await store.close()


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_newer_schema_is_refused_untouched(tmp_path: Path, read_only: bool):
    path = tmp_path / "noetl.db"
    await filled(path)
    db = connect(path, "writer")
    migrate(db, "here", (*MIGRATIONS, BETTER))
    db.close()

    with pytest.raises(StoreError, match=rf"schema {NEXT}.*Upgrade NoETL"):
        await SqliteStore.open(str(path), read_only=read_only)


async def test_a_schema_that_was_never_released_is_refused_untouched(tmp_path: Path):
    path = tmp_path / "noetl.db"
    await filled(path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE noetl_schema SET name = 'draft' WHERE version = 1")
    db.close()

    for read_only in (False, True):
        with pytest.raises(StoreError, match="never released"):
            await SqliteStore.open(str(path), read_only=read_only)


async def test_a_reader_does_not_upgrade(tmp_path: Path):
    path = tmp_path / "noetl.db"
    db = connect(path, "writer")
    migrate(db, "here", MIGRATIONS[:1])
    db.close()

    with pytest.raises(StoreError, match="noetl db migrate"):
        await SqliteStore.open(str(path), read_only=True)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_file_of_another_program_is_refused_and_nothing_is_written(
    tmp_path: Path, read_only: bool
):
    path = tmp_path / "books.db"
    sqlite3.connect(path).execute("CREATE TABLE book (x)").connection.close()
    before = path.read_bytes()

    with pytest.raises(StoreError, match=r"another program: it has tables \(book\)"):
        await SqliteStore.open(str(path), read_only=read_only)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


async def test_tables_of_others_in_the_same_file_are_left_alone(tmp_path: Path):
    path = tmp_path / "noetl.db"
    await (await SqliteStore.open(str(path))).close()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE event (x)")
        db.execute("INSERT INTO event VALUES ('mine')")
    db.close()
    await filled(path)

    db = sqlite3.connect(path)
    assert db.execute("SELECT x FROM event").fetchall() == [("mine",)]
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    assert all(name.startswith("noetl_") for name in names if name != "event")
    db.close()


def test_what_is_committed_survives_the_power_plug(tmp_path: Path):
    db = connect(tmp_path / "noetl.db", "writer")

    settings = ("journal_mode", "synchronous", "foreign_keys")
    found = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    db.close()
    assert found == ["wal", 2, 1]


READS_EVERYTHING = {
    *("newest_entries", "credentials", "open_commands", "queue_sizes", "holds"),
    *("installation", "probe", "make_another"),  # one row
    "bounded",  # by `noetl db check`
    *("views", "waiting_commands"),  # in the order in which they are asked for
    *("holders", "lapsed", "renew_leases"),  # the leases: no more than all workers have slots
    *("executions_count", "executions_histogram"),  # of all executions, unless a query says less
    "ended_since",  # asked when a server has died
    *(
        "users",
        "tokens",
        "runtimes",
        "audit",
        "forget_cached_secrets",
        "forget_moments",
    ),  # few, or the newest of them
}
PAGED = ("log_after", "log_before", "due_timers", "summaries")
STATEMENTS = {name for name in QUERIES if not name.startswith(("check_", "where_"))}


@cache
def tables() -> sqlite3.Connection:
    """An empty database for all plans, which change nothing."""
    db = connect(None, "writer")
    migrate(db, ":memory:")
    return db


def plan_of(query: str) -> list[str]:
    named = dict.fromkeys(re.findall(r":(\w+)", query))
    numbered = set(re.findall(r"\?\d", query))
    parameters = named or [None] * (len(numbered) or query.count("?"))
    return [row[3] for row in tables().execute("EXPLAIN QUERY PLAN " + query, parameters)]


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_query_walks_a_whole_table(name: str):
    if name in READS_EVERYTHING:
        return
    # `noetl_command` is a view; how its tables are gone through stands in other lines.
    walks = [
        line for line in plan_of(QUERIES[name]) if re.match(r"SCAN noetl_(?!command$)\w+$", line)
    ]

    assert walks == []


@pytest.mark.parametrize("name", PAGED)
def test_a_page_costs_what_is_on_it(name: str):
    plan = plan_of(QUERIES[name])

    assert any("INDEX" in line or "PRIMARY KEY" in line for line in plan)
    assert [line for line in plan if "TEMP B-TREE" in line] == []


def test_every_query_is_used():
    folder = Path(SqliteStore.open.__code__.co_filename).parent
    own, shared = folder.glob("*.py"), folder.parent.glob("*.py")
    source = "".join(file.read_text() for file in (*own, *shared))

    assert [name for name in STATEMENTS if f'"{name}"' not in source] == []
    conditions = {name for name in QUERIES if name.startswith("where_")}
    ways = {fragment for _, fragment in LOOKED_UP.values()}
    assert conditions == {f"where_{field}" for field in (*get_args(Field), *ways, *ENDS.values())}


def test_two_queries_of_one_name_are_refused():
    with pytest.raises(AssertionError):
        named("-- a --\nSELECT 1\n\n-- a --\nSELECT 2")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("", "newest"),
        ("status:failed", "status"),
        ("path:shop/orders", "path"),
        ("path:shop/orders status:failed", "path_status"),
        ("path:shop/orders status:running", "status"),
        ("parent:71", "parent"),
        ("parent:71 status:failed", "parent"),
    ],
)
def test_a_page_of_a_query_walks_the_index_made_for_it(query: str, index: str):
    statement, _ = composed(QUERIES, "summaries", parse(query, 0.0), 0.0)
    plan = plan_of(statement)

    assert any(f"noetl_execution_{index} " in line for line in plan), plan
    assert [line for line in plan if "TEMP B-TREE" in line] == []
