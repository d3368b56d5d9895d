"""PostgreSQL keeps its connections and answers nobody: a server says so, gives up in time, and goes
on when it is answered again.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.control.peers import GONE_SECONDS
from tests.faults.cluster import WORKING, Cluster, Effects, check_ended, until
from tests.faults.silence import Proxy, proxy_to
from tests.server.processes import Server
from tests.stopwatch import PATIENCE, Stopwatch

DOCUMENTED = Path(__file__).parents[2] / "docs" / "operations.md"
HEALTH_SECONDS_MAX = 20.0
"""It shows after five seconds; a machine that does much else may take longer."""


@pytest.fixture
def proxy(postgres_server: Any, database_url: str) -> Iterator[Proxy]:
    with proxy_to(Path(postgres_server.pgdata) / ".s.PGSQL.5432") as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, proxy: Proxy) -> Iterator[Cluster]:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/noetl"
    made = Cluster(tmp_path, url, patient=True)
    yield made
    made.end()


def seconds_until_failing(server: Server) -> tuple[float, str]:
    """How long it takes until /health says what is wrong, and what it says."""
    watch = Stopwatch(server.process.pid)
    until(lambda: server.ask("GET", "/health").status == 503, "health says that all is well")
    answer = server.ask("GET", "/health").json
    assert answer["status"] == "failing"
    return watch.seconds(), answer["reason"]


def test_a_server_whose_database_falls_silent_says_so_and_goes_on_afterwards(
    cluster: Cluster, proxy: Proxy, counted: Effects
):
    server = cluster.server()
    cluster.worker(server)
    counted.limit = 0  # Calls under way wait: their reports come while the database is silent.
    ids = [server.start(WORKING, {"url": counted.url}) for _ in range(4)]
    counted.wait_for(4)
    proxy.go_silent()
    counted.limit = 1000

    seconds, reason = seconds_until_failing(server)
    assert seconds < HEALTH_SECONDS_MAX
    assert "stored" in reason or "did not answer" in reason
    proxy.let_through()

    until(lambda: server.ask("GET", "/health").status == 200, "health does not recover")
    check_ended(server, counted, ids)
    assert counted.total == 4 * 5
    assert server.get("/api/executions", status="RUNNING")["executions"] == []


def test_a_server_whose_database_was_silent_still_has_the_right_time(
    cluster: Cluster, proxy: Proxy, database_url: str
):
    cluster.server()
    with psycopg.connect(database_url, autocommit=True) as db:

        def behind() -> float:
            """The database, behind the server when that last said that it is there."""
            query = "SELECT extract(epoch FROM clock_timestamp()) - seen_at FROM noetl.runtime"
            [(seconds,)] = db.execute(query).fetchall()
            return float(seconds)

        proxy.go_silent()
        until(lambda: behind() > GONE_SECONDS, "it still says that it is there")
        proxy.let_through()
        until(lambda: behind() < GONE_SECONDS, "it does not say so again")

        assert behind() > -1.0, "its clock is ahead: leases and timers end too early"


@pytest.mark.parametrize("reports", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_server_ends_in_the_documented_time_though_its_database_is_silent(
    cluster: Cluster, proxy: Proxy, counted: Effects, reports: bool
):
    promised = re.search(r"within (\d+) seconds of SIGTERM", DOCUMENTED.read_text())
    assert promised is not None
    server = cluster.server()
    if reports:  # Reports that wait for an answer are waited for at the end.
        cluster.worker(server)
        counted.limit = 0
        server.start(WORKING, {"url": counted.url})
        counted.wait_for(1)
    proxy.go_silent()
    counted.limit = 1000
    seconds_until_failing(server)

    watch = Stopwatch(server.process.pid)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(PATIENCE)

    assert watch.seconds() < int(promised[1])
