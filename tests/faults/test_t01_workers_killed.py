"""T1, T2, T32: workers are killed with -9 while they work: nothing is lost or recorded twice.

What a worker had done and not yet said is done again by another, under the same key.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.cluster import (
    LOOK_SECONDS,
    MARKS,
    WORKING,
    Cluster,
    Effects,
    check_ended,
    playbook,
    start_many,
    until,
)

ALL_AT_ONCE = 20
WORKERS = 6
KILL_SECONDS = 2.0
CALLS_BETWEEN = 30
"""So many calls are made between two strikes, however slow the machine is: what runs by itself and
loses its worker twice in a row is taken for the cause (S24)."""
POISON = playbook(
    "faults/poison",
    """
- step: start
  tool:
    kind: shell
    env: { PLACE: "{{ workload.place }}" }
    command: |
      parent() { sed 's/.*) //' /proc/$1/stat | cut -d' ' -f2; }
      echo $(parent $(parent $PPID)) > $PLACE/$PPID.part
      mv $PLACE/$PPID.part $PLACE/$PPID.doomed
      sleep 600
""",
    "{place: ''}",
)
"""Names the worker that runs it: above the shell are its supervisor, the spawner and the worker.
It is killed from outside, because tasks cannot signal their workers."""


def strike_the_doomed(place: Path) -> int:
    """Kill every worker that a poisonous task has named; how many."""
    found = list(place.glob("*.doomed"))
    for file in found:
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)
        file.unlink()
    return len(found)


def test_t01_all_workers_are_killed_and_others_take_over(cluster: Cluster, counted: Effects):
    server = cluster.server()
    ids = start_many(server, WORKING, [{"url": counted.url}] * ALL_AT_ONCE)
    for _ in range(2):
        cluster.worker(server)
    counted.stop_at(ALL_AT_ONCE)

    for worker in cluster.workers:
        worker.kill()
    counted.limit = math.inf
    for _ in range(2):
        cluster.worker(server)

    check_ended(server, counted, ids)
    assert counted.total == ALL_AT_ONCE * len(MARKS)


@pytest.mark.parametrize(
    ("cluster", "executions"),
    [
        ("postgres", 50),
        pytest.param("postgres", 200, marks=pytest.mark.long),
        pytest.param("sqlite", 200, marks=pytest.mark.long),
    ],
    indirect=["cluster"],
)
def test_t02_a_third_of_the_workers_is_killed_every_other_second(
    cluster: Cluster, counted: Effects, executions: int
):
    counted.seconds = 0.2
    server = cluster.server()
    for _ in range(WORKERS):
        cluster.worker(server, slots=2)
    enough = threading.Event()
    dice = random.Random(2)

    def strike() -> None:
        seen = 0
        while not enough.wait(KILL_SECONDS):
            if len(counted.order) < seen + CALLS_BETWEEN:
                continue
            seen = len(counted.order)
            alive = [one for one in cluster.workers if one.process.poll() is None]
            for worker in dice.sample(alive, len(alive) // 3):
                worker.kill()
                cluster.worker(server, slots=2)

    striking = threading.Thread(target=strike)
    striking.start()
    try:
        ids = start_many(server, WORKING, [{"url": counted.url}] * executions)
        check_ended(server, counted, ids)
    finally:
        enough.set()
        striking.join()
    killed = sum(worker.process.poll() is not None for worker in cluster.workers)
    assert killed >= WORKERS // 3, "all was done before the first was killed"


@pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)
def test_s24_a_command_that_killed_its_worker_twice_fails(cluster: Cluster, tmp_path: Path):
    server = cluster.server()
    [poison] = start_many(server, POISON, [{"place": str(tmp_path)}])

    for _ in range(2):
        cluster.worker(server)
        until(lambda: strike_the_doomed(tmp_path), "the task names its worker")
    document = server.ended(poison)

    assert (document["status"], document["error"]["kind"]) == ("FAILED", "lease_lost")
    assert "2 workers died while they ran this and nothing else" in document["error"]["message"]


INNOCENT = playbook(
    "faults/innocent",
    """
- step: start
  tool: { kind: shell, command: "sleep 3; echo done" }
""",
)


@pytest.mark.long
def test_s24_a_command_that_kills_its_worker_beside_others_is_found_and_they_go_on(
    cluster: Cluster, tmp_path: Path
):
    server = cluster.server()
    innocent = start_many(server, INNOCENT, [{}] * 3)
    [poison] = start_many(server, POISON, [{"place": str(tmp_path)}])
    cluster.worker(server)
    deaths = 0

    def has_ended() -> bool:
        nonlocal deaths
        if strike_the_doomed(tmp_path):
            deaths += 1
            cluster.workers[-1].process.wait()
            cluster.worker(server)
        return server.get(f"/api/executions/{poison}")["status"] == "FAILED"

    until(has_ended, "the poisonous command is given up")
    document = server.ended(poison)

    assert "2 workers died while they ran this and nothing else" in document["error"]["message"]
    assert deaths <= 5
    assert [server.ended(one)["status"] for one in innocent] == ["COMPLETED"] * 3


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["postgres"], indirect=True)
def test_t32_work_that_kills_its_workers_is_given_up_and_stops_nobody(
    cluster: Cluster, counted: Effects, tmp_path: Path
):
    server = cluster.server()
    [poison] = start_many(server, POISON, [{"place": str(tmp_path)}])
    ids = start_many(server, WORKING, [{"url": counted.url}] * ALL_AT_ONCE)
    cluster.worker(server)
    enough = threading.Event()

    def replace_the_dead() -> None:
        while not enough.wait(LOOK_SECONDS):
            strike_the_doomed(tmp_path)
            if cluster.workers[-1].process.poll() is not None:
                cluster.worker(server)

    replacing = threading.Thread(target=replace_the_dead)
    replacing.start()
    try:
        check_ended(server, counted, ids)
        document = server.ended(poison)
    finally:
        enough.set()
        replacing.join()
    assert (document["status"], document["error"]["kind"]) == ("FAILED", "lease_lost")
