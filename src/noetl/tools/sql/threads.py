"""Databases that run inside the worker run in threads, and can be stopped from outside."""

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
    """How the event loop stops a thread: it asks the connection to interrupt what it does."""

    def __init__(self, statement_seconds: float | None) -> None:
        self._seconds = statement_seconds
        self._deadline: float | None = None
        self.interrupt: Callable[[], object] | None = None
        self._others: list[Callable[[], object]] = []
        self.wanted = False
        """The whole task is to stop."""
        self.late = False
        """A statement took longer than it may."""

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
        """Interrupt what has to stop; called by the event loop again and again."""
        deadline = self._deadline
        if deadline is not None and time.monotonic() > deadline:
            self.late = True
        if self.wanted or self.late:
            for interrupt in (self.interrupt, *self._others):
                # The connection may be closed just now, which is what we want.
                with suppress(Exception):
                    interrupt and interrupt()

    @contextmanager
    def stoppable(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """While this lasts, stopping the task interrupts this too."""
        self.check()
        self._others.append(interrupt)
        try:
            yield
        finally:
            self._others.remove(interrupt)


def in_background(work: Callable[[], object]) -> Callable[[], None]:
    """Something to call again and again that does the work once, and keeps nobody waiting."""
    begun = threading.Event()

    def do() -> None:
        # It may be over before we come to stop it, which is what we want.
        with suppress(Exception):
            work()

    def begin() -> None:
        if not begun.is_set():
            begun.set()
            threading.Thread(target=do, daemon=True).start()

    return begin


async def in_thread(
    executor: Executor, work: Callable[[Halt], Result], halt: Halt, seconds: float | None
) -> Result:
    """Run the work; when this returns or raises, the thread does nothing for us any more."""
    running = executor.submit(work, halt)
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
        # Only what has not begun can be cancelled. The future of asyncio would say that it is
        # done while the thread goes on, so it is the thread's own that is asked.
        running.cancel()
        while not running.done():
            halt.look()
            await asyncio.wait([future], timeout=TICK_SECONDS)
        with suppress(asyncio.CancelledError, Exception):
            await future
        raise
    return future.result()


async def _begun(running: Future[Result]) -> None:
    """Until a thread is free for it, which is no time of the task."""
    with waiting("a free thread"):
        while not running.running() and not running.done():
            await asyncio.sleep(TICK_SECONDS)
