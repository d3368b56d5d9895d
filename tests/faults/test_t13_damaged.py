"""T13: a byte of the log changes on disk. That execution is not served; others do not notice."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

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
