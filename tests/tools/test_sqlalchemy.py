"""Kind sql and its sisters: on SQLite always, on MariaDB where it is installed."""

from __future__ import annotations

import asyncio

import pymysql
import pytest

from noetl.tools.rules import Rules
from noetl.tools.sql.postgres import BadCredential
from noetl.tools.sql.text import driver_spelling
from noetl.tools.sqlalchemy.addresses import address
from tests.stopwatch import Stopwatch
from tests.tools import mariadb
from tests.tools.running import failure, on_bench, ran

TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(50), n INTEGER CHECK (n < 100))"
SLOW = {
    "sql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    "mysql": "SELECT SLEEP(60) FROM (SELECT 1 UNION SELECT 2) AS t WHERE SLEEP(60) = 0",
}


class Database:
    """One database under test."""

    def __init__(self, kind, config):
        self.kind, self.config = kind, config

    def run(self, config, **context):
        return ran(self.kind, {**self.config, **config}, **context)

    def good(self, config, **context):
        outcome = self.run(config, **context)
        assert outcome.is_ok, outcome
        return outcome.result

    def rows(self):
        return self.good({"command": "SELECT id, name, n FROM t ORDER BY id"})["rows"]


@pytest.fixture(scope="session")
def mariadb_socket():
    if mariadb.programs() is None:
        pytest.skip(mariadb.MISSING)
    with mariadb.serving() as socket:
        yield socket


@pytest.fixture(params=["sql", "mysql"])
def db(request, tmp_path):
    if request.param == "sql":
        database = Database("sql", {"url": f"sqlite:///{tmp_path}/deep/t.db"})
    else:
        socket = request.getfixturevalue("mariadb_socket")
        with pymysql.connect(unix_socket=socket, user="root") as connection:
            connection.cursor().execute("DROP DATABASE IF EXISTS trial")
            connection.cursor().execute("CREATE DATABASE trial")
        config = {"auth": {"host": "localhost", "user": "root", "dbname": "trial"}}
        database = Database("mysql", config | {"options": {"unix_socket": socket}})
    database.good({"command": TABLE})
    return database


def test_statements_run_with_bound_values_in_one_transaction(db):
    result = db.good(
        {
            "command": "INSERT INTO t VALUES (:a, :b, 5); SELECT id, name, '50%' AS p, ':x' AS q "
            "FROM t WHERE name = :b",
            "params": {"a": 1, "b": "'; DROP TABLE t; --"},
        }
    )

    assert result["rows"] == [{"id": 1, "name": "'; DROP TABLE t; --", "p": "50%", "q": ":x"}]
    assert result["command_0"]["row_count"] == 1
    broken = db.run(
        {"command": "INSERT INTO t VALUES (2, 'x', 1); INSERT INTO t VALUES (2, '', 1)"}
    )
    assert failure(broken)[0] == "db_constraint"
    assert [row["id"] for row in db.rows()] == [1]


def test_values_by_position(db):
    result = db.good({"command": "SELECT ? AS a, ? AS b", "params": ["x%", None]})

    assert result["rows"] == [{"a": "x%", "b": None}]


def test_a_percent_sign_is_one_without_values_too(db):
    statements = {"command": "INSERT INTO t VALUES (1, '5%', 5 % 3); SELECT name, n FROM t"}

    result = db.good({**statements, "commands": ["SELECT 7 % 4 AS m FROM t WHERE name LIKE '5%'"]})

    assert result["command_1"]["rows"] == [{"name": "5%", "n": 2}]
    assert result["rows"] == [{"m": 3}]


@pytest.mark.parametrize(
    ("mode", "names", "count"), [("upsert", ["new", "new"], 2), ("ignore", ["old", "new"], 1)]
)
def test_rows_are_written(db, mode, names, count):
    db.good({"table": "t", "rows": [{"id": 1, "name": "old"}]})
    rows = [{"id": 1, "name": "new"}, {"id": 2, "name": "new"}]

    written = db.good({"table": "t", "rows": rows, "mode": mode, "key": "id"})

    assert [row["name"] for row in db.rows()] == names
    assert written["row_count"] == count


