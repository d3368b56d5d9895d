"""T12 and T40: NATS loses everything, during runs and before a backup is restored.

Every step knocks at a counter under a name of its own: what was done is known by what came there.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from aiohttp import web

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.effort import IS_LONG
from tests.server.processes import SECRET_KEY, Server, serving, working
from tests.servers import NatsServer, nats_running, url_of
from tests.stopwatch import PATIENCE
from tests.tools.services import answering

LARGE = 400_000
EACH = 10 if IS_LONG else 5
"""Executions that are started each time."""
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: tests/%s}\n"
STEPS = """workload: {url: none, name: none}
workflow:
- step: start
  spec: {pool: %s}
  tool: {kind: http, url: "{{ workload.url }}/{{ workload.name }}/start"}
  next: large
- step: large
  tool: {kind: python, args: {size: %d}, code: "result = {'text': 'x' * size}"}
  next: end
- step: end
  args: {size: "{{ large.text | length }}"}
  tool: {kind: http, url: "{{ workload.url }}/{{ workload.name }}/{{ args.size }}"}
"""
WAITING = (
    HEAD % "waiting"
    + """workload: {url: none}
workflow:
- step: start
  spec: {eval_mode: on_event}
  case:
  - when: "{{ event.name == 'message.received' }}"
    then: {next: end}
- step: end
  tool: {kind: http, url: "{{ workload.url }}/signal/end"}
"""
)


class Knocks:
    """What came, and how often."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: Counter[str] = Counter()
        self._change = threading.Condition()

    async def knock(self, request: web.Request) -> web.StreamResponse:
        with self._change:
            self.heard[request.path] += 1
            self._change.notify_all()
        return web.json_response({})

    def wait_for(self, count: int) -> None:
        """Until so many came."""
        with self._change:
            assert self._change.wait_for(lambda: self.heard.total() >= count, PATIENCE)

    def of(self, *names: str) -> Counter[str]:
        """What whole executions of these names leave behind."""
        return Counter({f"/{name}/{part}": 1 for name in names for part in ("start", LARGE)})


@pytest.fixture
def knocks() -> Iterator[Knocks]:
    made = Knocks()
    with answering(("GET", "/{name}/{part}", made.knock)) as made.url:
        yield made


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_running(tmp_path / "nats") as server:
        yield server


class Installation(NamedTuple):
    """Servers on one database, who may work for them, and somebody who signed in."""

    servers: list[Server]
    worker_token: str
    session: str

    def start(self, name: str, url: str, *, at: int = 0, pool: str = "default") -> str:
        text = HEAD % f"knocking/{pool}" + STEPS % (pool, LARGE)
        return self.servers[at].start(text, {"name": name, "url": url})


def installed(servers: list[Server]) -> Installation:
    """Close servers that were open, and sign somebody in."""
    first = servers[0]
    first.token = first.post("/api/access/tokens", {"name": "a", "roles": ["admin"]})["token"]
    worker = first.post("/api/access/tokens", {"name": "w", "roles": ["worker"]})["token"]
    person = {"name": "ada", "roles": ["viewer"], "password": "lovelace1815"}
    first.post("/api/access/users", person)
    login = {"user": "ada", "password": "lovelace1815"}
    session = first.ask("POST", "/api/auth/login", login, token="").json["token"]
    for server in servers:
        server.token = first.token
        # Another server learns within two seconds that it is no longer open to everybody.
        until(partial(is_closed, server))
    return Installation(servers, worker, session)


def signed_in(server: Server, session: str) -> str:
    return str(server.get("/api/auth/me", token=session)["name"])


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def wait_for_nats(server: Server, word: str) -> None:
    until(lambda: server.get("/health")["nats"] == word)


def is_closed(server: Server) -> bool:
    return server.ask("GET", "/api/executions", token="wrong").status == 401


def result_of(server: Server, execution_id: str, step: str) -> Any:
    """The body of a result that is kept by reference."""
    document = server.get(f"/api/executions/{execution_id}")
    [found] = [one["result"] for one in document["steps"] if one["step"] == step]
    reference = found["_ref"]
    return server.get(f"/api/results/{execution_id}/{reference['key']}")


