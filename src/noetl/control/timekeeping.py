"""Keeps the promises that have a time on them: timers that fire, leases that lapse."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from noetl.control.clock import Clock
from noetl.control.orchestrator import Orchestrator
from noetl.errors import NoetlError
from noetl.store.base import Store

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Even if every wake-up is lost, timers fire no later than this."""
BATCH = 200


async def fire_timers(orchestrator: Orchestrator, store: Store, clock: Clock) -> None:
    """Fire what is due, sleep until the next, for ever."""
    while True:
        orchestrator.timer_changed.clear()
        due = await store.due_timers(now=clock.now(), limit=BATCH)
        for execution_id, timer_id, _ in due:
            try:
                await orchestrator.fire(execution_id, timer_id)
            except NoetlError:
                logger.exception("a timer could not fire", extra={"execution_id": execution_id})
        if due:
            continue
        following = await store.next_timer()
        pause = POLL_SECONDS if following is None else max(0.0, following - clock.now())
        with suppress(TimeoutError):
            await asyncio.wait_for(orchestrator.timer_changed.wait(), min(pause, POLL_SECONDS))


async def requeue_lapsed(orchestrator: Orchestrator, store: Store, clock: Clock) -> None:
    """Give the work of lost leases to somebody else, for ever."""
    while True:
        await clock.sleep(POLL_SECONDS)
        for lease in await store.lapsed(now=clock.now(), limit=BATCH):
            command = lease.command
            held = orchestrator.dispatch.held.get(command.command_id)
            await orchestrator.lapse(
                command.execution_id,
                command.command_id,
                held.worker_id if held is not None else "",
            )


async def recover(orchestrator: Orchestrator, store: Store) -> int:
    """This process is the only one: whoever held a lease before it started is gone.

    Returns how many commands go on under a new lease.
    """
    found = 0
    for command, worker, _ in await store.open_commands():
        if worker is not None:
            await orchestrator.lapse(command.execution_id, command.command_id, worker)
            found += 1
    return found