def test_quotes_and_comments_of_mysql_end_where_they_do_there(mariadb_socket):
    login = {"auth": {"host": "localhost", "user": "root"}}
    command = r"""SELECT 'it\'s; a :name' AS a; # don't
                  /* a /* b */
                  SELECT "say \"hi\"; a ?" AS b, 'C:\\' AS c, 5--1 AS six, :name AS d -- 'tis"""
    config = {**login, "options": {"unix_socket": mariadb_socket}, "command": command}

    result = ran("mysql", {**config, "params": {"name": "x%"}}).result

    assert result["command_0"]["rows"] == [{"a": "it's; a :name"}]
    assert result["rows"] == [{"b": 'say "hi"; a ?', "c": "C:\\", "six": 6, "d": "x%"}]


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        ({"schema": "other", "command": "SELECT 1"}, "SELECT DATABASE() AS found"),
        ({"command": "USE other"}, "SELECT DATABASE() AS found"),
        ({"command": "SET sql_mode = ''; SELECT 1"}, "SELECT @@sql_mode <> '' AS found"),
        ({"command": "SET sql_mode = ''; SELEC 1"}, "SELECT @@sql_mode <> '' AS found"),
        ({"command": "SELECT @found := 1"}, "SELECT @found IS NULL AS found"),
        ({"command": "SELECT GET_LOCK('l', 1)"}, "SELECT IS_FREE_LOCK('l') AS found"),
    ],
)
def test_a_task_finds_nothing_of_the_one_that_had_its_connection(before, asked, mariadb_socket):
    with pymysql.connect(unix_socket=mariadb_socket, user="root") as connection:
        for name in ("trial", "other"):
            connection.cursor().execute(f"CREATE DATABASE IF NOT EXISTS {name}")
    login = {"auth": {"host": "localhost", "user": "root", "dbname": "trial"}}
    login |= {"options": {"unix_socket": mariadb_socket}}

    async def work(bench):
        await bench.run("mysql", {**login, **before})
        return await bench.run("mysql", {**login, "command": asked})

    assert on_bench(work).result["rows"][0]["found"] in ("trial", 1)


@pytest.mark.parametrize("place", ["TEMP mine", "LOCAL TEMPORARY TABLE mine", "pg_temp.mine"])
def test_a_task_finds_no_temporary_table_that_a_query_made(place, postgres):
    login = {"auth": {**postgres, "driver": "postgresql"}}
    made = {**login, "command": f"SELECT 1 AS a INTO {place}"}

    async def work(bench):
        assert (await bench.run("sql", made)).is_ok
        return await bench.run("sql", {**login, "command": "SELECT to_regclass('mine') AS found"})

    assert on_bench(work).result["rows"] == [{"found": None}]


def test_plain_statements_share_a_connection(mariadb_socket):
    login = {"auth": {"host": "localhost", "user": "root"}}
    ask = {**login, "options": {"unix_socket": mariadb_socket}}
    ask["command"] = "SELECT CONNECTION_ID() AS id"

    async def work(bench):
        return [(await bench.run("mysql", ask)).result["rows"] for _ in range(2)]

    first, second = on_bench(work)
    assert first == second


def test_bytes_that_were_read_can_be_written_again(db):
    db.good({"command": "CREATE TABLE one (b BLOB)"})

    db.good({"table": "one", "rows": [{"b": "AP8Q"}]})

    found = db.good({"command": "SELECT lower(hex(b)) AS digits, b FROM one"})["rows"]
    assert found == [{"digits": "00ff10", "b": "AP8Q"}]