def test_t12_nats_loses_everything_during_runs_and_nothing_else_is_lost(
    tmp_path: Path, database_url: str, nats: NatsServer, knocks: Knocks
):
    given = {"NOETL_DATABASE_URL": database_url, "NOETL_NATS_URL": nats.url}
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(tmp_path, **given)) for _ in range(2)]
        for server in servers:
            wait_for_nats(server, "connected")
        system = installed(servers)
        names = [f"run-{number}" for number in range(3 * EACH)]
        ids = [system.start(name, knocks.url, at=n % 2) for n, name in enumerate(names[:EACH])]
        for server in servers:
            worker = working(tmp_path, server.url, "--slots", "4", NOETL_TOKEN=system.worker_token)
            stack.enter_context(worker)

        for round_ in (1, 2):
            knocks.wait_for(EACH * round_)
            nats.lose_everything()
            more = names[EACH * round_ : EACH * round_ + EACH]
            ids += [system.start(name, knocks.url, at=n % 2) for n, name in enumerate(more)]
            assert [signed_in(server, system.session) for server in servers] == ["ada", "ada"]
            for server in servers:
                wait_for_nats(server, "away")
                assert server.get("/health")["status"] == "ok"
            nats.start()
            for server in servers:
                wait_for_nats(server, "connected")
        ends = [servers[0].ended(execution_id)["status"] for execution_id in ids]

        assert ends == ["COMPLETED"] * len(names)
        assert knocks.heard == knocks.of(*names)
        assert result_of(servers[1], ids[0], "large") == {"text": "x" * LARGE}
        assert [signed_in(server, system.session) for server in servers] == ["ada", "ada"]
        assert servers[0].ask("POST", "/api/auth/logout", token=system.session).status == 200
        until(lambda: servers[1].ask("GET", "/api/auth/me", token=system.session).status == 401)
        figures = dict(
            line.rsplit(" ", 1)
            for line in servers[0].ask("GET", "/metrics").raw.decode().splitlines()
        )
        assert float(figures["noetl_nats_connected"]) == 1
        assert float(figures["noetl_nats_connects_total"]) >= 3


def backed_up(postgres: Any, database: str, file: Path) -> None:
    words = [postgres.bin_path / "pg_dump", "--format=custom", f"--file={file}"]
    subprocess.run([*words, url_of(postgres, database)], check=True, timeout=PATIENCE)


def restored(postgres: Any, file: Path) -> str:
    """A database made of the backup."""
    with psycopg.connect(url_of(postgres, "postgres"), autocommit=True) as db:
        db.execute("DROP DATABASE IF EXISTS restored WITH (FORCE)")
        db.execute("CREATE DATABASE restored")
    url = url_of(postgres, "restored")
    words = [postgres.bin_path / "pg_restore", "--no-owner", f"--dbname={url}"]
    subprocess.run([*words, file], check=True, timeout=PATIENCE)
    return url


def test_t40_executions_go_on_from_a_backup_with_nats_empty(
    tmp_path: Path, postgres_server: Any, database_url: str, nats: NatsServer, knocks: Knocks
):
    given = {"NOETL_NATS_URL": nats.url, "NOETL_SECRET_KEY": SECRET_KEY}
    file = tmp_path / "noetl.dump"
    with serving(tmp_path, NOETL_DATABASE_URL=database_url, **given) as server:
        system = installed([server])
        finished = system.start("finished", knocks.url)
        waiting = server.start(WAITING, {"url": knocks.url})
        with working(tmp_path, server.url, NOETL_TOKEN=system.worker_token):
            assert server.ended(finished)["status"] == "COMPLETED"
            server.wait_for(waiting, "step.waiting")
        queued = [system.start(f"queued-{n}", knocks.url, pool="later") for n in range(5)]
        backed_up(postgres_server, "noetl", file)
        lost = system.start("lost", knocks.url)
        server.kill()
    nats.lose_everything()
    nats.start()

    url = restored(postgres_server, file)
    with serving(tmp_path, NOETL_DATABASE_URL=url, **given) as server:
        server.token = system.servers[0].token
        token = {"NOETL_TOKEN": system.worker_token}
        with (
            working(tmp_path, server.url, **token),
            working(tmp_path, server.url, "--pool", "later", **token),
        ):
            data = {"name": "message.received", "data": {"go": True}}
            server.post(f"/api/executions/{waiting}/events", data)
            ends = [server.ended(one)["status"] for one in (finished, waiting, *queued)]

        assert ends == ["COMPLETED"] * 7
        names = ("finished", *(f"queued-{n}" for n in range(5)))
        assert knocks.heard == knocks.of(*names) + Counter({"/signal/end": 1})
        assert result_of(server, finished, "large") == {"text": "x" * LARGE}
        assert signed_in(server, system.session) == "ada"
        assert server.ask("GET", f"/api/executions/{lost}").status == 404

    environment = clean_environment(NOETL_DATABASE_URL=url)
    checked = [*COMMAND, "db", "check"]
    forked.run(checked, cwd=tmp_path, env=environment, check=True, timeout=PATIENCE)
