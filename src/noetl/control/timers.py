"""Timers: what is due is fired, and what came to nothing is tried again."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from noetl.control.clock import Clock, heard
from noetl.errors import NoetlError, StoreError
from noetl.model.ids import ExecutionId
from noetl.store.queue import Work

if TYPE_CHECKING:
    from noetl.control.orchestrator import Orchestrator

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Even if every wake-up is lost, timers fire no later than this."""
QUIET_LOOKS = 30
"""Where no other process writes, this one knows of every timer, and looks this many times less
often (`rests`; 1 where others write)."""
GRACE_SECONDS = 2.0
"""How long a timer that is due is left to the server that looks after it, which may be gone."""
NEIGHBOUR_SECONDS = 0.05
"""Seconds between two looks while timers of another server are due: ours may come next."""
REST_MAX_SECONDS = 60.0
"""What failed is tried again after one second, then after two, up to this many."""
BATCH = 200
EVERY = 1_000_000
"""As a limit: no limit."""

T = TypeVar("T")
Due = tuple[ExecutionId, str]
"""A timer, a command whose lease has lapsed, or the row of a trigger."""
Owns = Callable[[ExecutionId], bool]
"""Whether this process looks after an execution."""


def everything(execution_id: ExecutionId) -> bool:
    return True


async def fire_timers(
    orchestrator: Orchestrator, work: Work, clock: Clock, owns: Owns = everything, rests: int = 1
) -> None:
    """Fire what is due, sleep until the next, for ever. See `QUIET_LOOKS` for `rests`."""
    resting = Resting()
    while True:
        try:
            await _fire_due(orchestrator, work, clock, owns, rests, resting)
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

    def awake(self, due: dict[Due, T], now: float) -> dict[Due, T]:
        """All that is due, without what rests. What is due no more need not rest any more."""
        for one in self._until.keys() - due.keys():
            del self._until[one]
        # If the clock was set back, the rest would be longer than it was to be.
        rests = {one for one, (until, rest) in self._until.items() if now < until <= now + rest}
        return {one: about for one, about in due.items() if one not in rests}

    def note(self, due: Due, now: float, *, done: bool) -> None:
        _, last = self._until.pop(due, (now, POLL_SECONDS / 2))
        if not done:
            rest = min(2 * last, REST_MAX_SECONDS)
            self._until[due] = now + rest, rest


async def _fire_due(
    orchestrator: Orchestrator, work: Work, clock: Clock, owns: Owns, rests: int, resting: Resting
) -> None:
    orchestrator.timer_changed.clear()
    due = await _due(work, clock, owns, resting)
    fired = await asyncio.gather(*(_fire(orchestrator, *which) for which in due))
    for which, has_fired in zip(due, fired, strict=True):
        resting.note(which, clock.now(), done=has_fired)
    if any(fired):
        return
    following = await work.next_timer()
    if following is not None and following <= clock.now():
        # It rests, or it is another server's to fire.
        following = clock.now() + (POLL_SECONDS if resting else NEIGHBOUR_SECONDS)
    for _ in range(rests):
        # Not for long: clocks are set.
        left = math.inf if following is None else max(0.0, following - clock.now())
        changed = await heard(orchestrator.timer_changed, min(left, POLL_SECONDS))
        if changed or (following is not None and clock.now() >= following):
            break


async def _fire(orchestrator: Orchestrator, execution_id: ExecutionId, timer_id: str) -> bool:
    """Whether something happened. An execution that cannot continue must not stop the others."""
    try:
        return await orchestrator.fire(execution_id, timer_id)
    except NoetlError as error:
        logger.warning("a timer could not fire: %s", error, extra={"execution_id": execution_id})
        return False
    except Exception:
        logger.exception("a timer could not fire", extra={"execution_id": execution_id})
        return False


async def _due(work: Work, clock: Clock, owns: Owns, resting: Resting) -> list[Due]:
    now = clock.now()
    # Timers that rest stay due; they must not hide the others.
    found = await work.due_timers(now=now, limit=BATCH + len(resting))
    due = resting.awake({(execution_id, timer_id): at for execution_id, timer_id, at in found}, now)
    return [one for one, at in due.items() if owns(one[0]) or at <= now - GRACE_SECONDS]
