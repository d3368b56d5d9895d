"""kind: postgres. Its credentials, types, errors, COPY, and effects that happen once."""

from __future__ import annotations

import asyncio
import base64
import resource
import sys
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from noetl.tools.postgres.connections import Connections
from noetl.tools.rules import Rules
from noetl.tools.sql.postgres import parameters
from noetl.tools.tables.files import converted
from tests.faults.silence import proxy_to
from tests.stopwatch import PATIENCE
from tests.tools.running import failure, on_bench, ran

CANARY = "canary-password"


def good(postgres, config, **context):
    outcome = ran("postgres", {"auth": postgres, **config}, **context)
    assert outcome.is_ok, outcome
    return outcome.result


def bad(postgres, config, **context):
    return ran("postgres", {"auth": postgres, **config}, **context)


# --- Credentials -------------------------------------------------------------------------------


def test_a_credential_may_be_written_in_every_usual_way(postgres, postgres_server):
    host = str(postgres_server.pgdata)
    encoded = host.replace("/", "%2F")
    for fields in (
        {"host": host, "user": "locked", "password": CANARY, "dbname": "trial"},
        {"db_host": host, "db_user": "locked", "db_password": CANARY, "db_name": "trial"},
        {"host": host, "port": 5432, "username": "locked", "password": CANARY, "database": "trial"},
        {"dsn": f"host={host} user=locked password={CANARY} dbname=trial"},
        {"dsn": f"postgresql://locked:{CANARY}@{encoded}/trial"},
        {"url": f"postgresql+psycopg://locked:{CANARY}@/trial?host={encoded}"},
        {"dsn": f"postgresql://locked:wrong@{encoded}/trial", "password": CANARY},
    ):
        for auth in (fields, "pg_main"):
            outcome = ran(
                "postgres",
                {"auth": auth, "command": "SELECT current_user AS me"},
                settings={"credentials": {"pg_main": fields}},
            )
            assert outcome.is_ok, (fields, outcome)
            assert outcome.result["rows"] == [{"me": "locked"}]


def test_an_address_may_name_several_hosts():
    address = "postgresql+psycopg://u:p%40@h1:5432,h2:5433/db?target_session_attrs=read-write"

    assert parameters({"dsn": address}) == {
        "host": "h1,h2",
        "port": "5432,5433",
        "user": "u",
        "password": "p@",
        "dbname": "db",
        "target_session_attrs": "read-write",
    }
    assert parameters({"dsn": "postgresql://h1,h2/db"}) == {"host": "h1,h2", "dbname": "db"}


@pytest.mark.parametrize(
    ("change", "kind", "retryable"),
    [
        ({"user": "locked", "password": "wrong-canary"}, "auth", False),
        ({"user": "locked"}, "auth", False),
        ({"user": "nobody"}, "auth", False),
        ({"dbname": "nowhere"}, "db_connection", False),
        ({"host": "/nowhere"}, "db_connection", True),
        ({"host": "127.0.0.1", "port": 1}, "db_connection", True),
    ],
)
def test_s06_a_connection_that_is_refused_says_why_and_no_secret(postgres, change, kind, retryable):
    outcome = bad({**postgres, **change}, {"command": "SELECT 1"})

    assert (outcome.error.kind, outcome.error.retryable) == (kind, retryable)
    assert "canary" not in msgspec.json.encode(outcome).decode()


@pytest.mark.parametrize(
    "auth",
    [
        None,
        {},
        {"password": CANARY},
        {"dsn": f"mysql://me:{CANARY}@host/db"},
        {"dsn": f"password={CANARY} nonsense"},
        "unknown",
    ],
)
def test_s06_a_credential_that_says_nothing_is_an_auth_error_without_its_values(auth):
    outcome = ran("postgres", {"auth": auth, "command": "SELECT 1"})

    assert failure(outcome)[0] == "auth"
    assert CANARY not in msgspec.json.encode(outcome).decode()


# --- Types -------------------------------------------------------------------------------------


