"""Keeps the promises that have a time on them: timers that fire, leases that lapse."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from noetl.control.clock import Clock
from noetl.control.orchestrator import Orchestrator
from noetl.model.commands import Command
from noetl.model.ids import ExecutionId
from noetl.store.base import Store

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Even if every wake-up is lost, timers fire no later than this."""
BATCH = 200
EVERY = 1_000_000


async def fire_timers(orchestrator: Orchestrator, store: Store, clock: Clock) -> None:
    """Fire what is due, sleep until the next, for ever."""
    while True:
        orchestrator.timer_changed.clear()
        due = await _due(orchestrator, store, clock)
        fired = 0
        for execution_id, timer_id, _ in due:
            try:
                await orchestrator.fire(execution_id, timer_id)
                fired += 1
            except Exception:
                # One execution that cannot go on must not stop the others.
                logger.exception("a timer could not fire", extra={"execution_id": execution_id})
        if fired:
            continue
        if due:
            await clock.sleep(POLL_SECONDS)
            continue
        following = await _next(orchestrator, store)
        pause = POLL_SECONDS if following is None else max(0.0, following - clock.now())
        with suppress(TimeoutError):
            await asyncio.wait_for(orchestrator.timer_changed.wait(), min(pause, POLL_SECONDS))


async def _due(
    orchestrator: Orchestrator, store: Store, clock: Clock
) -> list[tuple[ExecutionId, str, float]]:
    if orchestrator.chosen is None:
        return await store.due_timers(now=clock.now(), limit=BATCH)
    # Timers of executions that do not go on here stay due; they must not hide the others.
    due = await store.due_timers(now=clock.now(), limit=EVERY)
    return [timer for timer in due if orchestrator.is_chosen(timer[0])]


async def _next(orchestrator: Orchestrator, store: Store) -> float | None:
    if orchestrator.chosen is None:
        return await store.next_timer()
    return orchestrator.next_chosen_timer()


async def requeue_lapsed(orchestrator: Orchestrator, store: Store, clock: Clock) -> None:
    """Give the work of lost leases to somebody else, for ever."""
    while True:
        await clock.sleep(POLL_SECONDS)
        limit = BATCH if orchestrator.chosen is None else EVERY
        for lease in await store.lapsed(now=clock.now(), limit=limit):
            command = lease.command
            if not orchestrator.is_chosen(command.execution_id):
                continue
            held = orchestrator.dispatch.held.get(command.command_id)
            await _lapse(orchestrator, command, held.worker_id if held is not None else "")


async def _lapse(orchestrator: Orchestrator, command: Command, worker: str) -> bool:
    """Whether its work goes on. One that cannot must not stop the others."""
    try:
        await orchestrator.lapse(command.execution_id, command.command_id, worker)
    except Exception:
        logger.exception(
            "a lost command cannot go on", extra={"execution_id": command.execution_id}
        )
        return False
    return True


async def recover(orchestrator: Orchestrator, store: Store) -> int:
    """This process is the only one: whoever held a lease before it started is gone.

    Returns how many commands go on under a new lease.
    """
    found = 0
    for command, worker, _ in await store.open_commands():
        if worker is not None and orchestrator.is_chosen(command.execution_id):
            found += await _lapse(orchestrator, command, worker)
    return found


async def family(store: Store, chosen: set[ExecutionId]) -> set[ExecutionId]:
    """These executions and all that was started by them and has not ended."""
    found = set(chosen)
    unfinished = [await store.summary(execution_id) for execution_id in await store.unfinished()]
    grown = True
    while grown:
        children = {
            row.execution_id
            for row in unfinished
            if row is not None and row.parent_execution_id in found
        }
        grown = not children <= found
        found |= children
    return found


async def adopt(orchestrator: Orchestrator, store: Store, execution_id: ExecutionId) -> None:
    """An execution that was left behind goes on in this process, beside those it was started for.

    Nobody else can be working on it: this process is the only one.
    """
    for member in await family(store, {execution_id}):
        if orchestrator.is_chosen(member):
            continue
        orchestrator.choose(member)
        for command, worker, _ in await store.open_commands(member):
            if worker is None:
                orchestrator.dispatch.opened(command.pool)
            else:
                await _lapse(orchestrator, command, worker)
