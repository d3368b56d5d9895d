"""kind: duckdb. Files, types, settings, and how it says no."""

from __future__ import annotations

import asyncio
import sys

import msgspec
import pytest

from noetl.tools.rules import Rules
from tests.tools.running import beside, failure, on_bench, ran


def good(config, **context):
    outcome = ran("duckdb", config, **context)
    assert outcome.is_ok, outcome
    return outcome.result


def test_files_become_views(tmp_path):
    (tmp_path / "it's 1.csv").write_text("id,city\n1,Oslo\n")
    (tmp_path / "it's 2.csv").write_text("id,city\n2,Rome\n")
    (tmp_path / "more.json").write_text('[{"id": 3, "city": "Bern"}]')
    good({"command": f"COPY (SELECT 4 AS id, 'Kyiv' AS city) TO '{tmp_path}/p.parquet'"})
    files = {
        "sales": f"{tmp_path}/it's *.csv",
        "my more": f"{tmp_path}/more.json",
        "p": f"{tmp_path}/p.parquet",
    }
    command = """
SELECT city FROM sales UNION ALL SELECT city FROM "my more" UNION ALL SELECT city FROM p ORDER BY 1
"""
    rows = good({"files": files, "command": command})["rows"]

    assert [row["city"] for row in rows] == ["Bern", "Kyiv", "Oslo", "Rome"]


def test_an_error_in_a_statement_shows_its_line_with_the_caret_below():
    command = "SELECT 1 AS a,\n       2 AS b\n  FRM c WHERE"
    outcome = ran("duckdb", {"command": command})

    kind, message = failure(outcome)
    assert (kind, "\n" in message, "^" in message) == ("client_error", False, False)
    assert message.startswith("Parser Error: ")
    line, caret = outcome.error.details["sql"].splitlines()
    assert line.startswith("LINE 3: ")
    assert line[caret.index("^") :].startswith("FRM")


def test_types_survive():
    command = """
SELECT 170141183460469231731687303715884105727::HUGEINT AS huge, sum(2) AS s,
       1.10::DECIMAL(10, 2) AS d, '0.12345678901234567890'::DECIMAL(38, 20) AS exact,
       '2024-01-02 03:04:05+02'::TIMESTAMPTZ AS moment, TIMESTAMP '2024-01-02 03:04:05.5' AS local,
       DATE '2024-01-02' AS day, INTERVAL 36 HOURS AS span, '\\xAB'::BLOB AS bytes,
       '00000000-0000-0000-0000-000000000001'::UUID AS id, '{"a": [1]}'::JSON AS doc,
       [1, NULL] AS list, {'x': DATE '2024-01-02'} AS struct, MAP {1: 'a'} AS map, NULL AS z
"""
    [row] = good({"command": command, "settings": {"TimeZone": "UTC"}})["rows"]

    assert row == {
        "huge": "170141183460469231731687303715884105727",
        "s": 2,
        "d": 1.1,
        "exact": "0.12345678901234567890",
        "moment": "2024-01-02T01:04:05Z",
        "local": "2024-01-02T03:04:05.500000",
        "day": "2024-01-02",
        "span": "P1DT43200S",
        "bytes": "qw==",
        "id": "00000000-0000-0000-0000-000000000001",
        "doc": {"a": [1]},
        "list": [1, None],
        "struct": {"x": "2024-01-02"},
        "map": {"1": "a"},
        "z": None,
    }


def test_lists_and_mappings_are_bound_as_they_are():
    command = "SELECT list_contains($ids, 2) AS a, $doc.x AS b, '{}'::JSON AS c"

    assert good({"command": command, "params": {"ids": [1, 2], "doc": {"x": 5}}})["rows"] == [
        {"a": True, "b": 5, "c": {}}
    ]


def test_a_column_called_count_is_a_column():
    assert good({"command": 'SELECT 5 AS "Count"'})["rows"] == [{"Count": 5}]


def test_a_variable_of_ours_is_no_table():
    """`rows` is one where statements are run."""
    kind, message = failure(ran("duckdb", {"command": "SELECT * FROM rows"}))

    assert kind == "client_error"
    assert "Table with name rows does not exist" in message


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_rows_for_a_table_that_is_not_there_are_answered_with_how_to_make_it(tmp_path, kind):
    write = {"database": str(tmp_path / "new.db"), "table": "t", "rows": [{"i": 1}]}

    outcome = ran(kind, write)
    made = ran(kind, {**write, "command": "CREATE TABLE IF NOT EXISTS t (i INT)"})

    assert failure(outcome)[0] == "client_error"
    assert 'There is no table "t". Make it in the same task' in failure(outcome)[1]
    assert made.result["row_count"] == 1


