"""T13: a byte of the log changes on disk. That execution is not served; others do not notice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from noetl import configured
from noetl.control.integrity import problems
from tests.faults.cluster import Cluster
from tests.server.processes import Server

TWO_STEPS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: damaged, path: faults/damaged}
workflow:
  - {step: start, tool: {kind: noop, result: 1}, next: wait}
  - step: wait
    spec: {eval_mode: on_event, timeout: 1h}
    case:
      - when: "{{ event.name == 'message.received' }}"
        then: {next: [{step: end}]}
  - {step: end, tool: {kind: noop, result: "{{ start }}"}}
"""


def flip(cluster: Cluster, execution_id: str) -> None:
    """Change one bit in what is stored of an execution, behind everybody's back."""
    if cluster.database_url is None:
        with sqlite3.connect(cluster.folder / ".noetl" / "noetl.db") as db:
            [(row, events)] = db.execute(
                "SELECT rowid, events FROM noetl_log WHERE execution_id = ? LIMIT 1",
                [execution_id],
            )
            flipped = bytes([events[0], events[1], events[2] ^ 1]) + events[3:]
            db.execute("UPDATE noetl_log SET events = ? WHERE rowid = ?", [flipped, row])
        db.close()
        return
    with psycopg.connect(cluster.database_url) as database:
        changed = database.execute(
            "UPDATE noetl.log SET events = set_byte(events, 2, get_byte(events, 2) # 1)"
            " WHERE execution_id = %(id)s AND seq ="
            " (SELECT min(seq) FROM noetl.log WHERE execution_id = %(id)s)",
            {"id": execution_id},
        )
        assert changed.rowcount == 1


def answer(server: Server, execution_id: str) -> int:
    body = {"name": "message.received", "data": {}}
    return server.ask("POST", f"/api/executions/{execution_id}/events", body).status


@pytest.mark.parametrize("anew", [True, False], ids=["read anew", "in memory"])
def test_t13_a_damaged_execution_is_refused_and_the_others_go_on(cluster: Cluster, anew: bool):
    server = cluster.server()
    cluster.worker(server)
    damaged, fine = (server.start(TWO_STEPS) for _ in range(2))
    for execution_id in (damaged, fine):
        server.wait_for(execution_id, "step.waiting")
    flip(cluster, damaged)
    if anew:
        server.terminate()
        server = cluster.server(port=server.port)

    shown = server.ask("GET", f"/api/executions/{damaged}/events")
    listed = server.get("/api/executions")["executions"]

    assert (shown.status, shown.code) == (503, "corrupted")
    assert {row["execution_id"] for row in listed} == {damaged, fine}
    assert answer(server, fine) == 200
    assert server.ended(fine)["result"] == 1
    if anew:
        assert server.ask("GET", f"/api/executions/{damaged}").code == "corrupted"
        assert answer(server, damaged) == 503


CHANGES = {
    "execution.status": (
        "UPDATE noetl.execution SET status = 'PAUSED' WHERE execution_id = '{waits}'",
        "Of execution {waits}, the column status says 'PAUSED' and the log 'RUNNING'",
    ),
    "execution.path": (
        "UPDATE noetl.execution SET path = 'x' WHERE execution_id = '{ended}'",
        "Of execution {ended}, the column path says 'x' and the log 'faults/damaged'",
    ),
    "a timer's time": (
        "UPDATE noetl.timer SET fires_at = fires_at + 60 WHERE execution_id = '{waits}'",
        "fires at another time than the log says",
    ),
    "a timer that is gone": (
        "DELETE FROM noetl.timer WHERE execution_id = '{waits}'",
        " is missing",
    ),
    "a timer of nobody": (
        "INSERT INTO noetl.timer (execution_id, timer_id, fires_at) VALUES ('none', 't', 1)",
        "A timer belongs to execution none, which is not there",
    ),
    "a command that is gone": (
        "DELETE FROM noetl.queue WHERE execution_id = '{queued}'",
        "Of execution {queued}, command",
    ),
    "a command's id": (
        "UPDATE noetl.queue SET command_id = 'x' WHERE execution_id = '{queued}'",
        "the column command_id says 'x' and the command",
    ),
    "a command's pool": (
        "UPDATE noetl.queue SET pool = 'x' WHERE execution_id = '{queued}'",
        "the column pool says 'x' and the command 'default'",
    ),
    "a command's priority": (
        "UPDATE noetl.queue SET priority = 7 WHERE execution_id = '{queued}'",
        "the column priority says 7 and the command 0",
    ),
    "a command that is kept from workers": (
        "UPDATE noetl.queue SET is_corrupted = TRUE WHERE execution_id = '{queued}'",
        "of execution {queued} was set aside as damaged, and no worker gets it",
    ),
    "a slot that is free": (
        "UPDATE noetl.slot SET held = FALSE WHERE execution_id = '{queued}'",
        "Of execution {queued}, the slot of playbook faults/other is not what the log says",
    ),
    "a slot that is gone": (
        "DELETE FROM noetl.slot WHERE execution_id = '{queued}'",
        "Of execution {queued}, the slot of playbook faults/other is missing",
    ),
    "a slot of nobody": (
        "UPDATE noetl.slot SET execution_id = 'none' WHERE execution_id = '{queued}'",
        "A slot of a limit belongs to execution none, which is not there",
    ),
    "catalog.content": (
        "UPDATE noetl.catalog SET content = content || ' ' WHERE path = 'faults/damaged'",
        'Version 1 of "faults/damaged" in the catalog is not what was written',
    ),
    "catalog.kind": (
        "UPDATE noetl.catalog SET kind = 'Other' WHERE path = 'faults/damaged'",
        'Version 1 of "faults/damaged" in the catalog is not what was written',
    ),
    "net.body": (
        "UPDATE noetl.net SET body = {flipped} WHERE digest ="
        " (SELECT digest FROM noetl.catalog WHERE path = 'faults/damaged')",
        "is not what was written: its sha256 is not its digest",
    ),
}


