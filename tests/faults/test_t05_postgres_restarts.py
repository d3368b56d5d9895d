"""T5: PostgreSQL is killed and started again while executions run: all complete."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.control.servers import run, servers, started, working
from tests.faults.cluster import MARKS, WORKING, Cluster, Effects, check_ended, until
from tests.server.processes import Server
from tests.servers import postgres_running, restart, url_of

LEASE_SECONDS = 4.0
"""What was handed out in an answer that never came lies idle for so long."""
RESTARTS = 2
RESTART_SECONDS = 2.0
STEPS = """
workflow:
- {step: start, tool: {kind: noop}, next: middle}
- {step: middle, tool: {kind: noop}, next: end}
- {step: end, tool: {kind: noop, result: done}}
"""


async def connected(url: str) -> psycopg.AsyncConnection[tuple[object, ...]] | None:
    """None while the server still recovers from the last crash."""
    try:
        return await psycopg.AsyncConnection.connect(url)
    except psycopg.OperationalError:
        return None


async def crash(url: str) -> None:
    """Every connection breaks at once; the server comes back by itself."""
    while (db := await connected(url)) is None:
        await asyncio.sleep(0.05)
    # A process of the server that dies without a word makes it end all others and recover.
    os.kill(db.info.backend_pid, signal.SIGKILL)
    await db.close()


def test_t05_executions_come_through_crashes_of_the_database(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            for server in (first, second):
                server.orchestrator.dispatch.lease_seconds = LEASE_SECONDS
            async with working(first, "w-1", slots=4), working(second, "w-2", slots=4):
                ids = []
                for _ in range(3):
                    ids += [await started(one, STEPS) for one in (first, second) * 10]
                    await crash(database_url)
                states = [await second.orchestrator.wait_for_end(one) for one in ids]

            assert {(state.status, state.result) for state in states} == {("COMPLETED", "done")}
            assert await first.store.queue.open_commands() == []
            assert await first.store.check() == []

    run(story)


def test_t05_a_commit_whose_answer_was_lost_is_not_done_twice(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as (server,), working(server, "w"):
            server.orchestrator.dispatch.lease_seconds = LEASE_SECONDS
            crashing = asyncio.create_task(crash(database_url))
            ids = [await started(server, STEPS) for _ in range(20)]
            await crashing
            for execution_id in ids:
                await server.orchestrator.wait_for_end(execution_id)
                types = [row.type for row in await server.store.log.events(execution_id)]
                assert types.count("playbook.processed") == 1
                assert types.count("step.done") == 3

    run(story)


# --- With processes, and a database that is really gone for a while ---


@pytest.mark.parametrize("executions", [30, pytest.param(500, marks=pytest.mark.long)])
def test_t05_processes_come_through_restarts_of_the_database(
    tmp_path: Path, counted: Effects, executions: int
):
    with postgres_running() as postgres:
        cluster = Cluster(tmp_path, url_of(postgres, "postgres"))
        try:
            server = cluster.server()
            for _ in range(2):
                cluster.worker(server, slots=8)
            with restarting(postgres, at_most=executions // 15) as restarts:
                ids = [started_somehow(server, counted, key) for key in range(executions)]
                counted.wait_for(executions * len(MARKS))
                until(lambda: len(restarts) >= RESTARTS, "it is never restarted")
            check_ended(server, counted, ids)
            assert len(set(ids)) == executions
            assert counted.total == executions * len(MARKS), "some were started twice"
            assert server.get("/api/executions", status="RUNNING")["executions"] == []
        finally:
            cluster.end()


@contextmanager
def restarting(postgres: Any, *, at_most: int) -> Iterator[list[float]]:
    """Restart the database every other second, so often that a slow machine comes to an end."""
    enough = threading.Event()
    restarts: list[float] = []

    def strike() -> None:
        while len(restarts) < at_most and not enough.wait(RESTART_SECONDS):
            restart(postgres)
            restarts.append(time.monotonic())

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield restarts
    finally:
        enough.set()
        thread.join()


def started_somehow(server: Server, effects: Effects, key: int) -> str:
    """Ask until it is taken; the same key starts the same execution."""
    found: list[str] = []

    def is_taken() -> bool:
        entry = server.ask("POST", "/api/catalog/register", {"content": WORKING})
        if entry.status == 200:
            wanted = {"path": entry.json["path"], "workload": {"url": effects.url}}
            headers = {"Idempotency-Key": f"start-{key}"}
            reply = server.ask("POST", "/api/execute", wanted, headers=headers)
            assert reply.status in (200, 503), reply.raw
            found.extend([reply.json["execution_id"]] if reply.status == 200 else [])
        return bool(found)

    until(is_taken, "nothing can be started")
    return found[0]