def test_limits_and_settings_hold():
    command = "SELECT current_setting('threads') AS t, current_setting('memory_limit') AS m"
    [row] = good({"command": command, "threads": 1, "memory_limit": "100MB"})["rows"]

    assert row["t"] == 1
    assert "95" in row["m"]
    outcome = ran("duckdb", {"command": "SELECT 1", "settings": {"a b": 1}})
    assert failure(outcome)[0] == "client_error"


def test_another_duckdb_file_is_attached(tmp_path):
    good({"database": str(tmp_path / "a.db"), "command": "CREATE TABLE t AS SELECT 5 AS x"})
    attach = {"o": {"kind": "duckdb", "database": str(tmp_path / "a.db"), "read_only": True}}

    assert good({"attach": attach, "command": "SELECT x FROM o.t"})["rows"] == [{"x": 5}]
    outcome = ran("duckdb", {"attach": attach, "command": "INSERT INTO o.t VALUES (1)"})
    assert failure(outcome)[0] == "client_error"


def test_s06_a_database_that_cannot_be_attached_keeps_its_password():
    auth = {"host": "127.0.0.1", "port": 1, "user": "me", "password": "canary-pw", "dbname": "d"}
    attach = {"shop": {"kind": "postgres", "auth": auth}}
    outcome = ran("duckdb", {"attach": attach, "command": "SELECT 1"})

    assert failure(outcome)[0] in ("db_connection", "not_found")
    assert "canary-pw" not in msgspec.json.encode(outcome).decode()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"files": {"f": "nowhere.csv"}, "command": "SELECT * FROM f"}, "not_found"),
        ({"files": {"f": "what.xyz"}, "command": "SELECT * FROM f"}, "client_error"),
        ({"command": "SELECT 1", "extensions": ["no_such_extension"]}, "not_found"),
        ({"command": "SELECT 1", "extensions": ["x; DROP"]}, "client_error"),
        ({"command": "SELECT 1", "database": "nowhere.db", "read_only": True}, "not_found"),
        ({"command": "SELECT 1", "attach": {"a": {"kind": "sqlite"}}}, "client_error"),
        ({"command": "SELECT 1", "attach": {"a": {"kind": "postgres", "auth": {}}}}, "auth"),
        ({"command": "SELECT 'x'::INT"}, "client_error"),
    ],
)
def test_what_is_not_there_is_named(config, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert failure(ran("duckdb", config))[0] == kind


def test_files_that_are_not_in_their_form_are_parse_errors(tmp_path):
    (tmp_path / "x.json").write_text("{nonsense")
    config = {"files": {"f": str(tmp_path / "x.json")}, "command": "SELECT * FROM f"}

    assert failure(ran("duckdb", config))[0] == "parse"


def test_a_file_that_is_no_database_is_a_db_connection_error(tmp_path):
    (tmp_path / "x.db").write_text("nonsense" * 1000)
    outcome = ran("duckdb", {"database": str(tmp_path / "x.db"), "command": "SELECT 1"})

    assert failure(outcome)[0] == "db_connection"


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_rows_are_written_without_binding_each_value(tmp_path, monkeypatch, mode):
    """The library asks for pandas for every value that is bound by itself: 0.3 ms each."""
    asked: list[str] = []

    class Watch:
        def find_spec(self, name, path=None, target=None):
            asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [Watch(), *sys.meta_path])
    types = {"i": "int", "t": "varchar", "x": "double", "b": "boolean", "d": "date", "y": "blob"}
    rows = [
        {"i": n, "t": f'"\u00fc\n{n}', "x": n / 7, "b": None, "d": "2024-02-29", "y": "AP9c"}
        for n in range(3000)
    ]
    place = {"database": str(tmp_path / "x.db")}

    async def work(bench):
        columns = ", ".join(f"{name} {type_}" for name, type_ in types.items())
        create = f"CREATE TABLE t ({columns}, PRIMARY KEY (i))"
        await bench.run("duckdb", {**place, "command": create})
        written = await bench.run(
            "duckdb", {**place, "table": "t", "rows": rows, "mode": mode, "key": "i"}
        )
        assert written.is_ok, written
        return await bench.run("duckdb", {**place, "command": "SELECT * FROM t ORDER BY i"})

    assert on_bench(work).result["rows"] == rows
    assert asked.count("pandas") < 100


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("hugeint", [1, 2**70]),
        ("varchar", [1, "a", None]),
        ("double", [1, 2.5]),
        ("int[]", [[1, 2], None]),
        ("struct(a int)", [{"a": 1}, {"a": None}]),
        ("varchar", ["\u00fc", "null", ""]),
        ("bigint", [-(2**63), 2**63 - 1]),
    ],
)
def test_values_of_every_kind_are_written_as_they_are(tmp_path, type_, values):
    place = {"database": str(tmp_path / "x.db")}

    async def work(bench):
        await bench.run("duckdb", {**place, "command": f"CREATE TABLE t (n int, v {type_})"})
        rows = [{"n": n, "v": value} for n, value in enumerate(values)]
        written = await bench.run("duckdb", {**place, "table": "t", "rows": rows})
        assert written.is_ok, written
        return await bench.run("duckdb", {**place, "command": "SELECT v FROM t ORDER BY n"})

    found = [row["v"] for row in on_bench(work).result["rows"]]
    expected = [str(one) if type_ == "varchar" and one is not None else one for one in values]
    assert [int(one) if type_ == "hugeint" else one for one in found] == expected


