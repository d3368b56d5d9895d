"""Databases of other kinds attached to DuckDB, by extensions that the extra `attach` brings."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from contextlib import closing

import duckdb
import msgspec
import psycopg
import pymysql
import pytest

from noetl.tools.duckdb import extensions
from tests.tools import mariadb
from tests.tools.running import failure, held, on_bench, ran
from tests.tools.services import free_port


@pytest.fixture
def shop(tmp_path):
    """A SQLite file with a table."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, n INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1, 5), (2, 7)")
        connection.commit()
    return {"kind": "sqlite", "database": str(path)}


@pytest.fixture
def sales(postgres):
    """A PostgreSQL with an empty table."""
    with psycopg.connect(**postgres) as connection:
        connection.execute("CREATE TABLE sold (id int PRIMARY KEY, n int)")
    return {"kind": "postgres", "auth": postgres}


def good(config, **context):
    outcome = ran("duckdb", config, **context)
    assert outcome.is_ok, outcome
    return outcome.result


# --- Reading and writing -----------------------------------------------------------------------


def test_a_sqlite_file_is_read_and_written(shop):
    attach = {"attach": {"shop": shop}}
    good({**attach, "command": "INSERT INTO shop.orders VALUES (3, 8)"})

    assert good({**attach, "command": "SELECT sum(n) AS n FROM shop.orders"})["rows"] == [{"n": 20}]
    with closing(sqlite3.connect(shop["database"])) as connection:
        assert connection.execute("SELECT id, n FROM orders WHERE id = 3").fetchall() == [(3, 8)]


def test_postgres_is_read_and_written_beside_a_file(sales, postgres, tmp_path):
    (tmp_path / "new.csv").write_text("id,n\n1,5\n2,7\n")
    config = {"attach": {"pg": sales}, "files": {"new": str(tmp_path / "new.csv")}}
    good({**config, "command": "INSERT INTO pg.sold SELECT * FROM new"})

    with psycopg.connect(**postgres) as connection:
        assert connection.execute("UPDATE sold SET n = n * 10").rowcount == 2
    joined = "SELECT id, new.n AS a, sold.n AS b FROM new JOIN pg.sold USING (id) ORDER BY id"
    assert good({**config, "command": joined})["rows"] == [
        {"id": 1, "a": 5, "b": 50},
        {"id": 2, "a": 7, "b": 70},
    ]


def test_one_statement_goes_from_sqlite_to_postgres(sales, shop, loaded):
    attach = {**loaded, "attach": {"pg": sales, "shop": shop}}
    command = "INSERT INTO pg.sold SELECT id, n + $more FROM shop.orders"
    good({**attach, "command": command, "params": {"more": 1}})

    query = "SELECT list(sold.n - orders.n) AS n FROM pg.sold JOIN shop.orders USING (id)"
    assert good({**attach, "command": query})["rows"] == [{"n": [1, 1]}]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_that_is_attached_for_reading_is_not_written(kind, sales, shop, loaded):
    place, table = {"sqlite": (shop, "orders"), "postgres": (sales, "sold")}[kind]
    attach = {**loaded, "attach": {"x": {**place, "read_only": True}}}

    good({**attach, "command": f"SELECT * FROM x.{table}"})
    refused = ran("duckdb", {**attach, "command": f"DELETE FROM x.{table}"})

    assert failure(refused)[0] == "client_error"
    assert "read-only" in failure(refused)[1]


def test_what_a_task_writes_to_postgres_is_one_transaction(sales, postgres, loaded):
    commands = ["INSERT INTO pg.sold VALUES (1, 1)", "SELECT 'x'::INT"]
    outcome = ran("duckdb", {**loaded, "attach": {"pg": sales}, "commands": commands})

    assert failure(outcome)[0] == "client_error"
    with psycopg.connect(**postgres) as connection:
        assert connection.execute("SELECT count(*) FROM sold").fetchone() == (0,)


