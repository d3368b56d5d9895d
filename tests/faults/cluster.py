"""Servers and workers as processes that come and go, and a service that counts what they did."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from aiohttp import web

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.effort import IS_LONG
from tests.server.processes import Process, Server, Worker
from tests.stopwatch import PATIENCE
from tests.tools.services import answering

IMPATIENT = (sys.executable, str(Path(__file__).with_name("impatient.py")))
WORKING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: working, path: faults/working}
workload: {url: ""}
workflow:
  - step: start
    tool: {kind: http, method: POST, url: "{{ workload.url }}/{{ execution_id }}.start"}
    next: each
  - step: each
    loop: {in: [0, 1, 2, 3], iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: http, method: POST, url: "{{ workload.url }}/{{ execution_id }}.{{ iter.n }}"}
    next: end
  - step: end
    tool: {kind: noop, result: "{{ each.results | length }}"}
"""
"""Every call leaves a mark at `url`."""
MARKS = ("start", "0", "1", "2", "3")
LOOK_SECONDS = 0.02


class ImpatientServer(Server):
    """A server whose leases are short."""

    command = IMPATIENT


class ImpatientWorker(Worker):
    """A worker that renews its leases in time."""

    command = IMPATIENT


class Effects:
    """What was done, as the far side saw it."""

    def __init__(self) -> None:
        self.url = ""
        self.seconds = 0.0
        """How long it takes to leave a mark."""
        self.limit = math.inf
        """So many different marks are answered at once; beyond, whoever leaves one has to wait."""
        self._keys: dict[str, list[str]] = {}
        self.order: list[str] = []
        """Marks as they came, also those that came again."""
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """How many marks were being left at the same time, at most: by what they begin with up to
        the first dot, and under `""` in all."""
        self._more = threading.Condition()

    async def mark(self, request: web.Request) -> web.StreamResponse:
        key = request.headers["Idempotency-Key"]
        mark = request.match_info["mark"]
        groups = ("", mark.partition(".")[0])
        with self._more:
            self._keys.setdefault(mark, []).append(key)
            self.order.append(mark)
            self._more.notify_all()
        for group in groups:
            self._now[group] += 1
            self.most[group] = max(self.most[group], self._now[group])
        await asyncio.sleep(self.seconds)
        while self.total > self.limit:
            await asyncio.sleep(LOOK_SECONDS)
        for group in groups:
            self._now[group] -= 1
        return web.json_response({})

    @property
    def total(self) -> int:
        """How many different marks there are."""
        return len(self._keys)

    def keys(self, mark: str) -> list[str]:
        """Under which keys it was left, each time: by them a receiver knows that it was before."""
        return self._keys.get(mark, [])

    def stop_at(self, total: int) -> None:
        """Let so many marks pass, and come back when whoever works waits in the middle of it."""
        self.limit = total
        self.wait_for(total + 1)

    def wait_for(self, total: int) -> None:
        """Until there are so many different marks."""
        with self._more:
            came = self._more.wait_for(lambda: self.total >= total, PATIENCE)
        assert came, f"{self.total} marks instead of {total}"


@contextmanager
def effects() -> Iterator[Effects]:
    """A service that remembers every mark that is left there."""
    found = Effects()
    with answering(("POST", "/{mark}", found.mark)) as url:
        found.url = url
        yield found