def test_types_survive_the_way_out(postgres):
    command = """
SELECT 9223372036854775807 AS big, 1.10::numeric AS n, 0.1234567890123456789::numeric AS exact,
       12345678901234567890::numeric AS huge, 1.5::float8 AS f, true AS b, NULL AS nothing,
       '2024-01-02 03:04:05.678+02'::timestamptz AT TIME ZONE 'UTC' AS local,
       '2024-01-02 03:04:05+00'::timestamptz AS moment, 'infinity'::timestamptz AS forever,
       '2024-01-02'::date AS day, '0044-03-15 BC'::date AS ides, '03:04:05'::time AS clock,
       '1 month 2 days 3 hours'::interval AS span, '\\xdeadbeef'::bytea AS bytes,
       '00000000-0000-0000-0000-000000000001'::uuid AS id,
       '{"a": [1, null]}'::jsonb AS doc, '[1]'::json AS list, ARRAY[1, 2] AS numbers,
       ARRAY[['a', 'b']] AS texts, '10.0.0.1'::inet AS address, '[1,5)'::int4range AS range
"""
    [row] = good(postgres, {"commands": ["SET LOCAL TimeZone = 'UTC'", command]})["rows"]

    assert row == {
        "big": 2**63 - 1,
        "n": 1.1,
        "exact": "0.1234567890123456789",
        "huge": "12345678901234567890",
        "f": 1.5,
        "b": True,
        "nothing": None,
        "local": "2024-01-02T01:04:05.678",
        "moment": "2024-01-02T03:04:05Z",
        "forever": "infinity",
        "day": "2024-01-02",
        "ides": "0044-03-15 BC",
        "clock": "03:04:05",
        "span": "P1M2DT3H",
        "bytes": base64.b64encode(b"\xde\xad\xbe\xef").decode(),
        "id": "00000000-0000-0000-0000-000000000001",
        "doc": {"a": [1, None]},
        "list": [1],
        "numbers": [1, 2],
        "texts": [["a", "b"]],
        "address": "10.0.0.1",
        "range": "[1, 5)",
    }


def test_a_moment_keeps_the_offset_of_the_session(postgres):
    commands = ["SET LOCAL TimeZone = 'Asia/Kolkata'", "SELECT '2024-01-02Z'::timestamptz AS t"]

    assert good(postgres, {"commands": commands})["rows"] == [{"t": "2024-01-02T05:30:00+05:30"}]


TABLE = """CREATE TABLE w (id int PRIMARY KEY, doc jsonb, list jsonb, tags text[], at timestamptz,
                           n numeric, "a%s b" text)"""
ROW = {
    "id": 1,
    "doc": {"a": [1]},
    "list": [1, "x"],
    "tags": ["a", "b"],
    "at": "2024-01-02T03:04:05Z",
    "n": "12345678901234567890.5",
    "a%s b": "100%",
}


@pytest.mark.parametrize("bulk", ["insert", "copy"])
def test_types_survive_the_way_in(postgres, bulk):
    good(postgres, {"command": TABLE})
    written = good(postgres, {"table": "public.w", "rows": [ROW], "bulk": bulk})

    assert written["row_count"] == 1
    [row] = good(postgres, {"commands": ["SET LOCAL TimeZone = 'UTC'", "SELECT * FROM w"]})["rows"]
    assert row == ROW


@pytest.mark.parametrize("bulk", ["insert", "copy"])
def test_numbers_are_the_same_however_many_rows_are_written(postgres, bulk):
    """From 500 rows on they are copied, where a whole 2.0 was refused and true was `t`."""
    good(postgres, {"command": "CREATE TABLE alike (n int, t text, a text[])"})
    rows = [
        {"n": 2.0, "t": True, "a": [True, {"b": 1}]},
        {"n": -3, "t": 2.0, "a": [2.5, None]},
        {"n": None, "t": 2.5, "a": []},
    ]

    good(postgres, {"table": "alike", "rows": rows, "bulk": bulk})

    assert good(postgres, {"command": "SELECT * FROM alike"})["rows"] == [
        {"n": 2, "t": "true", "a": ["true", '{"b":1}']},
        {"n": -3, "t": "2", "a": ["2.5", None]},
        {"n": None, "t": "2.5", "a": []},
    ]


