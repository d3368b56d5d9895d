"""L7, T45: what earlier versions recorded is read, shown and finished by the code of today."""

from __future__ import annotations

import asyncio
import json
import lzma
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.control.integrity import problems
from noetl.engine.evolve import evolve
from noetl.model.events import decode
from noetl.model.state import ExecutionState
from noetl.store.base import Store
from noetl.store.postgres import PostgresStore
from noetl.store.postgres.schema import MIGRATIONS
from noetl.store.sqlite.store import SqliteStore
from tests.server.processes import serving, working

HERE = Path(__file__).parent
VERSIONS = sorted(path.name.removesuffix(".json") for path in HERE.glob("*.json"))
RESULTS = {"asks": True, "later": "later", "slow": 136, "held": 136}
"""What the executions that were left behind come to: 136 is the sum of 1 to 16."""


class History:
    def __init__(self, version: str, folder: Path) -> None:
        told = json.loads((HERE / f"{version}.json").read_text())
        self.ended: dict[str, dict[str, Any]] = told["ended"]
        self.left: dict[str, str] = told["left"]
        self.folder = folder
        self.database = folder / "noetl.db"
        self.database.write_bytes(lzma.decompress((HERE / f"{version}.db.xz").read_bytes()))
        for name, body in told["bodies"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(bytes.fromhex(body))


@pytest.fixture(params=VERSIONS)
def history(request: pytest.FixtureRequest, tmp_path: Path) -> History:
    return History(request.param, tmp_path)


def shown(document: dict[str, Any]) -> dict[str, Any]:
    """What any version says of an ended execution."""
    error = document["error"]
    return {
        "status": document["status"],
        "workload": document["workload"],
        "ctx": document["ctx"],
        "result": document["result"],
        "error": (error["kind"], error["message"]) if error is not None else None,
        "steps": [
            {key: step[key] for key in ("step", "status", "runs", "attempts", "started_at")}
            for step in document["steps"]
        ],
        "times": (document["start_time"], document["end_time"]),
    }


def test_there_are_histories() -> None:
    assert VERSIONS


def test_t45_a_database_of_an_earlier_version_is_served_and_what_was_left_goes_on(
    history: History,
) -> None:
    database = {"NOETL_DATABASE_URL": f"sqlite:///{history.database}"}
    with serving(history.folder, **database) as server, working(history.folder, server.url):
        for told in history.ended.values():
            document = server.get(f"/api/executions/{told['execution_id']}")
            assert shown(document) == shown(told)
        asks, held = history.left["asks"], history.left["held"]
        answer = {"name": "approval.received", "data": {"approved": True}}
        server.post(f"/api/executions/{asks}/events", answer)
        assert server.get(f"/api/executions/{held}")["status"] == "PAUSED"
        server.post(f"/api/executions/{held}/resume")
        for name, execution_id in history.left.items():
            document = server.ended(execution_id)
            assert (document["status"], document["result"]) == ("COMPLETED", RESULTS[name])
            seqs = [event["seq"] for event in server.events(execution_id)]
            assert seqs == list(range(1, len(seqs) + 1))


def test_l7_what_an_earlier_version_recorded_follows_from_its_log(history: History) -> None:
    async def story() -> None:
        store = await SqliteStore.open(f"sqlite:///{history.database}")
        try:
            assert await problems(store) == []
            for summary in await store.records.summaries(limit=100):
                state = ExecutionState()
                for row in await store.log.events(summary.execution_id, limit=100_000):
                    evolve(state, decode(row.body))
                    assert state.seq == row.seq
                assert state.status == summary.status
        finally:
            await store.close()

    asyncio.run(story())


COPIED = {
    "execution": "execution_id seq checksum path version digest status requested_at ended_at"
    " parent_execution_id idempotency_key current_steps error",
    "log": "execution_id seq events checksum",
    "snapshot": "execution_id seq event_checksum body checksum",
    "timer": "execution_id timer_id fires_at",
    "transient": "execution_id name value",
    "net": "digest body",
}
FIRST_SCHEMA = 3
"""That of the first version with PostgreSQL (f167928)."""


def test_t40_a_postgres_database_of_the_first_schema_is_upgraded_and_read(
    history: History, new_database_url: str
):
    """The same rows as in the file, in the tables of then: what either says of them is the same."""
    with sqlite3.connect(history.database) as file, psycopg.connect(new_database_url) as db:
        db.execute("CREATE SCHEMA noetl")
        db.execute("CREATE TABLE noetl.schema (version integer PRIMARY KEY, name text NOT NULL)")
        for migration in MIGRATIONS[:FIRST_SCHEMA]:
            db.execute(migration.script.encode())
            db.execute(
                "INSERT INTO noetl.schema VALUES (%s, %s)", (migration.version, migration.name)
            )
        for table, named in COPIED.items():
            columns = ", ".join(named.split())
            places = ", ".join(["%s"] * len(named.split()))
            rows = file.execute(f"SELECT {columns} FROM noetl_{table}").fetchall()
            db.cursor().executemany(
                f"INSERT INTO noetl.{table} ({columns}) VALUES ({places})".encode(), rows
            )
    file.close()

    async def told(store: Store) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row in await store.records.summaries(limit=1000):
            events = await store.log.events(row.execution_id, limit=100_000)
            found[row.execution_id] = row, events, await store.log.variables(row.execution_id)
            assert await store.log.load(row.execution_id) is not None
        await store.close()
        return found

    async def both() -> None:
        upgraded = await told(await PostgresStore.open(new_database_url))
        assert len(upgraded) >= len(history.ended) + len(history.left)
        assert upgraded == await told(await SqliteStore.open(str(history.database)))

    asyncio.run(both())
