"""A server that is frozen keeps its connections and answers nobody. Workers that know another one
go on with that.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster import MARKS, WORKING, Cluster, Effects, check_ended
from tests.stopwatch import Stopwatch

LEASE_SECONDS = 30.0


@pytest.fixture
def cluster(tmp_path: Path, database_url: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, database_url, patient=True)
    yield made
    made.end()


@pytest.mark.parametrize("at", ["rest", "work"])
def test_a_worker_goes_past_a_frozen_server_long_before_its_leases_lapse(
    cluster: Cluster, counted: Effects, at: str
):
    frozen, healthy = cluster.server(), cluster.server()
    worker = cluster.worker(frozen, healthy)
    ids = [healthy.start(WORKING, {"url": counted.url})]
    check_ended(healthy, counted, ids)
    if at == "work":  # Its reports are for a server that does not hear them.
        counted.limit = len(MARKS)
        ids += [healthy.start(WORKING, {"url": counted.url}) for _ in range(3)]
        counted.wait_for(len(MARKS) + 3)
    frozen.process.send_signal(signal.SIGSTOP)
    watch = Stopwatch(healthy.process.pid, worker.process.pid)
    counted.limit = 1000
    try:
        ids += [healthy.start(WORKING, {"url": counted.url}) for _ in range(3)]
        check_ended(healthy, counted, ids)
        assert watch.seconds() < LEASE_SECONDS * 0.8
        once = [counted.keys(f"{one}.{mark}") for one in ids for mark in MARKS]
        assert {len(keys) for keys in once} == {1}, "something was done twice"
        events = [event["name"] for one in ids for event in healthy.events(one)]
        assert "command.lost" not in events
    finally:
        frozen.process.send_signal(signal.SIGCONT)