def test_a_query_yields_a_parquet_file_for_duckdb(db):
    async def work(bench):
        made = await bench.run(
            db.kind, {**db.config, "command": "SELECT 1 AS a, 'x' AS b", "result_as": "parquet"}
        )
        assert made.is_ok, made
        task = {"files": {"t": made.result}, "command": "SELECT a, b FROM t"}
        return await bench.run("duckdb", task)

    assert on_bench(work).result["rows"] == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"command": "SELEC 1"}, "client_error"),
        ({"command": "SELECT * FROM nowhere"}, "client_error"),
        ({"command": "INSERT INTO t VALUES (1, 'x', 1), (1, 'x', 1)"}, "db_constraint"),
        ({"command": "INSERT INTO t VALUES (1, 'x', 200)"}, None),
        ({"table": "t", "rows": [{"id": 1, "strange": 2}]}, "schema"),
        ({"command": "SELECT :a", "params": {"b": 1}}, "client_error"),
        ({"table": "t", "rows": [{"id": 1}], "returning": True}, "client_error"),
        ({"command": "SELECT 1", "schema": "s"}, None),
    ],
)
def test_each_failure_has_its_kind(db, config, kind):
    found = failure(db.run(config))[0]

    assert found in ((kind,) if kind else ("db_constraint", "db_connection", "client_error"))


def test_a_statement_that_takes_too_long_is_stopped(db):
    kind, message = failure(db.run({"command": SLOW[db.kind], "timeout": "200ms"}))

    assert (kind, "`timeout`" in message) == ("db_timeout", True)


def test_the_tasks_own_time_is_kept(db):
    assert failure(db.run({"command": SLOW[db.kind]}, timeout=0.3))[0] == "timeout"


def test_cancelling_stops_the_statement_within_a_second(db):
    async def work(bench):
        task = asyncio.create_task(bench.run(db.kind, {**db.config, "command": SLOW[db.kind]}))
        await asyncio.sleep(0.5)
        watch = Stopwatch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch.seconds()

    assert on_bench(work) < 1


def test_a_deadlock_is_told_apart(mariadb_socket):
    """Two transactions that wait for each other: the server ends one of them."""
    login = {"host": "localhost", "user": "root", "dbname": "trial"}
    config = {"auth": login, "options": {"unix_socket": mariadb_socket}}
    with pymysql.connect(unix_socket=mariadb_socket, user="root", autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE DATABASE IF NOT EXISTS trial")
        cursor.execute("DROP TABLE IF EXISTS trial.d")
        cursor.execute("CREATE TABLE trial.d (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
        cursor.execute("INSERT INTO trial.d VALUES (1, 0), (2, 0)")

    def both(first, second):
        return (
            f"UPDATE d SET n = n + 1 WHERE id = {first}; DO SLEEP(0.5); "
            f"UPDATE d SET n = n + 1 WHERE id = {second}"
        )

    async def work(bench):
        tasks = [
            bench.run("mysql", {**config, "command": both(*pair)}) for pair in ((1, 2), (2, 1))
        ]
        return await asyncio.gather(*tasks)

    outcomes = on_bench(work)
    [lost] = [outcome for outcome in outcomes if not outcome.is_ok]
    assert (lost.error.kind, lost.error.retryable, lost.error.code) == ("db_deadlock", True, 1213)


def test_s06_a_server_that_refuses_tells_no_password(mariadb_socket):
    auth = {"host": "localhost", "user": "nobody", "password": "canary-pw", "dbname": "trial"}
    config = {"auth": auth, "options": {"unix_socket": mariadb_socket}, "command": "SELECT 1"}

    outcome = ran("mysql", config)

    assert outcome.error.kind == "auth"
    assert "canary-pw" not in repr(outcome)


def test_s06_a_server_that_is_not_there_tells_no_password():
    auth = {"host": "127.0.0.1", "port": 1, "user": "u", "password": "canary-pw"}

    outcome = ran("mysql", {"auth": auth, "command": "SELECT 1"})

    assert (outcome.error.kind, outcome.error.retryable) == ("db_connection", True)
    assert "canary-pw" not in repr(outcome)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"auth": {"user": "x"}}, "auth"),
        ({"auth": "unknown"}, "auth"),
        ({"url": "what is this"}, "auth"),
        ({"url": "nosuch://h/d"}, "not_found"),
    ],
)
def test_an_address_that_leads_nowhere(config, kind):
    assert failure(ran("sql", {**config, "command": "SELECT 1"}))[0] == kind


