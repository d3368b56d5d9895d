"""Schedules on three servers that are killed with -9 at random, mostly just when a time is due:
each time starts one execution, neither none nor two.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.faults.cluster import Cluster, Served, effects, playbook

PLAYBOOK = playbook(
    "faults/timed",
    """
- step: start
  spec: {eval_mode: on_event}
  case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
- {step: end, tool: {kind: noop}}
""",
    "{time: ''}",
)
SCHEDULES = 4
SCHEDULE = """\
apiVersion: noetl.io/v2
kind: Schedule
metadata: {{name: s{number}, path: faults/s{number}}}
spec:
  playbook: faults/timed
  workload: {{time: "{{{{ schedule.utc }}}}"}}
  every: 1s
  overlap: allow_all
"""
on_postgres = pytest.mark.parametrize("cluster", ["postgres"], indirect=True)


def killed_at_random(cluster: Cluster, due: int, seed: int) -> None:
    chance = random.Random(seed)
    servers = [cluster.server() for _ in range(3)]
    servers[0].post("/api/catalog/register", {"content": PLAYBOOK})
    for number in range(SCHEDULES):
        text = SCHEDULE.format(number=number)
        servers[number % 3].post("/api/catalog/register", {"content": text})
    with effects() as none:
        served = Served(cluster, servers[0], none)

        def decided() -> int:
            return int(served.query("SELECT count(*) FROM noetl.trigger_time")[0][0])

        while decided() < due:
            # Times are full seconds; one server dies within the next fifty milliseconds.
            now = time.time()
            time.sleep(1 - now % 1 + chance.uniform(0, 0.05))
            victim = chance.randrange(3)
            servers[victim].kill()
            servers[victim] = cluster.server(port=servers[victim].port)
        for number in range(SCHEDULES):
            servers[0].post("/api/schedules/pause", {"path": f"faults/s{number}"})
        check_each_once(served)


def check_each_once(served: Served) -> None:
    rows = served.query("SELECT path, time, outcome, execution_id FROM noetl.trigger_time")
    assert {outcome for _, _, outcome, _ in rows} == {"started"}
    for number in range(SCHEDULES):
        seconds = sorted(round(at) for path, at, _, _ in rows if path == f"faults/s{number}")
        assert seconds == list(range(seconds[0], seconds[-1] + 1)), "a time was left out"
    keys = served.query("SELECT execution_id, idempotency_key FROM noetl.execution")
    assert sorted(one for _, _, _, one in rows) == sorted(one for one, _ in keys)
    assert len({key for _, key in keys}) == len(keys)


@on_postgres
def test_three_servers_killed_at_random_start_each_time_once(cluster: Cluster):
    killed_at_random(cluster, due=20, seed=1)


@pytest.mark.long
@on_postgres
def test_three_servers_killed_at_random_for_200_times_start_each_time_once(cluster: Cluster):
    killed_at_random(cluster, due=200, seed=2)
