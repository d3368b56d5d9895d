"""S32, S33 and S34: what is revoked, deleted or rotated is gone; files are nobody else's."""

from __future__ import annotations

import http.client
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.api.access import KNOWN_SECONDS
from tests.cli.conftest import COMMAND, clean_environment
from tests.server.conftest import Guarded
from tests.server.processes import SECRET_KEY, Server, serving
from tests.stopwatch import PATIENCE, Stopwatch

WAITING = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: tests/s32}
workflow:
- step: start
  spec: {eval_mode: on_event}
  case:
  - when: "{{ event.name == 'message.received' }}"
    then: {next: end}
- step: end
  tool: {kind: noop}
"""


@pytest.fixture(scope="module")
def waiting(guarded: Guarded) -> str:
    """An execution that goes on for ever."""
    server, admin = guarded.server, guarded.tokens["admin"]
    server.post("/api/catalog/register", {"content": WAITING}, token=admin)
    return str(server.post("/api/execute", {"path": "tests/s32"}, token=admin)["execution_id"])


def token(guarded: Guarded, name: str, role: str) -> str:
    body = {"name": name, "roles": [role]}
    made = guarded.server.post("/api/access/tokens", body, token=guarded.tokens["admin"])
    return str(made["token"])


def revoke(guarded: Guarded, name: str) -> None:
    path = f"/api/access/tokens/{name}"
    reply = guarded.server.ask("DELETE", path, token=guarded.tokens["admin"])
    assert reply.status == 200


@contextmanager
def asked(
    server: Server, method: str, path: str, shown: str, body: bytes | None = None
) -> Iterator[Any]:
    """A request whose answer takes long."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        headers = {"Authorization": f"Bearer {shown}", "Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        yield connection
    finally:
        connection.close()


def test_s32_a_revoked_token_ends_its_streams_and_no_others(guarded: Guarded, waiting: str):
    server, path = guarded.server, f"/api/executions/{waiting}/stream"
    kept, revoked = token(guarded, "keeper", "viewer"), token(guarded, "reader", "viewer")
    with (
        asked(server, "GET", path, kept) as keeper,
        asked(server, "GET", path, revoked) as reader,
    ):
        goes_on, ends = keeper.getresponse(), reader.getresponse()
        assert b"playbook" in ends.readline() + ends.readline() + ends.readline()

        revoke(guarded, "reader")
        watch = Stopwatch(server.process.pid)
        ends.read()
        assert watch.seconds() < 5
        keeper.sock.settimeout(KNOWN_SECONDS + 0.5)  # who may read on is asked that often
        with pytest.raises(TimeoutError):
            goes_on.read()


def test_s32_a_revoked_token_ends_every_stream_of_it_whichever_was_opened_first(
    guarded: Guarded, waiting: str
):
    """One lookup is for all of them, and goes on when the one that began it is gone."""
    server, path = guarded.server, f"/api/executions/{waiting}/stream"
    shown = token(guarded, "several", "viewer")
    with ExitStack() as stack:
        with asked(server, "GET", path, shown) as first:
            first.getresponse().readline()
            later = [stack.enter_context(asked(server, "GET", path, shown)) for _ in range(3)]
            streams = [one.getresponse() for one in later]
        again = stack.enter_context(asked(server, "GET", path, shown)).getresponse()

        revoke(guarded, "several")
        watch = Stopwatch(server.process.pid)
        for stream in (*streams, again):
            stream.read()
        assert watch.seconds() < 5


def test_s32_a_revoked_token_ends_its_waiting_for_work(guarded: Guarded):
    shown = token(guarded, "worker-1", "worker")
    body = b'{"worker_id": "w", "pool": "s32", "wait": 30}'
    with asked(guarded.server, "POST", "/api/commands/lease", shown, body) as connection:
        time.sleep(0.5)  # it waits by now; if it does not yet, it is refused
        revoke(guarded, "worker-1")
        watch = Stopwatch(guarded.server.process.pid)
        connection.getresponse().read()

    assert watch.seconds() < 5


