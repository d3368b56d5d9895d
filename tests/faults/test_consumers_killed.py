"""Consumers of servers that are killed with -9 while messages come: none is lost, none starts two
executions, and another server goes on.
"""

from __future__ import annotations

import asyncio
import random
import time

import nats
import psycopg
import pytest

from tests.faults.cluster import Cluster, Served, effects, playbook

PLAYBOOK = playbook("faults/taken", "- {step: start, tool: {kind: noop}}", "{number: 0}")
CONSUMER = """\
apiVersion: noetl.io/v2
kind: Consumer
metadata: {{name: in, path: faults/in}}
spec:
  source: {{nats: {{url: "{url}", stream: FAULTS, subject: "FAULTS.>"}}}}
  target: {{playbook: faults/taken, workload: {{number: "{{{{ message.body }}}}"}}}}
  max_running: 2000
"""
on_postgres = pytest.mark.parametrize("cluster", ["postgres"], indirect=True)


async def published(url: str, numbers: range) -> None:
    client = await nats.connect(url)
    stream = client.jetstream()
    await stream.add_stream(name="FAULTS", subjects=["FAULTS.>"])
    for number in numbers:
        await stream.publish("FAULTS.a", str(number).encode())
    await client.close()


async def unacknowledged(url: str) -> int:
    client = await nats.connect(url)
    try:
        [info] = await client.jetstream().consumers_info("FAULTS")
        return int((info.num_ack_pending or 0) + (info.num_pending or 0))
    finally:
        await client.close()


def taken(served: Served) -> list[str]:
    return [one for (one,) in served.query("SELECT id FROM noetl.trigger_message")]


def killed(cluster: Cluster, url: str, *, rounds: int, each: int, seed: int) -> None:
    chance = random.Random(seed)
    servers = [cluster.server() for _ in range(3)]
    servers[0].post("/api/catalog/register", {"content": PLAYBOOK})
    servers[0].post("/api/catalog/register", {"content": CONSUMER.format(url=url)})
    with effects() as none:
        served = Served(cluster, servers[0], none)
        for round_ in range(rounds):
            asyncio.run(published(url, range(round_ * each, (round_ + 1) * each)))
            # Whoever reads dies in the middle of the batch.
            while len(taken(served)) <= round_ * each:
                time.sleep(0.01)
            [(holder,)] = served.query(
                "SELECT convert_from(state, 'UTF8')::json ->> 'holder' FROM noetl.trigger"
            )
            time.sleep(chance.uniform(0, 0.05))
            for place, server in enumerate(servers):
                if f"-{server.process.pid}-" in str(holder):
                    server.kill()
                    servers[place] = cluster.server(port=server.port)
            while len(taken(served)) < (round_ + 1) * each:
                time.sleep(0.05)
        while asyncio.run(unacknowledged(url)):
            time.sleep(0.2)
        total = rounds * each
        assert len(set(taken(served))) == total
        rows = served.query("SELECT execution_id FROM noetl.trigger_message")
        started = served.query("SELECT execution_id FROM noetl.execution")
        assert sorted(rows) == sorted(started)
        found = served.query(
            "SELECT (body -> 'payload' ->> 'number')::int  FROM noetl.event WHERE seq = 1"
        )
        assert sorted(number for (number,) in found) == list(range(total))


@on_postgres
def test_a_killed_reader_loses_no_message_and_doubles_none(cluster: Cluster, nats_url: str):
    killed(cluster, nats_url, rounds=1, each=200, seed=1)


@pytest.mark.long
@on_postgres
def test_readers_killed_many_times_lose_no_message_and_double_none(cluster: Cluster, nats_url: str):
    killed(cluster, nats_url, rounds=6, each=200, seed=2)


@pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)
def test_a_killed_server_that_comes_back_goes_on_with_rows(
    cluster: Cluster, postgres: dict[str, str]
):
    with psycopg.connect(**postgres, autocommit=True) as db:  # type: ignore[arg-type]
        db.execute("CREATE TABLE outbox (id int PRIMARY KEY, taken_at timestamptz)")
        db.execute("INSERT INTO outbox SELECT generate_series(0, 199)")
        server = cluster.server()
        server.post("/api/credentials", {"name": "shop", "data": postgres})
        server.post("/api/catalog/register", {"content": PLAYBOOK})
        nats_part = CONSUMER[CONSUMER.index("  source:") : CONSUMER.index("  target:")]
        source = "  source: {postgres: {auth: shop, table: outbox, mark: taken_at, every: 200ms}}\n"
        text = CONSUMER.replace(nats_part, source.replace("{", "{{").replace("}", "}}"))
        text = text.replace("message.body", "message.body.id").format()
        server.post("/api/catalog/register", {"content": text})
        with effects() as none:
            served = Served(cluster, server, none)
            while len(taken(served)) < 30:
                time.sleep(0.01)
            server.kill()
            server = cluster.server(port=server.port)
            while db.execute("SELECT count(*) FROM outbox WHERE taken_at IS NULL").fetchone() != (
                0,
            ):
                time.sleep(0.05)
            assert len(set(taken(served))) == 200
            assert served.query("SELECT count(*) FROM noetl.execution") == [(200,)]