class Cluster:
    """Processes on one database, in one directory.

    Leases are short, for tests that kill workers; a `patient` one has those that users have, for
    tests that count every call: a slow machine may outlast a short lease.
    """

    def __init__(
        self, folder: Path, database_url: str | None = None, *, patient: bool = False
    ) -> None:
        self.folder = folder
        self._server = Server if patient else ImpatientServer
        self._worker = Worker if patient else ImpatientWorker
        self.database_url = database_url
        self._settings = {} if database_url is None else {"NOETL_DATABASE_URL": database_url}
        self._processes: list[Process] = []
        self._looking: psycopg.Connection[tuple[Any, ...]] | None = None
        self.workers: list[Worker] = []

    def server(self, port: int = 0) -> Server:
        """One more server, or one in the place of another."""
        made = self._server(self.folder, port=port, **self._settings)
        self._processes.append(made)
        return made

    def worker(self, *servers: Server, slots: int = 4, pool: str = "default") -> Worker:
        """One more worker, of these servers."""
        urls = ",".join(server.url for server in servers)
        options = ("--slots", str(slots), "--pool", pool)
        made = self._worker(self.folder, urls, *options)
        self._processes.append(made)
        self.workers.append(made)
        return made

    def check(self) -> str:
        """What `noetl db check` finds wrong, while no server runs."""
        ran = forked.run(
            [*COMMAND, "db", "check"],
            cwd=self.folder,
            env=clean_environment(**self._settings),
            capture_output=True,
            text=True,
        )
        return "" if ran.returncode == 0 else ran.stdout + ran.stderr

    def looking(self) -> psycopg.Connection[tuple[Any, ...]]:
        """One connection for all looks past the product: each new one is a process of PostgreSQL,
        and tests look many times a second."""
        assert self.database_url is not None
        if self._looking is None:
            self._looking = psycopg.connect(self.database_url, autocommit=True)
            self._looking.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return self._looking

    def end(self) -> None:
        for process in reversed(self._processes):
            process.end()
        if self._looking is not None:
            self._looking.close()


class Served(NamedTuple):
    """A cluster that runs."""

    cluster: Cluster
    server: Server
    effects: Effects

    @contextmanager
    def moment(self) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
        """Ask the database, past the product, about one moment: `noetl.x` is the table x."""
        url = self.cluster.database_url
        if url is None:
            path = self.cluster.folder / ".noetl" / "noetl.db"
            with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as db:
                db.execute("BEGIN")
                yield lambda sql: db.execute(sql.replace("noetl.", "noetl_")).fetchall()
                db.execute("COMMIT")
        else:
            connection = self.cluster.looking()
            with connection.transaction():
                yield lambda sql: connection.execute(sql.encode()).fetchall()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.moment() as ask:
            return ask(sql)

    def many(self, count: int) -> int:
        """So many on SQLite. On PostgreSQL, where each costs twice as much, a quarter of them, and
        all in `make test-long`."""
        return count if IS_LONG or self.cluster.database_url is None else count // 4

    def is_free(self) -> bool:
        """No command waits for a worker, and no worker has one."""
        return self.query("SELECT count(*) FROM noetl.queue") == [(0,)]


def playbook(path: str, workflow: str, workload: str = "{}") -> str:
    """A playbook of this workflow, under a path of its own."""
    name = path.replace("/", "_")
    head = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: {path}}}\n"
    return f"{head}workload: {workload}\nworkflow:\n{workflow.strip(chr(10))}\n"


def start_many(server: Server, text: str, workloads: Iterable[dict[str, Any]]) -> list[str]:
    """Register a playbook and start it with each of these."""
    entry = server.post("/api/catalog/register", {"content": text})
    wanted = {"path": entry["path"], "version": entry["version"]}
    return [
        str(server.post("/api/execute", {**wanted, "workload": workload})["execution_id"])
        for workload in workloads
    ]


def check_ended(server: Server, effects: Effects, ids: list[str]) -> None:
    """Each has completed, every call was made and recorded, each recorded once."""
    for execution_id in ids:
        document = server.ended(execution_id)
        assert (document["status"], document["result"]) == ("COMPLETED", 4), document["error"]
        done = Counter()
        for event in server.events(execution_id):
            if event["name"] in ("step.done", "loop.iteration.done", "playbook.processed"):
                done[event["name"], event["step"], event["iteration"]] += 1
        assert set(done.values()) == {1}, "something was recorded twice"
        assert sum(name == "loop.iteration.done" for name, _, _ in done) == 4
        for mark in MARKS:
            keys = effects.keys(f"{execution_id}.{mark}")
            assert len(set(keys)) == 1, (mark, keys)


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for something that nobody tells us about."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(LOOK_SECONDS)