@pytest.fixture
def stock():
    """A MariaDB with an empty table, whose user needs a password."""
    if mariadb.programs() is None:
        pytest.skip(mariadb.MISSING)
    port = free_port()
    with mariadb.serving(port) as socket:
        with pymysql.connect(unix_socket=socket, user="root", autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE stock")
            cursor.execute("CREATE TABLE stock.item (id int PRIMARY KEY, n int)")
            cursor.execute("CREATE USER u@'127.0.0.1' IDENTIFIED BY 'canary ''p\"w'")
            cursor.execute("GRANT ALL ON stock.* TO u@'127.0.0.1'")
        login = {"host": "127.0.0.1", "port": port, "user": "u", "password": "canary 'p\"w"}
        yield {"kind": "mysql", "auth": {**login, "dbname": "stock"}}


def test_mysql_is_read_and_written(stock):
    attach = {"attach": {"stock": stock}}
    insert = {**attach, "command": "INSERT INTO stock.item VALUES (1, 5)"}
    good(insert)

    assert good({**attach, "command": "FROM stock.item"})["rows"] == [{"id": 1, "n": 5}]
    assert failure(ran("duckdb", insert))[0] == "db_constraint"
    assert "canary" not in str(good({**attach, "command": "FROM duckdb_databases()"})["rows"])
    wrong = {**stock, "auth": {**stock["auth"], "password": "other-canary"}}
    refused = ran("duckdb", {"attach": {"stock": wrong}, "command": "SELECT 1"})
    assert failure(refused)[0] == "auth"
    assert "canary" not in repr(refused)


# --- Failures ----------------------------------------------------------------------------------

DIES = "SELECT pg_terminate_backend(pg_backend_pid()) AS a"


@pytest.mark.parametrize(
    ("attach", "commands", "kind"),
    [
        ("shop", ["INSERT INTO shop.orders VALUES (1, 1)"], "db_constraint"),
        ("pg", ["INSERT INTO pg.sold VALUES (1, 1), (1, 2)"], "db_constraint"),
        ("pg", ["SELECT * FROM pg.nowhere"], "client_error"),
    ],
)
def test_what_an_attached_database_refuses_has_its_kind(
    attach, commands, kind, shop, sales, loaded
):
    place = {"shop": shop, "pg": sales}[attach]
    config = {**loaded, "attach": {attach: place}, "commands": commands}

    assert failure(ran("duckdb", config))[0] == kind


def test_a_server_that_dies_in_the_middle_takes_nothing_else_with_it(sales, postgres):
    """DuckDB would end the process that closes the connection, and with it the worker."""
    commands = ["INSERT INTO pg.sold VALUES (1, 1)", f"FROM postgres_query('pg', '{DIES}')"]
    outcome = ran("duckdb", {"attach": {"pg": sales}, "commands": commands})

    assert failure(outcome)[0] == "db_connection"
    assert outcome.error.retryable is True
    with psycopg.connect(**postgres) as connection:
        assert connection.execute("SELECT count(*) FROM sold").fetchone() == (0,)


def test_a_task_writes_to_one_database_and_trying_again_would_not_help(sales, loaded):
    commands = ["CREATE TABLE t AS SELECT 1 AS a", "INSERT INTO pg.sold VALUES (1, 1)"]
    outcome = ran("duckdb", {**loaded, "attach": {"pg": sales}, "commands": commands})

    assert failure(outcome)[0] == "client_error"
    assert outcome.error.retryable is False
    assert "single attached database" in failure(outcome)[1]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"user": "locked", "password": "wrong-canary"}, "auth"),
        ({"user": "locked"}, "auth"),
        ({"dbname": "nowhere", "password": "wrong-canary"}, "db_connection"),
        ({"host": "127.0.0.1", "port": 1, "password": "wrong-canary"}, "db_connection"),
    ],
)
def test_s06_a_server_that_refuses_is_told_as_by_kind_postgres(fields, kind, postgres, loaded):
    auth = {**postgres, **fields}
    attach = {"pg": {"kind": "postgres", "auth": auth}}
    outcome = ran("duckdb", {**loaded, "attach": attach, "command": "SELECT 1"})

    assert failure(outcome)[0] == failure(ran("postgres", {"auth": auth, "command": "SELECT 1"}))[0]
    assert failure(outcome)[0] == kind
    assert "canary" not in msgspec.json.encode(outcome).decode()


def test_s06_no_statement_reads_the_password(postgres, loaded):
    auth = {**postgres, "user": "locked", "password": "canary-password"}
    attach = {**loaded, "attach": {"pg": {"kind": "postgres", "auth": auth}}}
    for function in ("duckdb_databases()", "duckdb_secrets()"):
        assert "noetl" in str(rows := good({**attach, "command": f"FROM {function}"})["rows"])
        assert "canary" not in str(rows)
    unredacted = ran("duckdb", {**attach, "command": "FROM duckdb_secrets(redact = false)"})
    assert failure(unredacted)[0] == "client_error"


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_file_that_is_no_database_is_not_worth_another_try(kind, tmp_path, loaded):
    (tmp_path / "x.db").write_text("nonsense" * 1000)
    place = {"kind": kind, "database": str(tmp_path / "x.db")}
    outcome = ran("duckdb", {**loaded, "attach": {"x": place}, "command": "FROM x.t"})

    assert failure(outcome)[0] == "db_connection"
    assert outcome.error.retryable is False


def test_a_file_that_is_not_there_is_not_attached_for_reading(tmp_path):
    place = {"kind": "sqlite", "database": str(tmp_path / "no.db"), "read_only": True}
    kind, message = failure(ran("duckdb", {"attach": {"x": place}, "command": "SELECT 1"}))

    assert (kind, "no.db" in message) == ("not_found", True)


# --- Stopping ----------------------------------------------------------------------------------

BUSY = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE %s AND pid <> %s"
ASLEEP = "FROM postgres_query('pg', 'SELECT 1 AS a FROM pg_sleep(77)')"


def busy(connection, query="%pg_sleep(77)%"):
    [count] = connection.execute(BUSY, [query, connection.info.backend_pid]).fetchone()
    return count


