"""Databases inside the worker: their threads, which can be stopped from outside, their files."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of, needed
from noetl.tools.failures import Failed, within
from noetl.tools.limits import waiting
from noetl.tools.sql.config import FileDatabase

TICK_SECONDS = 0.02

Result = TypeVar("Result")


class Halt:
    """Stops a thread from the event loop, by asking its connection to interrupt."""

    def __init__(self, statement_seconds: float | None) -> None:
        self._seconds = statement_seconds
        self._deadline: float | None = None
        self._interrupts: list[Callable[[], object]] = []
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
            for interrupt in tuple(self._interrupts):
                # The connection may be closing, which is fine.
                with suppress(Exception):
                    interrupt()

    @contextmanager
    def stoppable(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """While this is entered, stopping the task interrupts this."""
        self.check()
        self._interrupts.append(interrupt)
        try:
            yield
        finally:
            self._interrupts.remove(interrupt)


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
        async with within(seconds, "The task was not done within"):
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
    try:
        return future.result()
    except (OverflowError, UnicodeEncodeError) as error:
        raise Failed("schema", f"A value cannot be stored: {error}.") from None


async def _begun(running: Future[Result]) -> None:
    """Wait for a free thread, which does not count as the task's time."""
    with waiting("a free thread"):
        while not running.running() and not running.done():
            await asyncio.sleep(TICK_SECONDS)


# --- Databases that are files ------------------------------------------------------------------

_LOCKS: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
"""Locks of files that a task uses exclusively."""
_LOCKS_CHANGE = threading.Lock()


async def database_of(config: Any, context: ToolContext) -> Path | None:
    """The file that `database` of a config, or its credential, names; None for one in memory."""
    written = config.database
    if written is None and config.auth is not None:
        fields = await fields_of(config.auth, context)
        filled = {name: value for name, value in fields.items() if value}
        written = needed(filled, "database", "path", "dbname")
    return None if written in (None, ":memory:") else context.resources.path(str(written))


def prepare(path: Path, config: FileDatabase) -> None:
    """Make sure that the file can be opened. Raises Failed if it should exist and does not."""
    if not config.read_only:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise Failed("not_found", f'The database "{config.database or path.name}" does not exist.')


@contextmanager
def alone(path: Path, halt: Halt) -> Iterator[None]:
    """While this is entered, no other task of this process that also locks the file has it."""
    with _LOCKS_CHANGE:
        lock = _LOCKS.setdefault(path.resolve(), threading.Lock())
    while not lock.acquire(timeout=TICK_SECONDS):
        halt.check()
    try:
        yield
    finally:
        lock.release()
