"""kind: sqlite. Files, locks, attached databases, and how it says no."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from noetl.tools.rules import Rules
from tests.stopwatch import Stopwatch
from tests.tools.running import failure, on_bench, ran


def good(config, **context):
    outcome = ran("sqlite", config, **context)
    assert outcome.is_ok, outcome
    return outcome.result


def test_without_a_file_it_works_in_memory():
    assert good({"command": "CREATE TABLE t (a); INSERT INTO t VALUES (1); SELECT a FROM t"})[
        "rows"
    ] == [{"a": 1}]


def test_the_file_may_come_from_a_credential(tmp_path):
    settings = {"credentials": {"files": {"database": str(tmp_path / "x.db")}, "empty": {}}}

    good({"auth": "files", "command": "CREATE TABLE t (a)"}, settings=settings)
    assert (tmp_path / "x.db").exists()
    outcome = ran("sqlite", {"auth": "empty", "command": "SELECT 1"}, settings=settings)
    assert failure(outcome)[0] == "auth"


def test_types_survive(tmp_path):
    command = "SELECT x'00ff' AS b, 9223372036854775807 AS n, 1.5 AS f, NULL AS z, 'ü' AS t"

    assert good({"command": command})["rows"] == [
        {"b": "AP8=", "n": 2**63 - 1, "f": 1.5, "z": None, "t": "ü"}
    ]


def test_lists_and_mappings_are_kept_as_json_text():
    command = "SELECT json_extract(:doc, '$.a[1]') AS x, :flag AS f"
    params = {"doc": {"a": [1, 2]}, "flag": True}

    assert good({"command": command, "params": params})["rows"] == [{"x": 2, "f": 1}]


def test_t24_numbers_and_texts_that_do_not_fit_are_schema_errors():
    config = {"command": "SELECT :x AS x", "params": {"x": 2**63}}
    assert failure(ran("sqlite", config))[0] == "schema"
    assert failure(ran("sqlite", {"command": "SELECT 'a' || char(0) AS x"}))[0] == "schema"


def test_a_file_opened_for_reading_is_not_written_or_made(tmp_path):
    place = {"database": str(tmp_path / "x.db")}
    missing = ran("sqlite", {**place, "command": "SELECT 1", "read_only": True})
    assert failure(missing)[0] == "not_found"
    assert not (tmp_path / "x.db").exists()

    good({**place, "command": "CREATE TABLE t (a)"})
    written = ran("sqlite", {**place, "command": "INSERT INTO t VALUES (1)", "read_only": True})
    assert failure(written)[0] == "client_error"


def test_an_empty_field_of_a_credential_names_no_file(tmp_path):
    """Forms send the fields that nobody filled in, too."""
    auth = {"database": "", "path": str(tmp_path / "x.db")}
    good({"auth": auth, "command": "CREATE TABLE t (x)"})

    assert (tmp_path / "x.db").exists()
    nameless = ran("sqlite", {"auth": {"database": ""}, "command": "SELECT 1"})
    assert failure(nameless) == ("auth", "auth: the credential has no field `database`.")


def test_other_files_are_attached_and_pragmas_are_set(tmp_path):
    good({"database": str(tmp_path / "a.db"), "command": "CREATE TABLE t AS SELECT 5 AS x"})
    config = {
        "database": str(tmp_path / "b.db"),
        "attach": {"other one": str(tmp_path / "a.db")},
        "pragmas": {"journal_mode": "WAL", "foreign_keys": True},
        "memory_limit": "10MB",
        "command": 'SELECT x FROM "other one".t; PRAGMA journal_mode; PRAGMA foreign_keys',
    }
    result = good(config)

    assert result["command_0"]["rows"] == [{"x": 5}]
    assert result["command_1"]["rows"] == [{"journal_mode": "wal"}]
    assert result["command_2"]["rows"] == [{"foreign_keys": 1}]
    outcome = ran("sqlite", {"command": "SELECT 1", "pragmas": {"x; DROP": 1}})
    assert failure(outcome)[0] == "client_error"


def test_a_table_or_column_that_is_not_there_is_told_with_those_that_are(tmp_path):
    place = {"database": str(tmp_path / "shop.db"), "attach": {"old": str(tmp_path / "old.db")}}
    good({**place, "command": "CREATE TABLE orders (id, total); CREATE TABLE old.customer (city)"})

    def said(command, **config):
        kind, message = failure(ran("sqlite", {**place, **config, "command": command}))
        assert kind == "client_error"
        return message.removeprefix("SQLite: ")

    table = said("SELECT * FROM order_s")
    assert table == 'no such table: order_s. Did you mean "orders"?'
    assert said("DELETE FROM old.stock") == "no such table: old.stock. There are: orders, customer."
    assert said("SELECT totl FROM orders") == 'no such column: totl. Did you mean "total"?'
    assert said("SELECT o.zz FROM orders AS o") == "no such column: o.zz."
    assert said("CREATE TABLE item (a); SELECT * FROM itm") == (
        'no such table: itm. Did you mean "item"?'
    )
    assert said("SELECT * FROM orders", database=str(tmp_path / "shp.db"), attach={}) == (
        "no such table: orders. The database has no tables."
    )
    assert said("SELECT * FROM orders", database=None, attach={}) == (
        "no such table: orders. The database has no tables."
        " Without `database` each task has an empty one."
    )


def test_vacuum_needs_no_transaction(tmp_path):
    good({"database": str(tmp_path / "a.db"), "command": "VACUUM"})


def test_a_trigger_is_one_statement():
    command = """
