"""The life of a worker as a process: it registers, works, drains when asked to, and deregisters.

    registered ──▶ working ──▶ draining ──▶ deregistered
                   heartbeats     │ after the grace period running work is handed back

`ending` asks it to drain: a signal sets it, and so does a heartbeat whose answer says that an
operator wants the worker to end. A worker that dies without deregistering loses its leases when
they lapse; deregistering only makes that immediate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from noetl.errors import NoetlError
from noetl.model.commands import Presence
from noetl.worker.worker import Worker

logger = logging.getLogger(__name__)

BEAT_SECONDS = 15.0
GOODBYE_SECONDS = 5.0


class Members(Protocol):
    """Where a worker registers."""

    async def register(self, me: Presence) -> None:
        """A worker begins; waits until a server knows it."""

    async def heartbeat(self, me: Presence) -> bool:
        """A heartbeat. Returns whether an operator wants the worker to end."""

    async def deregister(self, worker_id: str) -> None:
        """The worker ends: commands that it has not reported on go to others."""


async def live(
    worker: Worker,
    members: Members,
    me: Presence,
    ending: asyncio.Event,
    *,
    grace: float,
    on_ready: Callable[[], None],
) -> None:
    """Work until `ending` is set. Running work then has `grace` seconds to finish."""
    registering = asyncio.ensure_future(members.register(me))
    if not await _before(registering, ending):
        return
    on_ready()
    beating = asyncio.ensure_future(_beat(members, me, ending))
    await _work(worker, ending, grace)
    beating.cancel()
    await _say_goodbye(members, me.worker_id)


async def _work(worker: Worker, ending: asyncio.Event, grace: float) -> None:
    running = asyncio.ensure_future(worker.run())
    if await _before(asyncio.shield(running), ending):
        return
    logger.info("draining", extra={"worker_id": worker.worker_id})
    worker.drain()
    _, unfinished = await asyncio.wait({running}, timeout=grace)
    if unfinished:
        logger.warning("handing back what is running", extra={"worker_id": worker.worker_id})
        await worker.stop()
    await running


async def _before(work: asyncio.Future[None], ending: asyncio.Event) -> bool:
    """Whether the work was done before the process was asked to end."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(ending.wait())
    await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        work.result()
        return True
    work.cancel()
    return False


async def _beat(members: Members, me: Presence, ending: asyncio.Event) -> None:
    """Heartbeats are for people, and leases do not depend on them: one may fail."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            if await members.heartbeat(msgspec.structs.replace(me, draining=ending.is_set())):
                ending.set()
        except NoetlError as error:
            logger.warning("no heartbeat: %s", error)


async def _say_goodbye(members: Members, worker_id: str) -> None:
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await members.deregister(worker_id)
    except (NoetlError, TimeoutError) as error:
        logger.warning("no server heard that we end: %s", error)
