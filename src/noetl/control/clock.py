"""Time, handed in: the real one for the world, a turned one for tests and simulation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


async def heard(signal: asyncio.Event, seconds: float | None) -> bool:
    """Wait for a signal, but no longer than that. Returns whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await signal.wait()
    return signal.is_set()


class Deadline:
    """So many seconds from now. A clock that is set back does not make them more."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._looked = clock.now()
        self._left = seconds

    def left(self) -> float:
        """Seconds that are left; none is 0 or less."""
        now = self._clock.now()
        self._left -= max(0.0, now - self._looked)
        self._looked = now
        return self._left


SET_BACK_SECONDS = 1.0
"""A clock that is behind by less stands still until it has caught up: measuring it takes time, and
it is corrected all the time. One that is further behind was set, and is followed: to stand still
would stop all that waits, for as long as the clock was ahead."""


def _forward(latest: float, told: float) -> float:
    """The time, after the latest one that was told."""
    return told if latest - told > SET_BACK_SECONDS else max(latest, told)


class SystemClock:
    """The machine's clock. Never goes backwards within a process, whatever is done to it."""

    def __init__(self) -> None:
        self._offset = time.time() - monotonic()

    def now(self) -> float:
        return monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class WallClock(SystemClock):
    """The time of day, also after the machine has slept or its clock was set.

    For what is due at a time of day. Leases go by a clock that stands still while the machine
    sleeps, as its workers do.
    """

    def __init__(self) -> None:
        super().__init__()
        self._latest = 0.0

    def now(self) -> float:
        self._latest = _forward(self._latest, time.time())
        return self._latest


class SharedClock(SystemClock):
    """The clock of a database that several machines use, so that they agree on when leases end."""

    def __init__(self, ask: Callable[[], Awaitable[float]]) -> None:
        """`ask` tells the time of the database."""
        super().__init__()
        self._ask = ask
        self._latest = 0.0

    def now(self) -> float:
        self._latest = _forward(self._latest, super().now())
        return self._latest

    async def follow(self) -> None:
        """Go by what the shared clock says now.

        It was read at some moment before the answer came. An answer that took long, because the
        database or this process stood still, does not say at which: then we differ from it no more
        than it proves.
        """
        asked = monotonic()
        now = await self._ask()
        least, most = now - monotonic(), now - asked
        self._offset = min(max(self._offset, least), most)
