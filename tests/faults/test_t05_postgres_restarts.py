"""T5: PostgreSQL is killed and started again while executions run: all complete."""

from __future__ import annotations

import asyncio
import os
import signal

import psycopg

from tests.control.servers import run, servers, started, working

LEASE_SECONDS = 4.0
"""What was handed out in an answer that never came lies idle for so long."""
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


def test_t5_executions_come_through_crashes_of_the_database(database_url: str):
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
            assert await first.store.open_commands() == []
            assert await first.store.check() == []

    run(story)


def test_t5_a_commit_whose_answer_was_lost_is_not_done_twice(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as (server,), working(server, "w"):
            server.orchestrator.dispatch.lease_seconds = LEASE_SECONDS
            crashing = asyncio.create_task(crash(database_url))
            ids = [await started(server, STEPS) for _ in range(20)]
            await crashing
            for execution_id in ids:
                await server.orchestrator.wait_for_end(execution_id)
                types = [row.type for row in await server.store.events(execution_id)]
                assert types.count("playbook.processed") == 1
                assert types.count("step.done") == 3

    run(story)
