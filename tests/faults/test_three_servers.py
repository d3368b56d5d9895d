"""Three servers and four workers on one PostgreSQL at once lose nothing, also when some of them
are killed on the way."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.effort import IS_LONG
from tests.faults.cluster import (
    MARKS,
    WORKING,
    Cluster,
    Effects,
    Served,
    check_ended,
    playbook,
    start_many,
)

EXECUTIONS = 20 if IS_LONG else 8
HEARD = 10
HEARING = playbook(
    "faults/hearing",
    """
- step: start
  spec: {eval_mode: on_event}
  case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
- {step: end, tool: {kind: noop, result: heard}}
""",
)


on_postgres = pytest.mark.parametrize("cluster", ["postgres"], indirect=True)


@on_postgres
def test_t15_the_same_event_posted_to_three_servers_at_once_is_one_transition(cluster: Cluster):
    servers = [cluster.server() for _ in range(3)]
    cluster.worker(servers[0])
    ids = start_many(servers[0], HEARING, [{}] * HEARD)
    with ThreadPoolExecutor(len(servers)) as posting:
        for one in ids:
            path = f"/api/executions/{one}/events"
            body = {"name": "go", "event_id": f"go-{one}"}
            replies = list(
                posting.map(lambda server, p=path, b=body: server.ask("POST", p, b), servers)
            )
            # One takes it; to the others it is known, or comes after the end.
            assert {reply.status for reply in replies} <= {200, 409}
            fresh = [one for one in replies if one.status == 200 and not one.json["duplicates"]]
            assert len(fresh) == 1

    for number, one in enumerate(ids):
        assert servers[number % 3].ended(one)["result"] == "heard"
        names = Counter(event["name"] for event in servers[number % 3].events(one))
        assert (names["message.received"], names["step.done"]) == (1, 2)


@on_postgres
def test_three_servers_and_four_workers_lose_nothing(cluster: Cluster, counted: Effects):
    servers = [cluster.server() for _ in range(3)]
    workloads = [{"url": counted.url}] * EXECUTIONS
    ids = [one for server in servers for one in start_many(server, WORKING, workloads)]
    for number in range(4):
        # Each begins with another server, and knows all of them.
        cluster.worker(*servers[number % 3 :], *servers[: number % 3])
    counted.stop_at(len(ids))

    servers[0].kill()
    cluster.workers[0].kill()
    counted.limit = math.inf

    # Whom one asks does not matter.
    for number, execution_id in enumerate(ids):
        check_ended(servers[1 + number % 2], counted, [execution_id])
    assert counted.total == len(ids) * len(MARKS)
    statuses = Served(cluster, servers[1], counted).query("SELECT status FROM noetl.execution")
    assert Counter(statuses) == {("COMPLETED",): len(ids)}