def test_s10_sqlite_changes_nothing_for_others_of_its_process():
    config = {"url": "sqlite://", "command": f"PRAGMA hard_heap_limit = {10**12}"}

    assert "not authorized" in failure(ran("sql", config))[1]


def test_s09_a_file_outside_the_allowed_directory_is_not_opened(tmp_path):
    rules = Rules(file_root=str(tmp_path / "root"))
    config = {"url": f"sqlite:///{tmp_path}/other.db", "command": "SELECT 1"}

    assert failure(ran("sql", config, settings={"rules": rules}))[0] == "auth"


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        (
            "mysql",
            {"host": "h", "port": 3306, "user": "u", "password": "p@ss/w", "dbname": "d"},
            "mysql+pymysql://u:p%40ss%2Fw@h:3306/d",
        ),
        ("mysql", {"db_host": "h", "db_user": "u", "db_name": "d"}, "mysql+pymysql://u@h/d"),
        (
            "snowflake",
            {"account": "a-b", "user": "u", "password": "p", "database": "d", "schema": "s",
             "warehouse": "w", "role": "r"},
            "snowflake://u:p@a-b/d%2Fs?role=r&warehouse=w",
        ),
        ("clickhouse", {"host": "h", "secure": True}, "clickhousedb://h?secure=True"),
        ("bigquery", {"project": "p", "dataset": "d"}, "bigquery://p/d"),
        ("mssql", {"host": "h", "dbname": "d"}, "mssql+pymssql://h/d"),
        (
            "oracle",
            {"host": "h", "user": "u", "service_name": "s"},
            "oracle+oracledb://u@h?service_name=s",
        ),
        ("sql", {"driver": "mysql+asyncmy", "host": "h"}, "mysql+asyncmy://h"),
        ("sql", {"url": "mysql://u@h/d", "password": "p"}, "mysql://u:p@h/d"),
        ("sql", {"url": "postgres://u@h/d"}, "postgresql+psycopg://u@h/d"),
        ("sql", {"url": "postgresql://u@h/d"}, "postgresql+psycopg://u@h/d"),
        ("sql", {"url": "postgresql+pg8000://u@h/d"}, "postgresql+pg8000://u@h/d"),
        ("sql", {"driver": "postgresql", "host": "h"}, "postgresql+psycopg://h"),
    ],
)  # fmt: skip
def test_each_database_has_its_own_credential(kind, fields, wanted):
    url = address(kind, None, fields).url

    assert url.render_as_string(hide_password=False).replace("/s?", "%2Fs?") == wanted


def test_a_key_for_snowflake_must_be_one():
    with pytest.raises(BadCredential, match="private_key"):
        address("snowflake", None, {"account": "a", "private_key": "canary"})


@pytest.mark.parametrize(
    ("style", "sql", "values"),
    [
        ("qmark", "SELECT ?, '%', ? ", ("x", "x")),
        ("format", "SELECT %s, '%%', %s ", ("x", "x")),
        ("named", "SELECT :p1, '%', :p2 ", {"p1": "x", "p2": "x"}),
        ("numeric", "SELECT :1, '%', :2 ", ("x", "x")),
    ],
)
def test_placeholders_are_spelled_as_the_driver_wants(style, sql, values):
    assert driver_spelling("SELECT :a, '%', :a ", {"a": "x"}, style) == (sql, values)
