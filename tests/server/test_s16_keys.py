"""S16: the key of credentials lost, wrong or rotated, under real servers and workers.

A door that opens to one token only counts who came through: what the workers were given was right.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiohttp import web

from tests.cli.conftest import COMMAND, clean_environment
from tests.effort import IS_LONG
from tests.server.processes import Server, Worker, serving, working
from tests.stopwatch import PATIENCE
from tests.tools.services import answering

TOKEN = "canary-of-the-door"
EACH = 5 if IS_LONG else 3
OLD, NEW, PASSPHRASE = "01d0" * 16, "4e77" * 16, "another-key-of-the-operator"
"""Keys that are written out cost nothing each time that a server starts."""
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: tests/keys}\n"


class Door:
    """Opens to the token; how often it did."""

    def __init__(self) -> None:
        self.opened = 0
        self.url = ""

    async def knock(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({}, status=401)
        self.opened += 1
        return web.json_response({})

    def through(self, server: Server) -> str:
        """Start an execution that goes through it."""
        tool = f"{{kind: http, url: {self.url}, auth: {{type: bearer, credential: door}}}}"
        return server.start(f"{HEAD}workflow: [{{step: start, tool: {tool}}}]\n")


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    with answering(("GET", "/", made.knock)) as made.url:
        yield made


def store_token(server: Server) -> None:
    server.post("/api/credentials", {"name": "door", "type": "bearer", "data": {"token": TOKEN}})


def stored(database_url: str) -> list[tuple[Any, ...]]:
    """What the database has, past the product."""
    with closing(psycopg.connect(database_url)) as db:
        return db.execute("SELECT name, data, updated_at FROM noetl.credential").fetchall()


def refused(server: Server) -> None:
    """Whoever needs the credential is told why not, and nothing of what is secret."""
    shown = server.ask("GET", "/api/credentials/door", include_data="true")
    rotated = server.ask("POST", "/api/keys/rotate", {})
    for reply in (shown, rotated):
        assert reply.code == "wrong_key"
        assert "Nothing was changed" in reply.json["error"]["message"]
        assert TOKEN not in reply.raw.decode()


def test_s16_another_key_opens_nothing_and_overwrites_nothing(
    tmp_path: Path, database_url: str, door: Door
):
    on = {"NOETL_DATABASE_URL": database_url}
    with serving(tmp_path, NOETL_SECRET_KEY=OLD, **on) as server:
        store_token(server)
        with working(tmp_path, server.url):
            assert server.ended(door.through(server))["status"] == "COMPLETED"
        port = server.port
    before = stored(database_url)

    with serving(tmp_path, port=port, NOETL_SECRET_KEY=PASSPHRASE, **on) as server:
        with working(tmp_path, server.url):
            failed = server.ended(door.through(server))
        assert failed["status"] == "FAILED"
        assert (failed["error"]["kind"], failed["error"]["code"]) == ("auth", "wrong_key")
        assert "Bring back the key file or NOETL_SECRET_KEY" in failed["error"]["message"]
        refused(server)
    assert stored(database_url) == before

    with (
        serving(tmp_path, port=port, NOETL_SECRET_KEY=OLD, **on) as server,
        working(tmp_path, server.url),
    ):
        assert server.ended(door.through(server))["status"] == "COMPLETED"
    assert door.opened == 2


def test_s16_a_key_file_that_is_gone_is_asked_for_and_not_made_anew(tmp_path: Path, door: Door):
    with serving(tmp_path) as server:
        store_token(server)
    key = tmp_path / ".noetl" / "secret.key"
    held = key.read_bytes()
    key.unlink()

    with serving(tmp_path) as server, working(tmp_path, server.url):
        failed = server.ended(door.through(server))
        assert (failed["error"]["kind"], failed["error"]["code"]) == ("auth", "wrong_key")
        refused(server)
        again = server.ask("POST", "/api/credentials", {"name": "other", "data": {"a": "b"}})
        assert again.code == "wrong_key"
    assert not key.exists()

    key.write_bytes(held)
    key.chmod(0o600)
    with serving(tmp_path) as server, working(tmp_path, server.url):
        assert server.ended(door.through(server))["status"] == "COMPLETED"


def test_s16_servers_that_share_a_database_must_be_given_the_key(tmp_path: Path, database_url: str):
    asked = subprocess.run(
        [*COMMAND, "server", "start", "--port", "0"],
        cwd=tmp_path,
        env=clean_environment(NOETL_DATABASE_URL=database_url),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert asked.returncode == 2
    assert "NOETL_SECRET_KEY is not set" in asked.stderr
    assert "openssl rand -base64 32" in asked.stderr
    assert not (tmp_path / ".noetl" / "secret.key").exists()


@pytest.mark.parametrize("key", ["short", f"{'5e' * 32},short", f"short,{'5e' * 32}"])
def test_s16_a_server_does_not_start_with_a_key_that_is_none(key: str, tmp_path: Path):
    asked = subprocess.run(
        [*COMMAND, "server", "start", "--port", "0"],
        cwd=tmp_path,
        env=clean_environment(NOETL_SECRET_KEY=key),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert asked.returncode == 2
    assert "NOETL_SECRET_KEY is too short" in asked.stderr


class Cluster:
    """Two servers under the same addresses for ever, and two workers that know both."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder = folder
        self._on = {"NOETL_DATABASE_URL": database_url}
        self.servers = [Server(folder, NOETL_SECRET_KEY=OLD, **self._on) for _ in range(2)]
        both = ",".join(server.url for server in self.servers)
        self.workers = [Worker(folder, both) for _ in range(2)]

    def restart(self, key: str) -> None:
        """One after the other, with another key."""
        for number, server in enumerate(self.servers):
            assert server.terminate() == 0
            given = {"NOETL_SECRET_KEY": key, **self._on}
            self.servers[number] = Server(self._folder, port=server.port, **given)

    def end(self) -> None:
        for process in (*self.workers, *self.servers):
            process.end()


@pytest.fixture
def cluster(tmp_path: Path, database_url: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, database_url)
    yield made
    made.end()


def test_s16_rotation_with_running_workers_fails_nobody(
    cluster: Cluster, database_url: str, door: Door
):
    store_token(cluster.servers[0])
    ids: list[str] = []

    def begin() -> None:
        ids.extend(door.through(server) for server in cluster.servers * EACH)

    steps: list[Callable[[], object]] = [
        lambda: cluster.restart(f"{NEW},{OLD}"),
        lambda: cluster.servers[1].post("/api/keys/rotate"),
        lambda: cluster.restart(NEW),
    ]
    before = stored(database_url)
    for step in steps:
        begin()
        step()
    begin()

    ends = [cluster.servers[0].ended(execution_id) for execution_id in ids]
    assert [one["status"] for one in ends] == ["COMPLETED"] * len(ids)
    assert door.opened >= len(ids)
    assert stored(database_url) != before


def test_s16_rotation_of_a_key_file_with_running_workers_fails_nobody(tmp_path: Path, door: Door):
    with serving(tmp_path) as server, working(tmp_path, server.url), working(tmp_path, server.url):
        store_token(server)
        ids = []
        for _ in range(3):
            ids += [door.through(server) for _ in range(5)]
            assert server.post("/api/keys/rotate")["rotated"] == 1
        ends = [server.ended(execution_id) for execution_id in ids]

    assert [one["status"] for one in ends] == ["COMPLETED"] * 15
    assert door.opened == 15
    assert len((tmp_path / ".noetl" / "secret.key").read_text().split()) == 1