def test_two_tasks_that_change_one_row_at_once_are_told_apart(tmp_path):
    place = {"database": str(tmp_path / "x.db")}

    async def work(bench):
        await bench.run("duckdb", {**place, "command": "CREATE TABLE t AS SELECT 1 AS n"})
        change = {**place, "commands": ["UPDATE t SET n = n + 1", "SELECT n FROM t"]}
        return await beside(bench, tmp_path, change, change)

    first, second = on_bench(work)
    assert first.result["rows"] == [{"n": 2}]
    assert failure(second)[0] == "db_deadlock"


@pytest.mark.parametrize(
    "config",
    [
        {"database": "../x.db", "command": "SELECT 1"},
        {"files": {"f": "../secret.csv"}, "command": "SELECT * FROM f"},
        {"command": "SELECT * FROM read_csv_auto('../secret.csv')"},
        {"command": "COPY (SELECT 1) TO '../x.csv'"},
        {"command": "ATTACH '../x.db' AS o"},
        {"command": "SET enable_external_access = true"},
        {
            "command": "SELECT * FROM read_csv_auto('../secret.csv')",
            "settings": {"allowed_paths": "['../secret.csv']"},
        },
        {
            "command": "SELECT * FROM read_csv_auto('../secret.csv')",
            "settings": {"allowed_directories": "['..']"},
        },
        {"command": "SELECT 1", "settings": {"log_query_path": "../log"}},
        {"command": "SELECT 1", "settings": {"temp_directory": "../spilt"}},
    ],
)
def test_s09_no_way_leads_out_of_the_allowed_directory(config, tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.csv").write_text("a\ncanary\n")
    monkeypatch.chdir(root)
    outcome = ran("duckdb", config, settings={"rules": Rules(file_root=str(root))})

    assert failure(outcome)[0] in ("auth", "client_error")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "secret.csv"]


def test_s09_tasks_that_are_kept_to_a_directory_share_a_database_there(tmp_path):
    rules = Rules(file_root=str(tmp_path))
    config = {"database": "x.db", "command": "INSERT INTO t SELECT count(*) FROM range(1000000)"}

    async def work(bench):
        await bench.run("duckdb", {**config, "command": "CREATE TABLE t (n INT)"})
        outcomes = await asyncio.gather(*(bench.run("duckdb", config) for _ in range(4)))
        return outcomes, await bench.run("duckdb", {**config, "command": "FROM t"})

    outcomes, found = on_bench(work, rules=rules)
    assert [one.error for one in outcomes] == [None] * 4
    assert found.result["row_count"] == 4


def test_s09_inside_the_allowed_directory_files_are_read(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x\n1\n")
    monkeypatch.chdir("/")
    rules = {"rules": Rules(file_root=str(tmp_path))}
    config = {"files": {"f": "a.csv"}, "command": "SELECT x FROM f"}

    assert good(config, settings=rules)["rows"] == [{"x": 1}]


def test_a_file_that_is_not_there_is_named_and_no_statement_of_ours_shown():
    outcome = ran("duckdb", {"command": "SELECT * FROM read_csv('absent.csv')"})
    kind, message = failure(outcome)

    assert kind == "not_found"
    assert message.startswith('No file of this worker matches "absent.csv".')


SPILLING = (
    "CREATE TEMP TABLE s AS SELECT md5(i::VARCHAR) AS a FROM range(1500000) AS t(i) ORDER BY a"
)


@pytest.mark.parametrize("commands", [["SELECT 1", SPILLING], [SPILLING, "SELECT 1"]])
def test_a_task_that_ends_takes_no_room_from_one_that_spills(commands, tmp_path):
    """The second task of a file chose where the first one's memory spills to, and took it away."""
    database = {"database": str(tmp_path / "t.duckdb")}
    first = {**database, "memory_limit": "40MB", "threads": 1, "commands": commands}

    async def work(bench):
        return await beside(bench, tmp_path, first, {**database, "command": "SELECT 42 AS n"})

    for outcome in on_bench(work):
        assert outcome.is_ok, outcome
