"""T6: the effect and its mark are one transaction, so kill -9 at any moment repeats none.

A loop adds to counters in PostgreSQL with `effect: once`, each iteration to its own. Whoever works
is killed again and again, often between the database's commit and our own record of it.
"""

from __future__ import annotations

import random
import time

import psycopg
import pytest

from tests.faults.cluster import LOOK_SECONDS, Cluster, start_many
from tests.faults.runs import Place, kill
from tests.stopwatch import PATIENCE

ITERATIONS = 60
KILLS = 5
WORKERS_KILLED = 2
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: once, path: faults/once}
workflow:
  - step: start
    loop:
      in: {from: 0, to: %d}
      iterator: n
      spec: {mode: parallel, max_in_flight: 3}
    tool:
      kind: postgres
      auth: counters
      effect: once
      command: |
        UPDATE counter SET n = n + 1 WHERE id = %%(id)s;
        SELECT pg_sleep(0.05);
        SELECT n FROM counter WHERE id = %%(id)s
      params: {id: "{{ iter.n }}"}
"""


def test_t06_effects_happen_once_however_often_the_process_is_killed(postgres, tmp_path):
    make_counters(postgres)
    place = Place(tmp_path)
    place.write("once.yaml", PLAYBOOK % ITERATIONS)
    words = [f"{name}={value}" for name, value in postgres.items()]
    assert place.run("credential", "set", "counters", *words).returncode == 0
    dice = random.Random(6)

    running = place.start("run", "once.yaml", "--resume")
    for _ in range(KILLS):
        wait_for_more(postgres, running)
        time.sleep(dice.uniform(0, 0.1))
        kill(running)
        running = place.start("run", "once.yaml", "--resume")
    _, said = running.communicate(timeout=PATIENCE)

    [(_, status)] = place.executions()
    assert status == "COMPLETED", said
    assert_each_once(postgres)


@pytest.mark.parametrize(
    "cluster", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True
)
def test_t06_effects_happen_once_however_often_workers_and_servers_are_killed(
    postgres, cluster: Cluster
):
    make_counters(postgres)
    server = cluster.server()
    server.post("/api/credentials", {"name": "counters", "type": "postgres", "data": postgres})
    worker = cluster.worker(server)
    [execution_id] = start_many(server, PLAYBOOK % ITERATIONS, [{}])
    dice = random.Random(6)
    for _ in range(WORKERS_KILLED):
        wait_for_more(postgres, worker.process)
        time.sleep(dice.uniform(0, 0.1))
        worker.kill()
        worker = cluster.worker(server)
    server.kill()
    server = cluster.server(port=server.port)

    document = server.ended(execution_id)

    assert document["status"] == "COMPLETED", document["error"]
    assert_each_once(postgres)


def make_counters(login):
    with psycopg.connect(**login) as connection:
        connection.execute("CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL)")
        connection.execute(
            "INSERT INTO counter SELECT g, 0 FROM generate_series(0, %s) AS g", [ITERATIONS - 1]
        )


def assert_each_once(login):
    with psycopg.connect(**login) as connection:
        found = connection.execute("SELECT n, count(*) FROM counter GROUP BY n").fetchall()
    assert found == [(1, ITERATIONS)]


def wait_for_more(login, process):
    """Until something has been done: kill it while it works, not while it starts."""
    before = done(login)
    deadline = time.monotonic() + PATIENCE
    while before + 2 > done(login) and done(login) < ITERATIONS and process.poll() is None:
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(LOOK_SECONDS)


def done(login):
    with psycopg.connect(**login) as connection:
        [count] = connection.execute("SELECT sum(n) FROM counter").fetchone()
    return count
