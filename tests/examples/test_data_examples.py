"""The examples of data that is too large to be passed on as a value."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import duckdb

from examples.demo_server import PORT
from noetl.model.events import RetryStarted, TaskDone
from noetl.tools import sqlalchemy
from tests.examples.system import Bench, Run, example, on_bench, ran

DEMO_URL = f"http://127.0.0.1:{PORT}"


def test_table_files_pass_a_table_on_by_reference(tmp_path):
    done = ran(example("table_files"), {"database": f"{tmp_path}/r.db"})

    assert done.result == {
        "warmest": {"sensor": "sensor-0", "readings": 25_000, "celsius": 99.6},
        "file": {"magic": "PAR1", "rows": 100_000},
        "kept": 100_000,
        "first": [
            {"id": 0, "sensor": "sensor-0", "celsius": 0.0},
            {"id": 1, "sensor": "sensor-1", "celsius": 3.7},
        ],
    }
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection:
        assert connection.execute("SELECT count(*) FROM readings").fetchone() == (100_000,)
    [made] = [fact for fact in done.of(TaskDone) if fact.task == "start_task"]
    assert made.outcome.result["_ref"]["format"] == "parquet"
    assert "rows" not in made.outcome.result


def test_transfer_goes_on_behind_the_last_batch_when_the_service_asked_to_wait(shop, tmp_path):
    text = example("transfer").replace(DEMO_URL, shop.url)
    places = {"warehouse": f"{tmp_path}/s.duckdb", "target": f"{tmp_path}/p.csv"}

    done = ran(text, places)

    assert done.result == {"rooms": 430, "handed_on": 10}
    assert len(done.of(RetryStarted)) == 1
    first, second = (fact for fact in done.of(TaskDone) if fact.step == "start")
    assert first.outcome.error.kind == "rate_limit"
    assert second.outcome.result == {"records": 430, "batches": 5, "skipped": 200}
    # With `more` a page may be short, so those that were written are read again, and left out.
    assert len(shop.paths("GET")) == 3 + 5
    with closing(duckdb.connect(places["warehouse"])) as connection:
        found = connection.execute("SELECT count(*), sum(place) FROM rooms").fetchall()
    assert found == [(430, sum(range(430)))]
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[:2] == ["room,place", "rooms-0,0"]


def test_download_reads_a_body_that_was_kept_by_reference(shop):
    done = ran(example("download").replace(DEMO_URL, shop.url))

    cents = sum(0 if n % 50 == 0 else 100 + n for n in range(1, 251))
    assert done.result["begins"] == '{"orders":'
    assert (done.result["orders"], done.result["total"]) == (250, cents / 100)
    [fetched] = [fact for fact in done.of(TaskDone) if fact.step == "start"]
    assert fetched.outcome.result["data"]["_ref"]["size"] == done.result["size"]


def test_databases_of_several_makers_get_the_same_prices(tmp_path):
    workload = {"places": f"sqlite:///{tmp_path}/"}

    first, again = (ran(example("databases"), workload) for _ in range(2))

    assert first.result == again.result
    assert set(first.result) == {tool.kind for tool in sqlalchemy.TOOLS}
    for kind in first.result:
        with closing(sqlite3.connect(tmp_path / f"{kind}.db")) as connection:
            found = connection.execute("SELECT item, cents FROM prices ORDER BY item").fetchall()
        assert found == [("hammer", 1250), ("saw", 1990)]


def test_attached_databases_are_joined_and_written(postgres, tmp_path):
    async def work(bench: Bench) -> Run:
        await bench.system.keys.put("warehouse", "postgres", postgres)
        return await bench.run(example("attached_databases"), {"registry": f"{tmp_path}/s.db"})

    done = on_bench(work)

    assert done.result == {
        "reached": [{"name": "Airport", "sold": 100.0}, {"name": "Station", "sold": 60.5}]
    }