def wait_until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_cancelling_stops_a_query_that_waits_for_postgres(sales, postgres):
    with psycopg.connect(**postgres, autocommit=True) as connection:

        async def work(bench):
            config = {"attach": {"pg": sales}, "command": ASLEEP}
            task = asyncio.create_task(bench.run("duckdb", config))
            await asyncio.to_thread(wait_until, lambda: busy(connection))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        started = time.monotonic()
        on_bench(work)
        assert time.monotonic() - started < 60, "it slept to the end"
        wait_until(lambda: not busy(connection))


def test_a_server_that_dies_while_it_is_written_to_takes_nothing_else_with_it(sales, postgres):
    command = "INSERT INTO pg.sold SELECT i, i FROM range(1000000000) AS t(i)"
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY %'"
    with psycopg.connect(**postgres, autocommit=True) as connection:

        async def work(bench):
            config = {"attach": {"pg": sales}, "command": command}
            task = asyncio.create_task(bench.run("duckdb", config))
            await asyncio.to_thread(wait_until, lambda: busy(connection, "COPY %"))
            connection.execute(kill)
            return await task, await bench.run("duckdb", {**config, "command": "FROM pg.sold"})

        dead, after = on_bench(work)

    assert failure(dead)[0] == "db_connection"
    assert "Trace" not in failure(dead)[1]
    assert dead.error.retryable is True
    assert after.result["rows"] == []


def test_a_query_of_postgres_that_takes_too_long_is_stopped(sales, postgres, loaded):
    config = {**loaded, "attach": {"pg": sales}, "command": ASLEEP, "timeout": "200ms"}

    assert failure(ran("duckdb", config))[0] == "db_timeout"


def test_no_connection_is_left_when_a_task_ends(sales, postgres):
    def others(connection):
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'trial' AND pid <> %s"
        return connection.execute(query, [connection.info.backend_pid]).fetchone()[0]

    good({"attach": {"pg": sales}, "command": "SELECT * FROM pg.sold"})

    with psycopg.connect(**postgres, autocommit=True) as connection:
        wait_until(lambda: others(connection) == 0)


def test_what_a_task_attached_is_gone_when_it_ends(shop, tmp_path):
    """Tasks that have one file open share it, and all that is attached."""
    place = {"database": str(tmp_path / "shared.duckdb")}

    async def work(bench):
        config = {**place, "attach": {"shop": shop}, "command": "FROM shop.orders"}
        async with held(bench, tmp_path, {**place, "commands": ["SELECT 1"]}) as other:
            outcomes = [await bench.run("duckdb", config) for _ in range(2)]
            outcomes.append(await bench.run("duckdb", {**place, "command": "FROM shop.orders"}))
        assert (await other).is_ok
        return outcomes

    first, second, without = on_bench(work)
    assert first.is_ok, first
    assert second.is_ok, second
    assert failure(without)[0] == "client_error"


# --- Where extensions come from ----------------------------------------------------------------


def package(folder, monkeypatch, version):
    """A package of the extension for SQLite that hides the installed one; where its file lies."""
    place = folder / "duckdb_extension_sqlite_scanner"
    path = place / "extensions" / version / "sqlite_scanner.duckdb_extension"
    path.parent.mkdir(parents=True)
    (place / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)
    return path


def test_an_extension_comes_from_its_package():
    with closing(duckdb.connect()) as connection:
        for extension in ("sqlite", "postgres", "mysql"):
            path = extensions.file_of_package(connection, extension)
            assert path is not None, f"pip install {extensions.package_of(extension)}"
    assert f"v{duckdb.__version__}" in path.parts


def test_an_extension_that_somebody_changed_is_not_loaded(shop, tmp_path, monkeypatch):
    with closing(duckdb.connect()) as connection:
        genuine = extensions.file_of_package(connection, "sqlite")
    changed = package(tmp_path / "packages", monkeypatch, f"v{duckdb.__version__}")
    shutil.copyfile(genuine, changed)
    with changed.open("r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)
        file.seek(1_000_000)
        file.write(bytes([byte[0] ^ 1]))

    config = {"attach": {"shop": shop}, "command": "SELECT 1"}
    kind, message = failure(ran("duckdb", config))
    unsigned = ran("duckdb", {**config, "settings": {"allow_unsigned_extensions": True}})

    assert kind == "not_found"
    assert "signature" in message
    assert failure(unsigned) == (kind, message)


def test_a_package_for_another_duckdb_is_left_alone(tmp_path, monkeypatch):
    package(tmp_path, monkeypatch, "v0.0.1").touch()

    with closing(duckdb.connect()) as connection:
        assert extensions.file_of_package(connection, "sqlite") is None


def test_an_extension_that_is_nowhere_is_named_with_what_to_do():
    kind, message = failure(ran("duckdb", {"extensions": ["no_such"], "command": "SELECT 1"}))

    assert kind == "not_found"
    assert '"no_such"' in message
    assert "pip install duckdb-extension-no-such" in message
    assert f"`INSTALL no_such` in DuckDB v{duckdb.__version__}" in message