AGAIN = {
    "bytea": r"'\x00ff10'",
    "bytea[]": r"ARRAY['\x00ff', NULL]::bytea[]",
    "int[]": "'{{1,2},{3,4}}'",
    "numeric[]": "ARRAY[1.5, 12345678901234567890.5]",
    "jsonb[]": """ARRAY['{"a": [1]}', '2', '"x"', '[3]']::jsonb[]""",
    "uuid[]": "ARRAY['8400b7f8-5f0e-4b0c-9c6e-0d5f6b1a2c3d']::uuid[]",
    "timestamptz[]": "ARRAY['2024-05-06 07:08:09.123456+02']::timestamptz[]",
    "interval": "'-1 month 2 days -03:04:05.5'",
    "bool[]": "ARRAY[true, false, NULL]",
}


@pytest.mark.parametrize("bulk", ["insert", "copy"])
def test_what_was_read_can_be_written_again(postgres, bulk):
    columns = ", ".join(f'"{type_}" {type_}' for type_ in AGAIN)
    made = f"CREATE TABLE one ({columns}); CREATE TABLE two (LIKE one)"
    good(postgres, {"command": f"{made}; INSERT INTO one VALUES ({', '.join(AGAIN.values())})"})
    read = good(postgres, {"command": "SELECT * FROM one"})

    good(postgres, {"table": "two", "rows": read["rows"], "bulk": bulk})

    same = "SELECT one::text = two::text AS same, two::text FROM one, two"
    assert good(postgres, {"command": same})["rows"][0]["same"]


def test_bytes_can_be_written_in_hex_and_what_are_no_bytes_is_refused(postgres):
    good(postgres, {"command": "CREATE TABLE t (b bytea)"})
    good(postgres, {"table": "t", "rows": [{"b": r"\xdeadbeef"}]})

    [row] = good(postgres, {"command": "SELECT b FROM t"})["rows"]
    assert base64.b64decode(row["b"]) == b"\xde\xad\xbe\xef"
    none = bad(postgres, {"table": "nowhere", "rows": [{"b": "x"}]}).error
    assert (none.kind, none.code) == ("client_error", "42P01")
    assert 'There is no table "nowhere". Make it in the same task' in none.message

    kind, message = failure(bad(postgres, {"table": "t", "rows": [{"b": "no bytes!"}]}))[:2]
    assert kind == "schema"
    assert '"b"' in message
    assert "base64" in message


def test_lists_and_mappings_are_bound_as_arrays_and_documents(postgres):
    command = "SELECT 2 = ANY(%(ids)s) AS a, %(doc)s -> 'x' AS b, %(docs)s -> 0 AS c"
    params = {"ids": [1, 2], "doc": {"x": 1}, "docs": [{"y": 1}]}

    assert good(postgres, {"command": command, "params": params})["rows"] == [
        {"a": True, "b": 1, "c": {"y": 1}}
    ]


def test_t24_a_nul_in_a_value_is_a_schema_error(postgres):
    config = {"command": "SELECT %(x)s::text AS x", "params": {"x": "a\0"}}

    assert failure(bad(postgres, config))[0] == "schema"


# --- Statements --------------------------------------------------------------------------------


def test_blocks_functions_and_notices(postgres):
    command = """
DO $$ BEGIN RAISE NOTICE 'hello; %', 1; END $$;
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE SQL BEGIN ATOMIC SELECT n; SELECT n * 2; END;
SELECT twice(21) AS answer;
"""

    async def work(bench):
        outcome = await bench.run("postgres", {"auth": postgres, "command": command})
        assert outcome.is_ok, outcome
        return outcome.result["rows"], bench.log.text()

    assert on_bench(work) == ([{"answer": 42}], "NOTICE: hello; 1\n")


def test_schemas_are_looked_through(postgres):
    good(postgres, {"command": 'CREATE SCHEMA "my S"; CREATE TABLE "my S".t AS SELECT 7 AS x'})

    assert good(postgres, {"command": "SELECT x FROM t", "schema": "my S"})["rows"] == [{"x": 7}]
    config = {"command": "SELECT x FROM t", "schema": ["public", "my S"]}
    assert good(postgres, config)["rows"] == [{"x": 7}]


def test_isolation_is_what_the_task_asks_for(postgres):
    config = {"command": "SHOW transaction_isolation", "isolation": "repeatable_read"}

    assert good(postgres, config)["rows"] == [{"transaction_isolation": "repeatable read"}]


