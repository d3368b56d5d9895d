"""S25: tasks have the credentials that they name, and none that lie about on the worker."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import clean_environment
from tests.tools.running import Bench, failure, on_bench

CANARY = "canary-of-the-worker"
ASKS_FOR_PASSWORD = b"R" + struct.pack(">ii", 8, 3)
NO_TLS = b"N"
TLS_OR_GSS = (80877103, 80877104)


class Nosy:
    """A server that asks whoever comes for a password, and remembers what it was told."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.heard: list[bytes] = []
        self.asked = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return
            with line:
                self._ask(line)

    def _ask(self, line: socket.socket) -> None:
        while True:
            head = line.recv(8)
            if len(head) < 8:
                return
            size, code = struct.unpack(">ii", head)
            if code not in TLS_OR_GSS:
                break
            line.sendall(NO_TLS)
        line.recv(size - 8)
        self.asked += 1
        line.sendall(ASKS_FOR_PASSWORD)
        if said := line.recv(1000):
            self.heard.append(said)


@pytest.fixture
def nosy() -> Iterator[Nosy]:
    server = Nosy()
    yield server
    server.listener.close()


@pytest.fixture
def careless(tmp_path, monkeypatch, nosy):
    """The ways in which operators leave passwords about."""
    (tmp_path / ".pgpass").write_text(f"*:*:*:*:{CANARY}\n")
    (tmp_path / ".pgpass").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / ".pgpass"))
    monkeypatch.setenv("PGPASSWORD", CANARY)
    return {"host": "127.0.0.1", "port": nosy.port, "user": "u", "dbname": "d"}


def tasks(login: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    url = f"postgresql+psycopg://u@127.0.0.1:{login['port']}/d"
    return [
        ("postgres", {"auth": login, "command": "SELECT 1"}),
        ("sql", {"url": url, "command": "SELECT 1"}),
        (
            "transfer",
            {
                "source": {"kind": "postgres", "auth": login, "command": "SELECT 1"},
                "target": {"kind": "postgres", "auth": login, "table": "t"},
            },
        ),
    ]


@pytest.mark.parametrize("number", range(3), ids=["postgres", "sql", "transfer"])
def test_s25_libpq_uses_no_password_of_the_worker(number, careless, nosy):
    kind, config = tasks(careless)[number]

    async def work(bench: Bench) -> Any:
        return await bench.run(kind, config)

    failed_as, message = failure(on_bench(work))

    assert nosy.asked, (failed_as, message)
    assert nosy.heard == []


@pytest.mark.parametrize(
    ("named", "config"),
    [
        ("postgres", {"auth": {"dsn": "service=prod"}}),
        ("sql", {"url": "postgresql://u@127.0.0.1:1/d?service=prod"}),
        ("sql", {"url": "postgresql://u@127.0.0.1:1/d", "options": {"service": "prod"}}),
    ],
)
def test_s25_a_service_of_the_worker_is_refused(careless, named, config):
    async def work(bench: Bench) -> Any:
        return await bench.run(named, {**config, "command": "SELECT 1"})

    kind, message = failure(on_bench(work))

    assert kind == "auth"
    assert "not lent" in message


LOOK = """
import asyncio, json, os
from noetl import wiring
from noetl.settings import Settings

async def worker():
    return wiring.for_worker(Settings.from_environment(os.environ), 1)

resources, sources = asyncio.run(worker())
print(json.dumps([dict(os.environ), dict(resources.rules.opened), dict(sources.environment)]))
"""


def test_s25_a_worker_lets_go_of_what_libraries_would_find():
    given = clean_environment(
        AWS_SECRET_ACCESS_KEY=CANARY,
        GOOGLE_APPLICATION_CREDENTIALS="/key.json",
        AZURE_STORAGE_KEY=CANARY,
        PGSERVICE="prod",
        SHOP_TOKEN="opened",
        NOETL_TASK_ENV="SHOP_*,AWS_SECRET_ACCESS_KEY",
    )
    ran = subprocess.run([sys.executable, "-c", LOOK], env=given, capture_output=True, text=True)

    ours, opened, secrets = json.loads(ran.stdout)
    assert CANARY not in ours.values()
    assert not {"GOOGLE_APPLICATION_CREDENTIALS", "PGSERVICE"} & ours.keys()
    assert opened == secrets == {"SHOP_TOKEN": "opened", "AWS_SECRET_ACCESS_KEY": CANARY}
