"""Virtual time: when all tasks wait, it jumps to the next thing that is due.

The time of the event loop itself jumps, so sleeps, timeouts and timers follow it without knowing.
Real work, such as Python code in a process of its own, takes real time, in which nothing else
becomes due.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")

START = 1_767_225_600.0
"""Every test begins on 1 January 2026, midnight UTC."""
TICK = 1e-6
"""How far apart two moments must be to be told apart after years. An event loop runs what lies
before its time, not what is due at that very moment, so time jumps a tick further."""


class VirtualSelector(selectors.DefaultSelector):
    """A selector that moves time on instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0.0
        """Seconds that were skipped."""
        self.worked = 0.0
        """Seconds that real work took."""
        self._works = 0
        """How many real works are under way, since `_begun`."""
        self._begun = 0.0
        self.on_rest: Callable[[], None] = _nothing
        """Called when nothing is left that could happen by itself."""
        self.deadline = math.inf
        self.on_deadline: Callable[[], None] = _nothing
        """Called once when the real time `deadline` has come."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if time.monotonic() >= self.deadline:
            self.deadline = math.inf
            self.on_deadline()
        if self._works:
            return super().select(timeout)
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            self.on_rest()
        else:
            self.jumped += timeout + TICK
        return ready

    def time(self) -> float:
        ongoing = time.monotonic() - self._begun if self._works else 0.0
        return self.jumped + self.worked + ongoing

    @contextmanager
    def real_work(self) -> Iterator[None]:
        """Virtual time stands still in this block."""
        if not self._works:
            self._begun = time.monotonic()
        self._works += 1
        try:
            yield
        finally:
            self._works -= 1
            if not self._works:
                self.worked += time.monotonic() - self._begun


def _nothing() -> None:
    """The default of callbacks."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.time()

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if when == math.inf:
            # It never comes, so it must not count as the next thing that is due.
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)


class VirtualClock:
    """The time of one test. Real work takes none of it, so a test always takes the same time."""

    def __init__(self, virtual: VirtualSelector, start: float = START) -> None:
        self._virtual = virtual
        self.real_work = virtual.real_work
        self._begun = virtual.jumped
        self._start = start

    @property
    def elapsed(self) -> float:
        return self._virtual.jumped - self._begun

    def now(self) -> float:
        return self._start + self.elapsed

    async def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        while (rest := until - self.now()) > 0:
            await asyncio.sleep(rest)
