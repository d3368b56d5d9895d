"""Asking again: what failed because a server or the database was out of reach may work later."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from noetl.errors import Corrupted, NoetlError, StoreError, TooMany, Unreachable

T = TypeVar("T")
BACKOFF_FIRST = 0.05
BACKOFF_MAX = 2.0
PASSING = (Unreachable, StoreError, TooMany)
"""Errors that may be gone on the next attempt."""
STOPPED_SECONDS = 20.0
"""For so long a task that was cancelled asks for what it needs to clean up: its process may be
ending, and must not wait for a database that stays away."""
logger = logging.getLogger(__name__)


async def persist(
    ask: Callable[[], Awaitable[T]], despite: tuple[type[NoetlError], ...] = PASSING
) -> T:
    """Ask until it works: servers restart, networks and databases come back."""
    now, task = asyncio.get_running_loop().time, asyncio.current_task()
    pause, begun = BACKOFF_FIRST, now()
    while True:
        try:
            return await ask()
        except despite as error:
            if isinstance(error, Corrupted) and despite is PASSING:
                raise
            if task is not None and task.cancelling() and now() - begun > STOPPED_SECONDS:
                raise
            if pause == BACKOFF_FIRST:
                logger.warning("trying again until it works: %s", error)
            # Jitter: when a server comes back, its workers must not all call at once.
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311
            pause = min(pause * 2, BACKOFF_MAX)
