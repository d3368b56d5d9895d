"""T37: many starts at once on several servers, which are killed, as workers are: a limit is never
exceeded, nobody waits for ever, those who wait name the holders, and no slot is lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.faults.cluster import LOOK_SECONDS, Cluster
from tests.server.processes import Server

LIMIT = 3
MOST = 5
SECONDS = 240.0
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: bounded, path: faults/bounded}}
executor:
  spec:
    concurrency: {{key: "{{{{ workload.key }}}}", limit: {LIMIT}}}
    limits: {{max_running: {MOST}}}
workload: {{key: a}}
workflow:
  - step: start
    tool: {{kind: noop}}
    next: end
  - step: end
    tool: {{kind: noop}}
"""
RUNNING = """
SELECT slot.name, count(*) FROM noetl.slot AS slot JOIN noetl.execution AS execution
 USING (execution_id) WHERE execution.status IN ('RUNNING', 'PAUSED') GROUP BY slot.name
"""
UNSLOTTED = """
SELECT count(*) FROM noetl.execution AS execution
 WHERE status IN ('RUNNING', 'PAUSED') AND NOT EXISTS (
    SELECT FROM noetl.slot AS slot WHERE slot.execution_id = execution.execution_id AND held)
"""


class Watch:
    """Looks at the database again and again: how many ran at the same moment, at most."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.most: dict[str, int] = {}
        self.unslotted = 0
        self.looks = 0

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            while not self._over.wait(LOOK_SECONDS):
                for name, count in db.execute(RUNNING).fetchall():
                    self.most[name] = max(self.most.get(name, 0), count)
                row = db.execute(UNSLOTTED).fetchone()
                assert row is not None
                self.unslotted = max(self.unslotted, row[0])
                self.looks += 1

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()


def start(servers: list[Server], number: int) -> str:
    """Start one, at whichever server answers; under a key, so that trying again is safe."""
    body = {"path": "faults/bounded", "workload": {"key": f"k{number % 3}"}}
    headers = {"Idempotency-Key": f"bounded-{number}"}
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        server = random.Random(number + time.monotonic_ns()).choice(servers)
        try:
            reply = server.ask("POST", "/api/execute", body, headers=headers)
        except OSError:
            time.sleep(0.05)
            continue
        if reply.status == 200:
            return str(reply.json["execution_id"])
        assert reply.status >= 500, reply.raw
        time.sleep(0.05)
    raise AssertionError("no server took the start")


def bounded(folder: Path, url: str, *, servers: int, starts: int, kills: int) -> None:
    cluster = Cluster(folder, url)
    try:
        running = [cluster.server() for _ in range(servers)]
        running[0].post("/api/catalog/register", {"content": PLAYBOOK})
        watch = Watch(url)
        with watch.watching(), ThreadPoolExecutor(16) as pool:
            started = [pool.submit(start, running, number) for number in range(starts)]
            check_holders_are_named(url, running)
            workers = [cluster.worker(*running) for _ in range(2)]
            for number in range(kills):
                time.sleep(0.3)
                if number % 2:
                    workers[0].kill()
                    workers.append(cluster.worker(*running))
                    del workers[0]
                    continue
                place = number // 2 % servers
                killed = running[place]
                killed.kill()
                running[place] = cluster.server(port=killed.port)
            ids = {one.result(SECONDS) for one in started}
            wait_for_all(url, starts)
        assert len(ids) == starts
        with psycopg.connect(url) as db:
            statuses = db.execute("SELECT DISTINCT status FROM noetl.execution").fetchall()
            left = db.execute("SELECT count(*) FROM noetl.slot").fetchone()
        assert statuses == [("COMPLETED",)]
        assert left == (0,)
        assert watch.looks > 10
        assert watch.unslotted == 0
        assert max(watch.most.values()) > 1
        for name, most in watch.most.items():
            assert most <= (LIMIT if name.startswith("key ") else MOST), watch.most
    finally:
        cluster.end()


WAITING = "SELECT execution_id FROM noetl.execution WHERE status = 'PENDING' LIMIT 1"


def check_holders_are_named(url: str, servers: list[Server]) -> None:
    """One that waits says for whom. No worker is there yet, so nobody's turn comes meanwhile."""
    deadline = time.monotonic() + SECONDS
    with psycopg.connect(url, autocommit=True) as db:
        while time.monotonic() < deadline:
            found = db.execute(WAITING).fetchone()
            if found is None:
                time.sleep(LOOK_SECONDS)
                continue
            reply = servers[-1].ask("GET", f"/api/executions/{found[0]}/why")
            known = {str(one) for (one,) in db.execute("SELECT execution_id FROM noetl.execution")}
            said = reply.raw.decode() if reply.status == 200 else ""
            if any(one in said for one in known - {str(found[0])}):
                return
    raise AssertionError("nobody who waits says for whom")


def wait_for_all(url: str, starts: int) -> None:
    deadline = time.monotonic() + SECONDS
    with psycopg.connect(url, autocommit=True) as db:
        while True:
            query = "SELECT status, count(*) FROM noetl.execution GROUP BY status"
            found = {str(status): int(count) for status, count in db.execute(query).fetchall()}
            if found == {"COMPLETED": starts}:
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


def test_t37_limits_hold_while_servers_and_workers_are_killed(tmp_path, database_url):
    bounded(tmp_path, database_url, servers=2, starts=40, kills=2)


@pytest.mark.long
def test_t37_limits_hold_for_500_starts_on_three_servers(tmp_path, database_url):
    bounded(tmp_path, database_url, servers=3, starts=500, kills=24)