def test_without_a_transaction_each_statement_stands_alone(postgres):
    good(postgres, {"commands": ["CREATE TABLE v (a int)", "VACUUM v"], "transaction": False})
    bad(postgres, {"commands": ["INSERT INTO v VALUES (1)", "SELEC"], "transaction": False})

    assert good(postgres, {"command": "SELECT count(*) AS n FROM v"})["rows"] == [{"n": 1}]


# --- Failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "kind", "state"),
    [
        ("SELEC 1", "client_error", "42601"),
        ("SELECT * FROM nope", "client_error", "42P01"),
        ("SELECT 1 / 0", "client_error", "22012"),
        ("CREATE TABLE k (a int NOT NULL); INSERT INTO k VALUES (NULL)", "db_constraint", "23502"),
        ("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", "db_deadlock", "40001"),
        ("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", "db_connection", "53300"),
        ("SET ROLE locked; CREATE TABLE public.k (a int)", "client_error", "42501"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "db_connection", "57P01"),
    ],
)
def test_errors_have_their_kind_and_state(postgres, command, kind, state):
    outcome = bad(postgres, {"command": command})

    assert outcome.error.kind == kind
    assert outcome.error.code == state
    assert outcome.pg == {"code": state, "sqlstate": state}
    assert outcome.error.retryable == (kind in ("db_deadlock", "db_connection"))


def test_an_error_shows_the_place_in_the_statement(postgres):
    outcome = bad(postgres, {"command": "SELECT 1 AS one, nmae FROM pg_class"})

    assert outcome.error.details == {
        "sql": "LINE 1: SELECT 1 AS one, nmae FROM pg_class\n                         ^"
    }


def test_a_real_deadlock_is_one_and_only_one_task_suffers(postgres):
    good(postgres, {"command": "CREATE TABLE d AS SELECT 1 AS id, 0 AS n UNION SELECT 2, 0"})

    async def work(bench):
        def task(first, second):
            update = "UPDATE d SET n = n + 1 WHERE id = {}; SELECT pg_sleep(0.5)"
            commands = [update.format(first), update.format(second)]
            return bench.run("postgres", {"auth": postgres, "commands": commands})

        return await asyncio.gather(task(1, 2), task(2, 1))

    outcomes = on_bench(work)
    assert sorted(one.error.kind if one.error else "ok" for one in outcomes) == [
        "db_deadlock",
        "ok",
    ]


def test_a_lock_that_is_not_given_in_time_is_a_db_timeout(postgres):
    good(postgres, {"command": "CREATE TABLE d (id int)"})

    async def work(bench):
        holder = asyncio.create_task(
            bench.run("postgres", {"auth": postgres, "command": "LOCK TABLE d; SELECT pg_sleep(5)"})
        )
        await asyncio.sleep(0.4)
        config = {"auth": postgres, "command": "SELECT * FROM d", "timeout": "200ms"}
        outcome = await bench.run("postgres", config)
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
        return outcome

    assert failure(on_bench(work))[0] == "db_timeout"


