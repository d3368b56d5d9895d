"""Two server processes on one PostgreSQL database: whichever is asked, the answer is the same."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
import pytest

from noetl.model.ids import token_of
from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.server.test_leases import Agent
from tests.server.test_routes import HELLO, WAITING
from tests.servers import url_of

DATABASE = "two_servers"


class Pair(NamedTuple):
    """Two servers, a worker of each of two tokens, and who may start something."""

    first: Server
    second: Server
    tokens: dict[str, str]

    def agents(self, name: str, token: str = "pool-a") -> tuple[Agent, Agent]:
        """One worker, as it talks to the first server and to the second."""
        shown = self.tokens[token]
        return Agent(self.first, shown, name), Agent(self.second, shown, name)

    def started(self, pool: str) -> str:
        text = HELLO.replace("step: start\n", f"step: start\n    spec: {{pool: {pool}}}\n")
        return self.first.start(text)

    def refusals(self, execution_id: str) -> list[str]:
        """Who was refused, as the log has it."""
        lost = self.second.get(f"/api/executions/{execution_id}/events", type="command.lost")
        return [
            event["payload"]["worker"]
            for event in lost["events"]
            if event["payload"].get("refused")
        ]


@pytest.fixture(scope="module")
def pair(postgres_server: Any) -> Iterator[Pair]:
    with psycopg.connect(url_of(postgres_server, "postgres"), autocommit=True) as db:
        db.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        db.execute(f"CREATE DATABASE {DATABASE}")
    given = {
        "NOETL_DATABASE_URL": url_of(postgres_server, DATABASE),
        "NOETL_SECRET_KEY": "ab" * 32,
    }
    with (
        temporary_folder() as folder,
        serving(folder, **given) as first,
        serving(folder, **given) as second,
    ):
        roles = {"admin": "admin", "pool-a": "worker", "pool-b": "worker"}
        tokens: dict[str, str] = {}
        for name, role in roles.items():
            body = {"name": name, "roles": [role]}
            made = first.post("/api/access/tokens", body, token=tokens.get("admin", ""))
            tokens[name] = made["token"]
        first.token = second.token = tokens["admin"]
        # It learns within two seconds that it is no longer open to everybody.
        while second.ask("GET", "/api/executions", token="wrong").status != 401:
            pass
        yield Pair(first, second, tokens)


def test_t03_a_stale_report_is_refused_and_recorded_by_whichever_server_hears_it(pair: Pair):
    execution_id = pair.started("stale")
    here, there = pair.agents("slow")
    command = here.lease("stale")
    here.ask("POST", "/api/worker/pool/deregister", {"worker_id": "slow"})
    [_, other] = pair.agents("quick", "pool-b")
    again = other.lease("stale")

    for agent in (there, here, there):
        refused = agent.report(command, worker="slow")
        assert (refused.status, refused.code) == (409, "lease_lost")

    assert pair.refusals(execution_id) == ["pool-a/slow"]
    assert other.report(again, worker="quick").status == 200
    pair.first.post(f"/api/executions/{execution_id}/cancel")


def test_s04_nobody_reports_on_a_command_that_nobody_was_given(pair: Pair):
    execution_id = pair.started("forged")
    [waits] = pair.second.get(f"/api/executions/{execution_id}/why")["waits_for"]
    name = waits["command_id"]
    forged = {
        "command_id": name,
        "execution_id": execution_id,
        "lease": {"token": token_of(name)},
    }

    for agent in pair.agents("forger"):
        assert agent.report(forged).code == "lease_lost"

    assert pair.refusals(execution_id) == []
    here, there = pair.agents("w")
    assert there.report(here.lease("forged")).json["accepted"] is True
    pair.first.post(f"/api/executions/{execution_id}/cancel")


def test_one_key_used_at_both_servers_at_once_is_one_execution(pair: Pair):
    pair.first.post("/api/catalog/register", {"content": HELLO})

    def start(number: int) -> str:
        server = (pair.first, pair.second)[number % 2]
        key = {"Idempotency-Key": f"order-{number // 8}"}
        started = server.post("/api/execute", {"path": "tried/hello"}, headers=key)
        return str(started["execution_id"])

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(start, range(64)))

    for one in range(8):
        assert len(set(found[one * 8 : one * 8 + 8])) == 1
    assert len(set(found)) == 8


@pytest.mark.parametrize("cancels", ["first", "second"])
def test_a_cancellation_reaches_a_worker_that_asks_at_another_server(pair: Pair, cancels: str):
    execution_id = pair.started(f"cancel-{cancels}")
    here, there = pair.agents(f"w-{cancels}")
    asking = {"worker_id": there.name, "wait": 50}
    with ThreadPoolExecutor(1) as threads:
        told = threads.submit(there.ask, "GET", "/api/commands/cancelled", **asking)
        command = here.lease(f"cancel-{cancels}")
        server = pair.first if cancels == "first" else pair.second

        server.post(f"/api/executions/{execution_id}/cancel")

        assert told.result().json["commands"] == [command["command_id"]]


def test_a_server_that_renews_a_lease_tells_its_worker_when_it_is_over(pair: Pair):
    execution_id = pair.started("renewed")
    here, there = pair.agents("mover")
    command = here.lease("renewed")

    assert there.renew(command)["held"] == [command["command_id"]]
    pair.second.post(f"/api/executions/{execution_id}/cancel")

    told = there.ask("GET", "/api/commands/cancelled", worker_id="mover", wait=50).json
    assert told["commands"] == [command["command_id"]]
    assert here.renew(command)["lost"] == [command["command_id"]]


def test_readers_of_either_server_get_each_event_once_whichever_stores_it(pair: Pair):
    execution_id = pair.first.start(WAITING)
    path = f"/api/executions/{execution_id}"
    with ThreadPoolExecutor(4) as threads:
        reading = [
            threads.submit(server.ask, "GET", f"{path}/stream")
            for server in (pair.first, pair.second) * 2
        ]
        for number in range(30):
            server = (pair.first, pair.second)[number // 3 % 2]
            server.post(f"{path}/events", {"name": f"news-{number}"})
        pair.second.post(f"{path}/cancel")
        said = [one.result().raw.decode() for one in reading]

    page = pair.first.get(f"{path}/events", limit=1000)["events"]
    assert len(page) > 30
    for one in said:
        ids = [int(line[4:]) for line in one.splitlines() if line.startswith("id: ")]
        assert ids == [event["seq"] for event in page]
