"""Databases inside the worker run in threads, and can be stopped from outside."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from noetl.tools.limits import waiting

TICK_SECONDS = 0.02

Result = TypeVar("Result")


class Halt:
    """Stops a thread from the event loop, by asking its connection to interrupt."""

    def __init__(self, statement_seconds: float | None) -> None:
        self._seconds = statement_seconds
        self._deadline: float | None = None
        self.interrupt: Callable[[], object] | None = None
        self._others: list[Callable[[], object]] = []
        self.wanted = False
        """The whole task is to stop."""
        self.late = False
        """A statement took longer than allowed."""

    def check(self) -> None:
        """To be called between statements and portions of rows."""
        if self.wanted:
            raise InterruptedError("the task was stopped")

    @contextmanager
    def statement(self) -> Iterator[None]:
        self.check()
        if self._seconds is not None:
            self._deadline = time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._deadline = None

    def look(self) -> None:
        """Interrupt if necessary; the event loop calls this regularly."""
        deadline = self._deadline
        if deadline is not None and time.monotonic() > deadline:
            self.late = True
        if self.wanted or self.late:
            for interrupt in (self.interrupt, *self._others):
                # The connection may be closing, which is fine.
                with suppress(Exception):
                    interrupt and interrupt()

    @contextmanager
    def stoppable(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """While this is entered, stopping the task interrupts this, too."""
        self.check()
        self._others.append(interrupt)
        try:
            yield
        finally:
            self._others.remove(interrupt)


def in_background(work: Callable[[], object]) -> Callable[[], None]:
    """A function that does the work once, in the background, however often it is called."""
    begun = threading.Event()

    def do() -> None:
        # It may be over before we stop it, which is fine.
        with suppress(Exception):
            work()

    def begin() -> None:
        if not begun.is_set():
            begun.set()
            threading.Thread(target=do, daemon=True).start()

    return begin


async def in_thread(
    executor: Executor, work: Callable[[], Result], halt: Halt, seconds: float | None
) -> Result:
    """Run the work. When this returns or raises, the thread no longer works for us."""
    running = executor.submit(work)
    future = asyncio.wrap_future(running)
    try:
        if not running.running() and not running.done():
            await _begun(running)
        async with asyncio.timeout(seconds):
            while not future.done():
                await asyncio.wait([future], timeout=TICK_SECONDS)
                halt.look()
    except BaseException:
        halt.wanted = True
        # Only work that has not begun can be cancelled. The asyncio future would be done while the
        # thread continues, so ask the thread's own.
        running.cancel()
        while not running.done():
            halt.look()
            await asyncio.wait([future], timeout=TICK_SECONDS)
        with suppress(asyncio.CancelledError, Exception):
            await future
        raise
    return future.result()


async def _begun(running: Future[Result]) -> None:
    """Wait for a free thread, which does not count as the task's time."""
    with waiting("a free thread"):
        while not running.running() and not running.done():
            await asyncio.sleep(TICK_SECONDS)