CREATE TABLE a (x); CREATE TABLE b (x);
CREATE TRIGGER t AFTER INSERT ON a BEGIN INSERT INTO b VALUES (new.x); DELETE FROM a; END;
INSERT INTO a VALUES (1); SELECT (SELECT count(*) FROM a) AS a, (SELECT count(*) FROM b) AS b
"""
    assert good({"command": command})["rows"] == [{"a": 0, "b": 1}]


def test_a_file_that_is_no_database_is_a_db_connection_error(tmp_path):
    (tmp_path / "x.db").write_text("nonsense" * 1000)
    outcome = ran("sqlite", {"database": str(tmp_path / "x.db"), "command": "SELECT * FROM t"})

    assert failure(outcome)[0] == "db_connection"
    assert not outcome.error.retryable


# --- Locks -------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path):
    """A database that another writer holds."""
    place = tmp_path / "x.db"
    other = sqlite3.connect(place, isolation_level=None)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    yield other, {"database": str(place), "command": "INSERT INTO t VALUES (1)"}
    other.close()


def test_a_file_that_stays_locked_is_a_db_timeout(locked):
    outcome = ran("sqlite", {**locked[1], "busy_timeout": "200ms"})

    assert failure(outcome)[0] == "db_timeout"
    assert outcome.error.retryable


def test_a_lock_is_waited_for(locked):
    other, config = locked

    async def work(bench):
        task = asyncio.create_task(bench.run("sqlite", config))
        await asyncio.sleep(0.3)
        other.execute("COMMIT")
        return await task

    assert on_bench(work).is_ok


def test_a_task_that_waits_for_a_lock_can_be_cancelled(locked):
    async def work(bench):
        task = asyncio.create_task(bench.run("sqlite", {**locked[1], "busy_timeout": "1m"}))
        await asyncio.sleep(0.3)
        watch = Stopwatch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch.seconds()

    assert on_bench(work) < 1


# --- Confinement -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"command": f"PRAGMA hard_heap_limit = {10**12}"},
        {"command": f"PRAGMA main.Soft_Heap_Limit({10**12})"},
        {"command": "PRAGMA temp_store_directory = '/tmp'"},
        {"command": "SELECT 1", "pragmas": {"soft_heap_limit": 10**12}},
    ],
)
def test_s10_a_task_changes_nothing_for_others_of_its_process(config):
    assert failure(ran("sqlite", config))[0] == "auth"
    with closing(sqlite3.connect(":memory:")) as other:
        for name in ("hard_heap_limit", "soft_heap_limit"):
            assert other.execute(f"PRAGMA {name}").fetchone() == (0,)
        assert other.execute("PRAGMA temp_store_directory").fetchone() in (None, ("",))


@pytest.mark.parametrize(
    "config",
    [
        {"database": "../x.db", "command": "SELECT 1"},
        {"attach": {"a": "/etc/hosts"}, "command": "SELECT 1"},
        {"command": "ATTACH '../x.db' AS a"},
        {"database": "y.db", "command": "VACUUM INTO '../x.db'"},
    ],
)
def test_s09_no_way_leads_out_of_the_allowed_directory(config, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    outcome = ran("sqlite", config, settings={"rules": Rules(file_root=str(root))})

    assert failure(outcome)[0] == "auth"
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
