"""Timers: what is due is fired, and what came to nothing is tried again."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from noetl.control.clock import Clock
from noetl.errors import StoreError
from noetl.model.ids import ExecutionId
from noetl.store.base import Store

if TYPE_CHECKING:
    from noetl.control.orchestrator import Orchestrator

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Even if every wake-up is lost, timers fire no later than this."""
QUIET_LOOKS = 30
"""Where nothing is to be found it is looked for this many times more seldom."""
GRACE_SECONDS = 2.0
"""So long what another server looks after is left to it; then it may be gone."""
NEIGHBOUR_SECONDS = 0.05
"""How often to look while timers of another server are due: ours may come next."""
REST_MAX_SECONDS = 60.0
"""What came to nothing is tried again after a second, then after two, up to so many."""
BATCH = 200
EVERY = 1_000_000

Due = tuple[ExecutionId, str]
"""A timer, or a command whose lease has lapsed."""
Owns = Callable[[ExecutionId], bool]
"""Whether this process looks after an execution."""


def everything(execution_id: ExecutionId) -> bool:
    return True


async def fire_timers(
    orchestrator: Orchestrator, store: Store, clock: Clock, owns: Owns = everything
) -> None:
    """Fire what is due, sleep until the next, for ever."""
    resting = Resting()
    while True:
        try:
            await _fire_due(orchestrator, store, clock, owns, resting)
        except StoreError as error:
            logger.warning("timers could not be read: %s", error)
            await clock.sleep(POLL_SECONDS)


class Resting:
    """Timers that were due, or leases that had lapsed, of which nothing came: perhaps the execution
    cannot be read. Each is tried again, but not at once.
    """

    def __init__(self) -> None:
        self._until: dict[Due, tuple[float, float]] = {}
        """When to try again, and how long that is after the last time."""

    def __len__(self) -> int:
        return len(self._until)

    def wakes(self, due: Due, now: float) -> bool:
        return due not in self._until or self._until[due][0] <= now

    def note(self, due: Due, now: float, *, done: bool) -> None:
        _, last = self._until.pop(due, (now, POLL_SECONDS / 2))
        if not done:
            rest = min(2 * last, REST_MAX_SECONDS)
            self._until[due] = now + rest, rest

    def keep(self, due: Collection[Due]) -> None:
        """Whatever else rests is not due any more."""
        for one in self._until.keys() - set(due):
            del self._until[one]


async def _fire_due(
    orchestrator: Orchestrator, store: Store, clock: Clock, owns: Owns, resting: Resting
) -> None:
    orchestrator.timer_changed.clear()
    due = await _due(orchestrator, store, clock, owns, resting)
    fired = await asyncio.gather(*(_fire(orchestrator, *which) for which in due))
    for which, has_fired in zip(due, fired, strict=True):
        resting.note(which, clock.now(), done=has_fired)
    if any(fired):
        return
    following = await _next(orchestrator, store)
    if following is not None and following <= clock.now():
        # It rests, or it is another server's to fire.
        following = clock.now() + (POLL_SECONDS if resting else NEIGHBOUR_SECONDS)
    # Where no other process sets timers, there is nothing to look up meanwhile.
    for _ in range(QUIET_LOOKS if store.exclusive else 1):
        changed = await _change(orchestrator, clock, following)
        if changed or (following is not None and clock.now() >= following):
            break


async def _fire(orchestrator: Orchestrator, execution_id: ExecutionId, timer_id: str) -> bool:
    """Whether something happened. One execution that cannot go on must not stop the others."""
    try:
        return await orchestrator.fire(execution_id, timer_id)
    except Exception:
        logger.exception("a timer could not fire", extra={"execution_id": execution_id})
        return False


async def _change(orchestrator: Orchestrator, clock: Clock, following: float | None) -> bool:
    """Wait for the next timer, but not for long: clocks are set. Whether timers have changed."""
    pause = POLL_SECONDS if following is None else max(0.0, following - clock.now())
    with suppress(TimeoutError):
        async with asyncio.timeout(min(pause, POLL_SECONDS)):
            return await orchestrator.timer_changed.wait()
    return False


async def _due(
    orchestrator: Orchestrator, store: Store, clock: Clock, owns: Owns, resting: Resting
) -> list[Due]:
    now = clock.now()
    # Timers that rest, and those of executions that do not go on here, stay due; they must not hide
    # the others.
    limit = BATCH + len(resting) if orchestrator.dispatch.chosen is None else EVERY
    found = await store.queue.due_timers(now=now, limit=limit)
    resting.keep([(execution_id, timer_id) for execution_id, timer_id, _ in found])
    return [
        (execution_id, timer_id)
        for execution_id, timer_id, at in found
        if orchestrator.dispatch.is_chosen(execution_id)
        and resting.wakes((execution_id, timer_id), now)
        if owns(execution_id) or at <= now - GRACE_SECONDS
    ]


async def _next(orchestrator: Orchestrator, store: Store) -> float | None:
    if orchestrator.dispatch.chosen is None:
        return await store.queue.next_timer()
    timers = await store.queue.due_timers(now=math.inf, limit=EVERY)
    is_chosen = orchestrator.dispatch.is_chosen
    return next((at for execution_id, _, at in timers if is_chosen(execution_id)), None)
