"""What kinds sqlite, duckdb and postgres have in common, on each of them."""

from __future__ import annotations

import asyncio

import pytest

from noetl.tools.rules import Rules
from tests.stopwatch import Stopwatch
from tests.tools.running import KEY, failure, kept, on_bench, ran

BIND = {"sqlite": ":", "duckdb": "$"}
SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT max(i) FROM n",
    "duckdb": "SELECT count(*) FROM range(10000000) a, range(10000000) b "
    "WHERE a.range * b.range = -1",
    "postgres": "SELECT pg_sleep(60)",
}
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n INTEGER CHECK (n < 100))"


class Database:
    """One database under test: how to reach it, and one table in it."""

    def __init__(self, kind, config, root):
        self.kind = kind
        self.config = config
        self.root = root

    def run(self, config, **context):
        return ran(self.kind, {**self.config, **config}, **context)

    def good(self, config, **context):
        outcome = self.run(config, **context)
        assert outcome.is_ok, outcome
        return outcome.result

    def bad(self, config, **context):
        return failure(self.run(config, **context))


@pytest.fixture(params=["sqlite", "duckdb", "postgres"])
def db(request, tmp_path):
    if request.param == "postgres":
        config = {"auth": request.getfixturevalue("postgres")}
    else:
        config = {"database": str(tmp_path / "deep" / "trial.db")}
    database = Database(request.param, config, tmp_path)
    database.good(
        {"command": "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n INTEGER CHECK (n < 100))"}
    )
    return database


def rows_of(db):
    return db.good({"command": "SELECT id, name, n FROM t ORDER BY id"})["rows"]


# --- Statements --------------------------------------------------------------------------------


