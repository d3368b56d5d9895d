"""What can go wrong with kind transfer, how it is stopped, and what it costs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import duckdb
import psycopg
import pytest

from tests.stopwatch import PATIENCE, Stopwatch
from tests.tools.running import failure, on_bench, ran

ROWS = [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]


FILE = {"kind": "file", "path": "o.json"}


def errors():
    nowhere = {"host": "127.0.0.1", "port": 1, "user": "u", "password": "canary-password"}
    here = {"kind": "http", "url": "URL/records"}
    table = {"kind": "sqlite", "database": "t.db", "table": "t"}
    return [
        ({"kind": "postgres", "auth": nowhere, "table": "t"}, FILE, "db_connection"),
        ({"kind": "postgres", "auth": "unknown", "table": "t"}, FILE, "auth"),
        ({"kind": "postgres", "table": "t"}, FILE, "auth"),
        ({"kind": "duckdb", "database": "no.db", "table": "t"}, FILE, "not_found"),
        ({"kind": "file", "path": "no.csv"}, FILE, "not_found"),
        ({"kind": "file", "path": "bad.json"}, FILE, "parse"),
        ({"kind": "file", "path": "what"}, FILE, "client_error"),
        ({"kind": "http", "url": "URL/status/404"}, FILE, "not_found"),
        ({"kind": "http", "url": "URL/status/429"}, FILE, "rate_limit"),
        ({"kind": "http", "url": "URL/status/503"}, FILE, "server_error"),
        ({"kind": "http", "url": "URL/status/400"}, FILE, "client_error"),
        ({"kind": "http", "url": "URL/status/401"}, FILE, "auth"),
        ({"kind": "http", "url": "http://127.0.0.1:1/"}, FILE, "connection"),
        ({"kind": "http", "url": "URL/records", "records": "nowhere"}, FILE, "schema"),
        (here, table, "not_found"),
        (here, table | {"create": True, "mode": "upsert"}, "client_error"),
        (here, {"kind": "http", "url": "URL/status/500"}, "server_error"),
        (here | {"auth": "unknown"}, FILE, "auth"),
    ]


@pytest.mark.parametrize(("source", "target", "kind"), errors())
def test_each_failure_has_its_kind(source, target, kind, tmp_path, monkeypatch, web):
    monkeypatch.chdir(tmp_path)
    web.records[:] = ROWS
    (tmp_path / "bad.json").write_text('{"a": ')
    ends = [
        dict(end, url=end["url"].replace("URL", web.url)) if "url" in end else end
        for end in (source, target)
    ]

    outcome = ran("transfer", {"source": ends[0], "target": ends[1]})

    assert failure(outcome)[0] == kind, outcome
    assert "canary" not in repr(outcome)


def test_a_lock_that_is_held_and_a_column_that_is_not_there(tmp_path, web):
    web.records[:] = ROWS
    database = tmp_path / "t.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (id int)")
        connection.commit()
    config = {
        "source": {"kind": "http", "url": f"{web.url}/records"},
        "target": {"kind": "sqlite", "database": str(database), "table": "t"},
    }

    kind, message = failure(ran("transfer", config))

    assert kind == "schema"
    assert '"name"' in message
    assert "`mapping`" in message


@pytest.mark.parametrize("end", ["source", "target"])
def test_cancelling_stops_it_at_once_and_commits_nothing_more(end, postgres, web, tmp_path):
    endless = {
        "kind": "postgres",
        "auth": postgres,
        "command": "SELECT generate_series(1, 1000000000) AS id",
    }
    source = endless if end == "source" else {"kind": "http", "url": f"{web.url}/slow"}
    target = {"kind": "duckdb", "database": str(tmp_path / "t.db"), "table": "t", "create": True}

    async def work(bench):
        config = {"source": source, "target": target, "batch_size": 1000}
        task = asyncio.create_task(bench.run("transfer", config))
        while end == "source" and "batches" not in bench.log.text():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        watch = Stopwatch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch.seconds()

    assert on_bench(work) < 1
    with psycopg.connect(**postgres, autocommit=True) as connection:
        busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%'"
        deadline = time.monotonic() + PATIENCE
        while connection.execute(busy).fetchone() != (0,):
            assert time.monotonic() < deadline, "the server is still copying"


# --- Size --------------------------------------------------------------------------------------

MEASURED = """
import json, re, sys
from tests.tools.running import ran
from tests.stopwatch import Stopwatch
source, target = json.loads(sys.argv[1]), json.loads(sys.argv[2])
outcome = ran("transfer", {"source": source, "target": target}, action_id=sys.argv[3])
assert outcome.is_ok, outcome
# Not `ru_maxrss`: that begins with what the process was forked from.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""


def megabytes(source, target, action="a"):
    """The memory that a transfer took, measured in a process of its own."""
    words = [sys.executable, "-c", MEASURED, json.dumps(source), json.dumps(target), action]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def test_memory_stays_bounded(postgres, tmp_path):
    """120 MB more of records; held in memory they would take at least that."""

    def source(rows):
        series = f"generate_series(1, {rows}) AS n"
        command = f"SELECT n AS id, repeat('x', 2000) AS text FROM {series}"
        return {"kind": "postgres", "auth": postgres, "command": command}

    target = {"kind": "file", "path": str(tmp_path / "o.csv")}
    few, many = (megabytes(source(rows), target) for rows in (20_000, 80_000))

    assert many < few + 75, (few, many)


@pytest.mark.long
def test_a_million_rows_go_to_duckdb_and_back_in_bounded_memory(postgres, tmp_path):
    rows = 1_000_000
    columns = "id int PRIMARY KEY, amount numeric(12,2), name text, moment timestamptz"
    series = f"generate_series(1, {rows}) AS n"
    values = "n, n * 1.25, 'name ' || n, timestamptz '2024-01-01' + n * interval '1 s'"
    made = f"SELECT {values} FROM {series}"
    with psycopg.connect(**postgres) as connection:
        connection.execute(f"CREATE TABLE one ({columns})")
        connection.execute(f"CREATE TABLE two ({columns})")
        connection.execute(f"INSERT INTO one {made}")
    server = {"kind": "postgres", "auth": postgres}
    file = {"kind": "duckdb", "database": str(tmp_path / "t.duckdb"), "table": "t"}
    few = {"kind": "postgres", "auth": postgres, "command": "SELECT * FROM one LIMIT 1000"}

    least = megabytes(few, {**file, "table": "few", "create": True})
    there = megabytes({**server, "table": "one"}, {**file, "create": True}, "there")
    back = megabytes(file, {**server, "table": "two"}, "back")

    with psycopg.connect(**postgres) as connection:
        same = "SELECT count(*) FROM one JOIN two USING (id, amount, name, moment)"
        assert connection.execute(same).fetchone() == (rows,)
    with closing(duckdb.connect(str(tmp_path / "t.duckdb"))) as connection:
        found = connection.execute("SELECT count(*), sum(amount) FROM t").fetchall()
    assert [(int(n), float(total)) for n, total in found] == [(rows, 1.25 * rows * (rows + 1) / 2)]
    assert max(there, back) < least + 300, (least, there, back)
