"""Time, handed in: the real one for the world, a turned one for tests and simulation."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What anybody who needs the time is given."""

    def now(self) -> float:
        """Seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Come back after that long."""


class SystemClock:
    """The machine's clock. Never goes backwards within a process, whatever is done to it."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