def test_t07_a_cancelled_statement_is_gone_from_the_server(postgres):
    async def work(bench):
        task = asyncio.create_task(
            bench.run("postgres", {"auth": postgres, "command": "SELECT pg_sleep(77)"})
        )
        await asyncio.sleep(0.4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        command = "SELECT query FROM pg_stat_activity WHERE query LIKE '%sleep(77)%' " + (
            "AND state = 'active' AND pid <> pg_backend_pid()"
        )
        return (await bench.run("postgres", {"auth": postgres, "command": command})).result

    assert on_bench(work)["rows"] == []


def is_converting():
    """Whether a thread makes a table file."""
    frames: list[FrameType | None] = list(sys._current_frames().values())
    while frames:
        frame = frames.pop()
        if frame is not None:
            if frame.f_code is converted.__code__:
                return True
            frames.append(frame.f_back)
    return False


def test_t07_a_cancelled_task_makes_no_table_any_more(postgres):
    rows = "SELECT n, md5(n::text) AS text FROM generate_series(1, 2000000) AS n"
    config = {"auth": postgres, "command": rows, "result_as": "parquet"}

    async def work(bench):
        task = asyncio.create_task(bench.run("postgres", config))
        async with asyncio.timeout(PATIENCE):
            while not is_converting():
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return is_converting()

    assert on_bench(work) is False


# --- Connections -------------------------------------------------------------------------------


def test_connections_are_used_again_and_a_dead_one_is_replaced_unnoticed(postgres):
    async def work(bench):
        async def pid():
            config = {"auth": postgres, "command": "SELECT pg_backend_pid() AS pid"}
            outcome = await bench.run("postgres", config)
            assert outcome.is_ok, outcome
            return outcome.result["rows"][0]["pid"]

        first, second = await pid(), await pid()
        ran_elsewhere = {**postgres, "application_name": "other"}
        kill = {"auth": ran_elsewhere, "command": f"SELECT pg_terminate_backend({first}, 5000)"}
        await bench.run("postgres", kill)
        return first, second, await pid()

    first, second, third = on_bench(work)
    assert first == second != third


def test_a_connection_whose_task_is_cancelled_while_it_is_given_back_is_closed(postgres):
    async def work():
        connections = Connections()
        connection = await connections.take(postgres, fresh=True, seconds=None)
        giving = asyncio.create_task(connections.give_back(postgres, connection))
        await asyncio.sleep(0)
        giving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving
        return connection.closed

    assert asyncio.run(work())


# --- COPY --------------------------------------------------------------------------------------


def test_many_rows_go_by_copy_and_are_all_there(postgres):
    good(postgres, {"command": "CREATE TABLE m (id int PRIMARY KEY, t text)"})
    rows = [{"id": n, "t": f"t\t{n}\n\\"} for n in range(5000)]

    assert good(postgres, {"table": "m", "rows": rows})["row_count"] == 5000
    assert good(postgres, {"command": "SELECT t FROM m WHERE id = 7"})["rows"] == [
        {"t": "t\t7\n\\"}
    ]
    assert failure(bad(postgres, {"table": "m", "rows": rows}))[0] == "db_constraint"


def test_of_two_tasks_that_copy_to_one_file_each_writes_a_whole_one(postgres, tmp_path):
    out = tmp_path / "out.csv"

    async def work(bench):
        texts = [f"SELECT {n} FROM generate_series(1, 100000)" for n in (1, 2)]
        copy = {"target": str(out), "header": False}
        configs = [{"auth": postgres, "command": text, "copy": copy} for text in texts]
        return await asyncio.gather(*(bench.run("postgres", config) for config in configs))

    assert [outcome.is_ok for outcome in on_bench(work)] == [True, True]
    assert out.read_text() in ("1\n" * 100_000, "2\n" * 100_000)
    assert list(tmp_path.iterdir()) == [out]


def test_files_are_copied_in_and_out(postgres, tmp_path):
    (tmp_path / "in.csv").write_text("id;t\n1;a\n2;-\n")
    good(postgres, {"command": "CREATE TABLE m (id int, t text)"})
    copy = {"source": str(tmp_path / "in.csv"), "delimiter": ";", "null_as": "-"}
    assert good(postgres, {"table": "m", "copy": copy})["row_count"] == 2

    out = tmp_path / "deep" / "out.csv"
    config = {"command": "SELECT id * 10 AS x, t FROM m ORDER BY 1", "copy": {"target": str(out)}}
    assert good(postgres, config)["row_count"] == 2
    assert out.read_text() == "x,t\n10,a\n20,\n"
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"table": "m", "copy": {"source": "nope.csv"}}, "not_found"),
        ({"table": "m", "copy": {"source": "s3://bucket"}}, "client_error"),
        ({"table": "m", "copy": {"source": "ftp://host/x"}}, "auth"),
        ({"table": "m", "copy": {"source": {"_ref": {"key": "k"}}}}, "client_error"),
        ({"command": "SELECT 1", "copy": {"source": "x.csv"}}, "client_error"),
        ({"table": "nope", "copy": {"target": "x.csv"}}, "client_error"),
        ({"table": "m", "rows": [{"id": 1}], "bulk": "copy", "mode": "ignore"}, "client_error"),
    ],
)
def test_a_copy_that_cannot_be_is_refused(postgres, config, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good(postgres, {"command": "CREATE TABLE m (id int)"})

    assert failure(bad(postgres, config))[0] == kind
    assert list(tmp_path.iterdir()) == []


# --- Once --------------------------------------------------------------------------------------


def test_t06_an_effect_that_happened_is_not_repeated_and_yields_the_same(postgres):
    good(postgres, {"command": "CREATE TABLE e (n serial)"})
    config = {"command": "INSERT INTO e DEFAULT VALUES RETURNING n", "effect": "once"}

    first = good(postgres, config, action_id="a")
    again = good(postgres, config, action_id="a", attempt=2)
    other = good(postgres, config, action_id="b")

    assert first == again
    assert (first["rows"], other["rows"]) == ([{"n": 1}], [{"n": 2}])


def test_t06_a_failed_effect_leaves_no_mark_and_two_at_once_are_one(postgres):
    good(postgres, {"command": "CREATE TABLE e (n int)"})
    config = {"auth": postgres, "effect": "once"}

    async def work(bench):
        broken = {**config, "commands": ["INSERT INTO e VALUES (1)", "SELECT 1 / 0"]}
        assert not (await bench.run("postgres", broken)).is_ok
        fine = {**config, "commands": ["INSERT INTO e VALUES (1)", "SELECT pg_sleep(0.2)"]}
        return await asyncio.gather(*(bench.run("postgres", fine) for _ in range(4)))

    outcomes = on_bench(work)
    assert all(one.is_ok for one in outcomes)
    assert good(postgres, {"command": "SELECT count(*) AS c FROM e"})["rows"] == [{"c": 1}]


def test_an_effect_that_happens_once_needs_a_transaction(postgres):
    good(postgres, {"command": "CREATE TABLE e (n int)"})
    config = {"command": "INSERT INTO e VALUES (1)", "effect": "once", "transaction": False}
    outcome = ran("postgres", {"auth": postgres, **config})

    assert failure(outcome)[0] == "client_error"
    assert "needs the transaction" in failure(outcome)[1]
    assert good(postgres, {"command": "SELECT count(*) AS c FROM e"})["rows"] == [{"c": 0}]


# --- What is held in memory --------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "SELECT generate_series(1, 100000000) AS n, repeat('x', 100) AS x",
        "WITH a AS (SELECT generate_series(1, 100000000) AS n) SELECT n FROM a",
    ],
)
def test_s30_the_rows_of_a_query_are_counted_while_they_come(postgres, command):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rules = Rules(max_response_bytes=4 * 1024 * 1024)

    async def work(bench):
        refused = await bench.run("postgres", {"auth": postgres, "command": command})
        # The connection is used again, and the statement is gone from the server.
        after = await bench.run("postgres", {"auth": postgres, "command": "SELECT 1 AS one"})
        return refused, after

    refused, after = on_bench(work, rules=rules)

    assert (refused.error.kind, refused.error.code) == ("client_error", "too_large")
    assert after.result["rows"] == [{"one": 1}]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_what_a_query_yields_is_the_same_however_it_is_read(postgres):
    commands = [
        "SELECT 1 AS a, 'x' AS b WHERE false",
        "TABLE pg_namespace LIMIT 0",
        "VALUES (1, 2)",
    ]
    first, second, third = (good(postgres, {"command": command}) for command in commands)

    assert (first["rows"], first["columns"], first["row_count"]) == ([], ["a", "b"], 0)
    assert "nspname" in second["columns"]
    assert third["rows"] == [{"column1": 1, "column2": 2}]
    made = good(postgres, {"commands": ["SELECT 7 AS n INTO TEMP made", "SELECT n FROM made"]})
    assert made["rows"] == [{"n": 7}]


def test_a_kept_connection_whose_other_end_vanished_is_replaced(postgres, postgres_server):
    """A task that takes it has done nothing yet, so it begins again on a new one."""
    with proxy_to(Path(postgres_server.pgdata) / ".s.PGSQL.5432") as proxy:
        auth = postgres | {"host": "127.0.0.1", "port": str(proxy.port)}
        config = {"auth": auth, "command": "SELECT pg_backend_pid() AS pid"}

        async def two(bench):
            first = await bench.run("postgres", config)
            proxy.go_silent()
            proxy.let_through()
            async with asyncio.timeout(PATIENCE):
                return first, await bench.run("postgres", config)

        first, second = on_bench(two)

    assert [first.status, second.status] == ["ok", "ok"]
    assert first.result["rows"] != second.result["rows"]
