"""Servers and workers as processes of their own, and how tests talk to them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.stopwatch import PATIENCE

READY_FD = "_NOETL_READY_FD"
SECRET_KEY = "5e" * 32
"""Written out, as the documentation advises: to stretch a passphrase costs half a second each time
that a server starts."""


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["error"]["code"])


class Process:
    """`noetl …` that says when it is ready."""

    command: tuple[str, ...] = COMMAND

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        read_end, write_end = os.pipe()
        config = {"XDG_CONFIG_HOME": str(folder / "config")}
        self.log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = forked.popen(
                [*self.command, *arguments],
                cwd=folder,
                env=clean_environment(**config, **environment) | {READY_FD: str(write_end)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[write_end],
            )
        os.close(write_end)
        with os.fdopen(read_end, "rb") as ready:
            self.said = ready.readline().decode().strip()
        if not self.said:
            self.process.wait()
            raise AssertionError(self.log.read_text())

    def cpu_seconds(self) -> float:
        """Processor time until now."""
        # In nanoseconds; `stat` counts hundredths of a second, in which a server does a lot.
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in threads) / 1e9

    def terminate(self) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """As the power plug would."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


class Server(Process):
    """A server on a free port, or on the one it had before."""

    def __init__(
        self, folder: Path, *, kind: str = "server", port: int = 0, **environment: str
    ) -> None:
        start = [kind, "start"] if kind == "server" else [kind]
        if environment.get("NOETL_DATABASE_URL", "").startswith("postgresql:"):
            environment.setdefault("NOETL_SECRET_KEY", SECRET_KEY)
        super().__init__(folder, *start, "--port", str(port), **environment)
        self.url = self.said
        self.port = urlsplit(self.url).port or 0
        self.token: str | None = None

    def ask(
        self,
        method: str,
        route: str,
        body: Any = None,
        /,
        *,
        token: str | None = None,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        **params: Any,
    ) -> Reply:
        """One request on a connection of its own; the path goes out exactly as it is written."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        shown = self.token if token is None else token
        sent = {**({"Authorization": f"Bearer {shown}"} if shown else {}), **(headers or {})}
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        query = f"?{urlencode(params, doseq=True)}" if params else ""
        try:
            connection.request(method, route + query, raw, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            assert len(found) == len(answer.getheaders()), "no header comes twice"
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, route: str, /, **params: Any) -> Any:
        reply = self.ask("GET", route, **params)
        assert reply.status == 200, (route, reply.status, reply.raw)
        return reply.json

    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        reply = self.ask("POST", path, {} if body is None else body, **more)
        assert reply.status == 200, (path, reply.status, reply.raw)
        return reply.json

    def start(self, text: str, workload: dict[str, Any] | None = None) -> str:
        """Register a playbook and start it; the execution's id."""
        entry = self.post("/api/catalog/register", {"content": text})
        wanted = {"path": entry["path"], "version": entry["version"], "workload": workload or {}}
        return str(self.post("/api/execute", wanted)["execution_id"])

    def events(self, execution_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more = True
        while more:
            after = found[-1]["seq"] if found else 0
            page = self.get(f"/api/executions/{execution_id}/events", after=after, limit=500)
            found += page["events"]
            more = page["more"]
        return found

    def wait_for(self, execution_id: str, name: str, after: int = 0) -> dict[str, Any]:
        """The next event of that name, when it has happened."""
        deadline = time.monotonic() + PATIENCE
        path = f"/api/executions/{execution_id}/events"
        while time.monotonic() < deadline:
            page = self.get(path, after=after, type=name, wait=10)
            if page["events"]:
                return dict(page["events"][0])
        raise AssertionError(f"{name} did not happen: {self.get(f'{path[:-7]}')}")

    def ended(self, execution_id: str) -> dict[str, Any]:
        """The document of an execution, when it has ended."""
        self.wait_for(execution_id, "playbook.processed")
        return dict(self.get(f"/api/executions/{execution_id}"))


class Worker(Process):
    """A worker of a server."""

    def __init__(self, folder: Path, url: str, *arguments: str, **environment: str) -> None:
        super().__init__(folder, "worker", "start", "--server", url, *arguments, **environment)


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Server]:
    """A server for as long as the body lasts."""
    server = Server(folder, **options)
    try:
        yield server
    finally:
        server.end()


@contextmanager
def working(folder: Path, url: str, *arguments: str, **environment: str) -> Iterator[Worker]:
    """A worker for as long as the body lasts."""
    worker = Worker(folder, url, *arguments, **environment)
    try:
        yield worker
    finally:
        worker.end()
