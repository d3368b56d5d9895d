"""Several control planes on one PostgreSQL database, as many processes would be."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg

from noetl import wiring
from noetl.api.services import Services
from noetl.control.leases import Waiter
from noetl.control.local import LocalControl
from noetl.control.orchestrator import Orchestrator
from noetl.model.commands import Ending, Lease, Report
from noetl.model.inputs import Lapsed
from noetl.settings import Settings
from noetl.store.log import EventRow
from noetl.tools.registry import tools
from noetl.tools.resources import ToolResources
from noetl.worker.worker import Worker
from tests.server.processes import SECRET_KEY
from tests.stopwatch import PATIENCE

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: tests/servers}\n"


@asynccontextmanager
async def servers(url: str, count: int, **environment: str) -> AsyncIterator[list[Services]]:
    """So many, without workers: tests lease and report themselves."""
    given = {"NOETL_DATABASE_URL": url, "NOETL_SECRET_KEY": SECRET_KEY, **environment}
    settings = Settings.from_environment(given)
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(wiring.embedded(settings, work=False, serves=True))
            for _ in range(count)
        ]
        for system in found:
            await system.membership.beat()
        yield found


@asynccontextmanager
async def working(system: Services, name: str, *, slots: int = 1) -> AsyncIterator[None]:
    """A worker that talks to this server."""
    resources = ToolResources()
    worker = Worker(
        LocalControl(
            system.orchestrator,
            system.store.bodies,
            system.store.credentials,
            system.keys.credential,
        ),
        tools(),
        resources,
        worker_id=name,
        slots=slots,
        now=system.clock.now,
    )
    lapsing = system.orchestrator.leases.requeue_lapsed(system.membership.owns)
    tasks = [asyncio.create_task(worker.run()), asyncio.create_task(lapsing)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await resources.close()


async def started(system: Services, workflow: str) -> str:
    compiled = system.catalog.check(HEAD + workflow)
    net = compiled.unwrap()
    await system.orchestrator.programs.keep(net, compiled.digest)
    return await system.executions.start(compiled.digest, net.path, None, {})


async def leased(
    system: Services, worker: str, *, wait: float = 10.0, want: int = 1
) -> list[Lease]:
    return await system.orchestrator.leases.lease(worker, pool="default", want=want, wait=wait)


async def lapse(orchestrator: Orchestrator, lease: Lease, worker: str) -> None:
    """The lease runs out."""
    ids = {"execution_id": lease.command.execution_id, "command_id": lease.command.command_id}
    await orchestrator.inbox.submit(Lapsed(**ids, at=time.time(), worker=worker))


async def waiting(system: Services, worker: str, *, want: int = 1) -> asyncio.Task[list[Lease]]:
    """A worker that waits for commands, and has begun to."""
    dispatch, begun = system.orchestrator.dispatch, asyncio.Event()
    wait = dispatch.wait

    def noted(waiter: Waiter) -> None:
        wait(waiter)
        begun.set()

    dispatch.wait = noted  # type: ignore[method-assign]
    try:
        task = asyncio.create_task(leased(system, worker, want=want, wait=60))
        await begun.wait()
    finally:
        dispatch.wait = wait  # type: ignore[method-assign]
    return task


def done(lease: Lease, worker: str, result: Any = None, *, number: int = 1) -> Report:
    command = lease.command
    return Report(
        command_id=command.command_id,
        execution_id=command.execution_id,
        token=lease.token,
        number=number,
        worker=worker,
        ending=Ending(result=result),
        closes=True,
    )


async def log(system: Services, execution_id: str) -> list[EventRow]:
    return await system.store.log.events(execution_id, limit=10_000)


async def listening(url: str, count: int) -> list[int]:
    """The processes of PostgreSQL behind so many listeners."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        while True:
            cursor = await db.execute(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'"
            )
            found = [pid for (pid,) in await cursor.fetchall()]
            if len(found) == count:
                return found


@asynccontextmanager
async def deaf(url: str, count: int) -> AsyncIterator[None]:
    """So many servers hear nothing of each other, and do not know that they do not."""
    listeners = await listening(url, count)
    for process in listeners:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in listeners:
            os.kill(process, signal.SIGCONT)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A story that should be over long before this."""

    async def whole() -> None:
        async with asyncio.timeout(PATIENCE):
            await story()

    asyncio.run(whole())
