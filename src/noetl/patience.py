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
logger = logging.getLogger(__name__)


async def persist(
    ask: Callable[[], Awaitable[T]], despite: tuple[type[NoetlError], ...] = PASSING
) -> T:
    """Ask until it works: servers restart, networks and databases come back."""
    pause = BACKOFF_FIRST
    while True:
        try:
            return await ask()
        except despite as error:
            if isinstance(error, Corrupted) and despite is PASSING:
                raise
            if pause == BACKOFF_FIRST:
                logger.warning("trying again until it works: %s", error)
            # Jitter: when a server comes back, its workers must not all call at once.
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311
            pause = min(pause * 2, BACKOFF_MAX)