def change(cluster: Cluster, statement: str) -> None:
    """Past the product."""
    if cluster.database_url is None:
        with closing(sqlite3.connect(cluster.folder / ".noetl" / "noetl.db")) as db, db:
            assert db.execute(statement.replace("noetl.", "noetl_")).rowcount >= 1
        return
    with psycopg.connect(cluster.database_url) as database:
        assert database.execute(statement.encode()).rowcount >= 1


@contextmanager
def kept(cluster: Cluster) -> Iterator[None]:
    """Whatever the body changes is as before afterwards."""
    if cluster.database_url is None:
        path = cluster.folder / ".noetl" / "noetl.db"
        before = path.read_bytes()
        yield
        path.write_bytes(before)
        return
    tables = ("execution", "timer", "queue", "slot", "catalog", "net")
    with psycopg.connect(cluster.database_url, autocommit=True) as db:
        for table in tables:
            db.execute(f"CREATE TEMP TABLE kept_{table} AS TABLE noetl.{table}".encode())
        yield
        named = ", ".join(f"noetl.{table}" for table in tables)
        db.execute(f"TRUNCATE {named}".encode())
        for table in ("execution", "timer", "net", "catalog", "slot", "queue"):
            how = "OVERRIDING SYSTEM VALUE " if table == "queue" else ""
            db.execute(f"INSERT INTO noetl.{table} {how}TABLE kept_{table}".encode())


def findings(cluster: Cluster) -> list[str]:
    async def look() -> list[str]:
        url = cluster.database_url or f"sqlite:///{cluster.folder}/.noetl/noetl.db"
        store = await configured.open_store(url, read_only=True)
        try:
            return await problems(store)
        finally:
            await store.close()

    return asyncio.run(look())


def test_t13_check_names_whatever_was_changed_and_a_changed_net_does_not_run(cluster: Cluster):
    server = cluster.server()
    worker = cluster.worker(server)
    waits, ended = (server.start(TWO_STEPS) for _ in range(2))
    for one in (waits, ended):
        server.wait_for(one, "step.done")
    answer(server, ended)
    server.ended(ended)
    other = TWO_STEPS.replace("faults/damaged", "faults/other")
    other = other.replace("workflow:", "executor: {spec: {limits: {max_running: 5}}}\nworkflow:")
    fine = server.start(other)
    server.wait_for(fine, "step.done")
    worker.terminate()
    queued = server.start(other)
    server.terminate()
    assert findings(cluster) == []
    is_sqlite = cluster.database_url is None
    names = {
        "waits": waits,
        "ended": ended,
        "queued": queued,
        "flipped": "CAST(body || ' ' AS BLOB)" if is_sqlite else "body || ' '::bytea",
    }

    for what, (statement, finding) in CHANGES.items():
        with kept(cluster):
            change(cluster, statement.format(**names))
            found = findings(cluster)
            assert [one for one in found if finding.format(**names) in one], (what, found)
    assert findings(cluster) == []

    change(cluster, CHANGES["net.body"][0].format(**names))
    assert "is not what was written" in cluster.check()
    server = cluster.server()
    cluster.worker(server)
    refusal = server.ask("POST", f"/api/executions/{waits}/events", {"name": "message.received"})
    assert (refusal.status, refusal.code) == (503, "corrupted")
    started = server.ask("POST", "/api/execute", {"path": "faults/damaged"})
    assert (started.status, started.code) == (503, "corrupted")
    assert answer(server, fine) == 200
    assert server.ended(fine)["status"] == "COMPLETED"
