"""Laws 4 and 7: a server that heard nothing of what another did, and is left alone with it.

Hundreds of executions are started at the first server and worked by the second into a timer wait,
more than news name and more than is kept of what is quiet. Then the second is gone for good, and
the first, which is deaf all the while, has to go on with all of them.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from noetl.control.live import QUIET_KEPT
from noetl.control.peers import EXECUTIONS_MAX
from tests.faults.cluster import Cluster, Effects, Served, playbook, start_many, until

EXECUTIONS = QUIET_KEPT + EXECUTIONS_MAX
DELAYED = playbook(
    "faults/delayed",
    """
- {step: start, tool: {kind: noop}, next: {arcs: [{step: end, spec: {delay: 8}}]}}
- {step: end, tool: {kind: noop, result: done}}
""",
)
IDLE_SECONDS = 1.0
IDLE_SHARE = 0.5
"""Of a core. A server that looks at the same timers without a pause uses all of it."""


def listener_of(database_url: str) -> int:
    """The process of PostgreSQL behind the only listener."""
    found: list[tuple[int]] = []

    def is_there() -> bool:
        with psycopg.connect(database_url) as db:
            found[:] = db.execute(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'"
            ).fetchall()
        return len(found) == 1

    until(is_there, "nobody listens")
    return found[0][0]


@pytest.mark.parametrize("cluster", ["postgres"], indirect=True)
def test_a_deaf_server_goes_on_with_what_another_left_behind(cluster: Cluster, counted: Effects):
    assert cluster.database_url is not None
    first = cluster.server()
    listener = listener_of(cluster.database_url)
    os.kill(listener, signal.SIGSTOP)
    try:
        second = cluster.server()
        cluster.worker(second, first, slots=64)
        served = Served(cluster, first, counted)
        [*ids] = start_many(first, DELAYED, [{}])
        with ThreadPoolExecutor(4) as starting:
            wanted = {"path": "faults/delayed"}
            made = starting.map(
                lambda _: first.post("/api/execute", wanted)["execution_id"], range(EXECUTIONS)
            )
            ids += made
        until(served.is_free, "the first steps are not done")
        second.kill()

        for one in (ids[0], ids[-1]):
            waits = first.get(f"/api/executions/{one}/why")["waits_for"]
            assert {reason["waits_for"] for reason in waits} <= {"timer"}
        running = "SELECT count(*) FROM noetl.execution WHERE status <> 'COMPLETED'"
        until(lambda: served.query(running) == [(0,)], "some executions do not go on")
        assert first.get(f"/api/executions/{ids[-1]}")["result"] == "done"

        before = first.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        assert first.cpu_seconds() - before < IDLE_SHARE * IDLE_SECONDS
    finally:
        os.kill(listener, signal.SIGCONT)