def test_s32_what_is_revoked_at_one_server_ends_at_the_others(tmp_path: Path, database_url: str):
    given = {"NOETL_DATABASE_URL": database_url}
    with ExitStack() as stack:
        here = stack.enter_context(serving(tmp_path, **given))
        admin = {"name": "root", "roles": ["admin"]}
        here.token = here.post("/api/access/tokens", admin)["token"]
        there = stack.enter_context(serving(tmp_path, **given))
        there.token = here.token
        here.post("/api/catalog/register", {"content": WAITING})
        waiting = here.post("/api/execute", {"path": "tests/s32"})["execution_id"]
        reader = {"name": "reader", "roles": ["viewer"]}
        shown = here.post("/api/access/tokens", reader)["token"]
        person = {"name": "anna", "password": "correct horse battery", "roles": ["operator"]}
        here.post("/api/access/users", person)
        known = {"user": "anna", "password": person["password"]}
        session = there.post("/api/auth/login", known)["token"]
        path = f"/api/executions/{waiting}"
        assert there.ask("GET", path, token=shown).status == 200
        assert there.ask("GET", path, token=session).status == 200

        with asked(there, "GET", f"{path}/stream", shown) as connection:
            answer = connection.getresponse()
            answer.readline()
            assert here.ask("DELETE", "/api/access/tokens/reader").status == 200
            here.post("/api/access/users", {**person, "roles": ["viewer"]})
            watch = Stopwatch(here.process.pid, there.process.pid)
            answer.read()
            assert watch.seconds() < 5
        while there.ask("GET", path, token=session).status != 401:
            assert watch.seconds() < 5
        assert there.ask("GET", path, token=shown).status == 401


# --- S33 -----------------------------------------------------------------------------------------


def sealed_in(database: str) -> list[bytes]:
    """Everything sealed that a database holds."""
    if database.startswith("postgresql:"):
        with closing(psycopg.connect(database)) as db:
            found = db.execute(
                "SELECT data FROM noetl.credential"
                " UNION ALL SELECT data_encrypted FROM noetl.auth_cache"
            ).fetchall()
    else:
        with closing(sqlite3.connect(database)) as db:
            found = db.execute(
                "SELECT data FROM noetl_credential"
                " UNION ALL SELECT data_encrypted FROM noetl_auth_cache"
            ).fetchall()
    return [bytes(row[0]) for row in found if row[0]]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_s33_nothing_sealed_is_left_of_what_was_deleted_replaced_or_rotated(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
):
    given = {"NOETL_SECRET_KEY": f"{'2d' * 32},{SECRET_KEY}"}
    database = str(tmp_path / ".noetl" / "noetl.db")
    if kind == "postgres":
        database = given["NOETL_DATABASE_URL"] = request.getfixturevalue("database_url")
    with serving(tmp_path, **given) as server:

        def put(password: str) -> None:
            body = {"name": "shop", "type": "basic", "data": {"password": password}}
            server.post("/api/credentials", body)
            server.get("/api/credentials/shop", include_data=True)
            kept = {"token": "canary", "expires_in": 3600}
            key = "k" * 32
            assert server.ask("PUT", f"/api/auth-cache/{key}", kept).status == 200

        put("one")
        [first, token_of_first] = sealed_in(database)
        put("two")
        assert not {first, token_of_first} & set(sealed_in(database))
        server.post("/api/keys/rotate")
        assert len(sealed_in(database)) == 1
        put("three")
        assert server.ask("DELETE", "/api/credentials/shop").status == 200
        assert sealed_in(database) == []


# --- S34 -----------------------------------------------------------------------------------------


def test_s34_logs_and_pid_files_are_nobody_elses(tmp_path: Path):
    environment = clean_environment()
    folder = tmp_path / ".noetl"
    folder.mkdir()
    (folder / "server.log").touch(mode=0o644)
    words = ["server", "start", "--port", "0"]

    def run(*arguments: str) -> None:
        command = [*COMMAND, *arguments]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=PATIENCE)

    run(*words, "--detach")
    try:
        found = {file.name: file.stat().st_mode & 0o777 for file in folder.glob("server.*")}
    finally:
        run("server", "stop")

    assert {"server.log", "server.pid"} <= found.keys()
    assert set(found.values()) == {0o600}