def test_one_statement_yields_its_rows_in_both_places(db):
    result = db.good({"command": "SELECT 1 AS a, 'x' AS b UNION ALL SELECT 2, NULL ORDER BY 1"})

    part = {
        "rows": [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
        "row_count": 2,
        "columns": ["a", "b"],
    }
    assert result == {**part, "command_0": part}


def test_several_statements_yield_the_last_and_each_by_number(db):
    result = db.good(
        {
            "command": "INSERT INTO t VALUES (1, 'a;b', 1), (2, 'c', 2); -- ; not here\n"
            "UPDATE t SET n = 3; SELECT name FROM t ORDER BY id",
        }
    )

    assert [result[f"command_{n}"]["row_count"] for n in range(3)] == [2, 2, 2]
    assert result["rows"] == [{"name": "a;b"}, {"name": "c"}]
    assert "command_3" not in result


def test_commands_are_a_list_or_a_text(db):
    for commands in (["SELECT 1 AS a", "SELECT 2 AS a; SELECT 3 AS a"], "SELECT 1; SELECT 3 AS a"):
        assert db.good({"commands": commands})["rows"] == [{"a": 3}]


def test_a_task_is_one_transaction(db):
    commands = ["INSERT INTO t VALUES (1, 'a', 1)", "INSERT INTO t VALUES (1, 'b', 1)"]

    assert db.bad({"commands": commands})[0] == "db_constraint"
    assert rows_of(db) == []


def test_begin_and_commit_around_it_all_say_nothing_new(db):
    result = db.good({"command": "BEGIN; INSERT INTO t VALUES (1, 'a', 1); COMMIT;"})

    assert result["command_1"]["row_count"] == 1
    assert len(rows_of(db)) == 1


def test_a_commit_in_the_middle_is_refused(db):
    command = "INSERT INTO t VALUES (1, 'a', 1); COMMIT; SELECT 1"

    kind, message = db.bad({"command": command})
    assert (kind, "one transaction" in message) == ("client_error", True)
    assert rows_of(db) == []


def test_values_are_bound_by_name_in_every_spelling(db):
    command = "INSERT INTO t VALUES (%(id)s, %(name)s, %(n)s)"
    nasty = "'); DROP TABLE t; -- %s :id $id ?"
    db.good({"command": command, "params": {"id": 1, "name": nasty, "n": None, "unused": 1}})
    if db.kind != "postgres":
        mark = BIND[db.kind]
        command = f"INSERT INTO t VALUES ({mark}id, {mark}name, {mark}n); SELECT 1"
        db.good({"command": command, "params": {"id": 2, "name": nasty, "n": 2}})

    assert rows_of(db)[0] == {"id": 1, "name": nasty, "n": None}
    assert rows_of(db)[-1]["name"] == nasty


def test_values_are_bound_by_position_over_all_statements(db):
    command = "INSERT INTO t VALUES (%s, %s, 1); INSERT INTO t VALUES (%s, '100%', 1)"
    db.good({"command": command, "params": [1, "a", 2]})

    assert [row["name"] for row in rows_of(db)] == ["a", "100%"]


def test_a_value_that_is_missing_is_a_client_error(db):
    command = "SELECT %(a)s AS a"

    kind, message = db.bad({"command": command, "params": {"b": 1}})
    assert (kind, '"a"' in message) == ("client_error", True)


def test_returning_yields_rows(db):
    result = db.good({"command": "INSERT INTO t VALUES (1, 'a', 2) RETURNING n + 1 AS next"})

    assert (result["rows"], result["row_count"]) == ([{"next": 3}], 1)


def test_columns_of_one_name_are_kept_apart(db):
    assert db.good({"command": "SELECT 1 AS a, 2 AS a"})["rows"] == [{"a": 1, "a_1": 2}]


def test_no_statement_at_all_is_a_client_error(db):
    assert db.bad({"command": " -- nothing\n;"})[0] == "client_error"


# --- Rows --------------------------------------------------------------------------------------

ROWS = [{"id": 1, "name": "a", "n": 1}, {"id": 2, "name": None, "n": 2}]


def test_rows_are_inserted(db):
    assert db.good({"table": "t", "rows": ROWS})["row_count"] == 2
    assert rows_of(db) == ROWS


def test_bytes_that_were_read_can_be_written_again(db):
    type_ = "BYTEA" if db.kind == "postgres" else "BLOB"
    texts = {"sqlite": "X'00FF10'", "duckdb": r"'\x00\xFF\x10'::BLOB", "postgres": r"'\x00ff10'"}
    db.good({"command": f"CREATE TABLE one (b {type_}); CREATE TABLE two (b {type_})"})
    db.good({"command": f"INSERT INTO one VALUES ({texts[db.kind]})"})
    read = db.good({"command": "SELECT b FROM one"})

    db.good({"table": "two", "rows": read["rows"]})

    assert read["rows"] == [{"b": "AP8Q"}]
    same = "SELECT count(*) AS n FROM one JOIN two ON one.b = two.b"
    assert db.good({"command": same})["rows"] == [{"n": 1}]
    assert db.bad({"table": "two", "rows": [{"b": "no bytes!"}]})[0] == "schema"


def test_without_rows_the_inputs_are_one(db):
    db.good({"table": "t"}, inputs=ROWS[0])

    assert rows_of(db) == ROWS[:1]


def test_rows_come_from_a_result_or_a_file(db):
    (db.root / "rows.csv").write_text('id,name\n3,"x\ny"\n')
    (db.root / "rows.json").write_text('[{"id": 4, "name": "j"}]')
    (db.root / "rows.ndjson").write_text('{"id": 5, "name": "n"}\n\n{"id": 6}\n')
    reference = kept({"rows": ROWS})
    db.good({"table": "t", "rows": reference}, settings={"results": {KEY: {"rows": ROWS}}})
    for name in ("rows.csv", "rows.json", "rows.ndjson"):
        db.good({"table": "t", "rows": str(db.root / name)})

    assert [row["id"] for row in rows_of(db)] == [1, 2, 3, 4, 5, 6]
    assert rows_of(db)[2]["name"] == "x\ny"


def test_an_empty_file_of_json_is_named(db):
    (db.root / "rows.json").touch()

    kind, message = db.bad({"table": "t", "rows": str(db.root / "rows.json")})

    assert (kind, message.endswith('rows.json" cannot be read: it is empty.')) == ("parse", True)


def test_rows_may_have_different_columns_and_come_in_many_batches(db):
    rows = [{"id": n} if n % 3 else {"id": n, "n": 5} for n in range(250)]

    assert db.good({"table": "t", "rows": rows, "batch_size": 10})["row_count"] == 250
    assert db.good({"command": "SELECT count(*) AS c, sum(n) AS s FROM t"})["rows"] == [
        {"c": 250, "s": 84 * 5}
    ]


@pytest.mark.parametrize("mode", ["upsert", "ignore"])
def test_a_table_without_the_key_of_an_upsert_is_told_with_a_remedy(db, mode):
    db.good({"command": "CREATE TABLE plain (id INTEGER, name TEXT)"})

    kind, message = db.bad({"table": "plain", "rows": [{"id": 1}], "mode": mode, "key": "id"})

    assert kind == "client_error"
    assert "create one with CREATE UNIQUE INDEX" in message


def test_upsert_replaces_and_the_last_of_equal_keys_wins(db):
    db.good({"table": "t", "rows": ROWS})
    rows = [{"id": 1, "name": "x"}, {"id": 3, "name": "y"}, {"id": 1, "name": "z"}]
    result = db.good(
        {"table": "t", "rows": rows, "mode": "upsert", "key": "id", "returning": ["id"]}
    )

    assert sorted(row["id"] for row in result["rows"]) == [1, 3]
    assert [(row["id"], row["name"], row["n"]) for row in rows_of(db)] == [
        (1, "z", 1),
        (2, None, 2),
        (3, "y", None),
    ]


def test_ignore_skips_what_is_there(db):
    db.good({"table": "t", "rows": ROWS})
    rows = [{"id": 1, "name": "x"}, {"id": 3, "name": "y"}]
    result = db.good(
        {"table": "t", "rows": rows, "mode": "ignore", "key": ["id"], "returning": True}
    )

    assert result["rows"] == [{"id": 3, "name": "y", "n": None}]
    assert rows_of(db)[0]["name"] == "a"


def test_statements_come_before_the_rows_in_the_same_transaction(db):
    result = db.good({"command": "DELETE FROM t", "table": "t", "rows": ROWS})

    assert (result["command_0"]["row_count"], result["row_count"]) == (0, 2)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"table": "t", "rows": [{"id": 1, "nope": 2}]}, "schema"),
        ({"table": "t", "rows": [{}]}, "schema"),
        ({"table": "t", "rows": ROWS, "mode": "upsert"}, "client_error"),
        ({"table": "nope", "rows": ROWS}, "client_error"),
        ({"table": "t; DROP TABLE t", "rows": ROWS}, "client_error"),
        ({"table": 't"; DROP TABLE t; --', "rows": ROWS}, "client_error"),
        ({"table": "t", "rows": "nope.csv"}, "not_found"),
        ({"table": "t", "rows": [{"id": 1, "n": 100}]}, "db_constraint"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_and_nothing_is(db, config, kind):
    assert db.bad(config)[0] == kind
    assert rows_of(db) == []


def test_a_line_of_a_file_with_more_fields_than_names_is_told_with_its_number(db, tmp_path):
    (tmp_path / "rows.csv").write_text("id,n\n1,2\n3,4,5\n")

    kind, message = db.bad({"table": "t", "rows": str(tmp_path / "rows.csv")})

    assert (kind, "line 3 has more fields" in message) == ("parse", True)
    assert rows_of(db) == []


# --- Failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["SELEC 1", "SELECT * FROM nope", "SELECT nope FROM t"])
def test_a_wrong_statement_is_a_client_error(db, command):
    assert db.bad({"command": command})[0] == "client_error"


def test_t24_values_that_nobody_could_carry_are_a_schema_error_with_their_path(db):
    infinite = {
        "sqlite": "SELECT 9e999 AS x",
        "duckdb": "SELECT 'inf'::DOUBLE AS x",
        "postgres": "SELECT 'inf'::float8 AS x",
    }
    kind, message = db.bad({"command": infinite[db.kind]})
    assert (kind, "result[0].x" in message) == ("schema", True)


def test_t24_a_text_with_half_a_character_is_a_schema_error(db):
    config = {"command": "SELECT %(x)s AS x", "params": {"x": "\ud800"}}

    assert db.bad(config)[0] == "schema"


def test_a_statement_that_takes_too_long_is_a_db_timeout(db):
    watch = Stopwatch()
    outcome = db.run({"commands": ["SELECT 1", SLOW[db.kind]], "timeout": "300ms"})

    assert failure(outcome)[0] == "db_timeout"
    assert outcome.error.retryable
    assert watch.seconds() < 3


def test_t07_a_task_that_takes_too_long_is_a_timeout_and_writes_nothing(db):
    commands = ["INSERT INTO t VALUES (1, 'a', 1)", SLOW[db.kind]]

    assert db.bad({"commands": commands}, timeout=0.5)[0] == "timeout"
    assert rows_of(db) == []


def test_a_cancelled_task_stops_within_a_second_and_writes_nothing(db):
    async def work(bench):
        commands = ["INSERT INTO t VALUES (1, 'a', 1)", SLOW[db.kind]]
        task = asyncio.create_task(bench.run(db.kind, {**db.config, "commands": commands}))
        await asyncio.sleep(0.5)
        watch = Stopwatch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch.seconds()

    assert on_bench(work) < 1
    assert rows_of(db) == []


def test_a_table_file_needs_a_query(db):
    for config in (
        {"table": "t", "rows": [{"id": 1}]},
        {"command": "SELECT 1", "table": "t", "rows": [{"id": 1}]},
    ):
        kind, message = db.bad({**config, "result_as": "parquet"})
        assert (kind, "result_as" in message) == ("client_error", True)


def test_s09_files_outside_the_allowed_directory_are_not_read(db, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "rows.csv").write_text("id\n1\n")
    rules = {"rules": Rules(file_root=str(tmp_path / "root"))}
    config = {"table": "t", "rows": str(tmp_path / "rows.csv")}
    if db.kind == "postgres":
        config |= db.config

    assert failure(ran(db.kind, config, settings=rules))[0] == "auth"


def test_what_a_task_leaves_in_its_session_is_gone_for_the_next(db):
    async def work(bench):
        await bench.run(db.kind, {**db.config, "command": "CREATE TEMP TABLE left_over (a INT)"})
        return await bench.run(db.kind, {**db.config, "command": "SELECT * FROM left_over"})

    assert failure(on_bench(work))[0] == "client_error"
