"""Servers that are killed with -9 while executions fail: each failure is told once."""

from __future__ import annotations

import random
import time

import pytest

from tests.faults.cluster import Cluster, Served, effects, playbook
from tests.stopwatch import PATIENCE

BAD = playbook("faults/bad", '- {step: start, tool: {kind: python, code: "raise ValueError(1)"}}')
TELL = playbook("faults/tell", "- {step: start, tool: {kind: noop}}", "{about: ''}")
RULE = """\
apiVersion: noetl.io/v2
kind: Notification
metadata: {name: told, path: faults/told}
spec:
  on: [failed]
  path: faults/*
  window: 0s
  target: {playbook: faults/tell, workload: {about: "{{ notification.execution_id }}"}}
"""


def told_once(cluster: Cluster, *, failures: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    servers = [cluster.server() for _ in range(2)]
    for text in (BAD, TELL, RULE):
        servers[0].post("/api/catalog/register", {"content": text})
    with effects() as none:
        served = Served(cluster, servers[0], none)
        for number in range(failures):
            servers[number % 2].post("/api/execute", {"path": "faults/bad"})
        cluster.worker(*servers)

        def count(path: str, status: str) -> int:
            where = f"path = '{path}' AND status = '{status}'"
            return int(served.query(f"SELECT count(*) FROM noetl.execution WHERE {where}")[0][0])

        for round_ in range(kills):
            while count("faults/bad", "FAILED") <= round_ * failures // (kills + 1):
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.05))
            place = round_ % 2
            servers[place].kill()
            servers[place] = cluster.server(port=servers[place].port)
        deadline = time.monotonic() + PATIENCE
        while count("faults/tell", "COMPLETED") < failures:
            assert time.monotonic() < deadline, served.query(
                "SELECT path, status, count(*) FROM noetl.execution GROUP BY 1, 2"
                " UNION ALL SELECT key, kind, next_at::bigint FROM noetl.trigger"
            )
            time.sleep(0.05)
        failed = served.query("SELECT execution_id FROM noetl.execution WHERE status = 'FAILED'")
        keys = served.query(
            "SELECT idempotency_key FROM noetl.execution WHERE path = 'faults/tell'"
        )
        assert sorted(keys) == sorted(
            (f"notification/faults/told/failed/{one}",) for (one,) in failed
        )
        assert len(keys) == failures

        def left() -> int:
            return len(served.query("SELECT key FROM noetl.trigger WHERE kind = 'Notice'"))

        while left():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("cluster", ["postgres"], indirect=True)
def test_each_failure_is_told_once_while_servers_are_killed(cluster: Cluster):
    told_once(cluster, failures=30, kills=2, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["postgres"], indirect=True)
def test_each_of_many_failures_is_told_once_while_servers_are_killed(cluster: Cluster):
    told_once(cluster, failures=500, kills=15, seed=2)
