"""How long a call may take, what counts as its time, and how much memory its result may use.

Only the time in which a task works counts. While it waits for capacity (a Python process, a thread,
a connection), all its limits stand still.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import msgspec

from noetl.errors import TooLarge
from noetl.model.duration import seconds
from noetl.tools.base import Timeouts


def part(written: Any, name: str) -> float | None:
    """Seconds of one part (`connect`, `read`, `total`) of a timeout; a bare one is the total."""
    if isinstance(written, Timeouts):
        return _seconds(getattr(written, name))
    if isinstance(written, Mapping):
        return _seconds(written.get(name))
    return _seconds(written) if name == "total" else None


def shortest(*written: Any) -> float | None:
    """The shortest of these timeouts in total, if any is set."""
    found = [limit for one in written if (limit := part(one, "total")) is not None]
    return min(found, default=None)


def _seconds(written: Any) -> float | None:
    return None if written is None else seconds(written)


def size_in_bytes(size: str) -> int:
    """The number of bytes in a text like `512Mi`, `1.5 GB` or `512MiB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", size)
    assert found is not None, size  # The types of configs and policies guarantee it.
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit or " "))


# --- The memory of a task ----------------------------------------------------------------------

ROW_BYTES, CELL_BYTES = 240, 40
"""The approximate size of a row as a mapping, and of each value beside its own length."""


NESTED = 8
"""Bytes in memory per byte of JSON, for nested values."""


class Gathering:
    """Rows read in portions, up to a number of bytes. Raises TooLarge."""

    def __init__(self, most: int) -> None:
        self.rows: list[Any] = []
        self._most = self._left = most

    def take(self, portion: Iterable[Any]) -> None:
        before = len(self.rows)
        self.rows += portion
        for row in islice(self.rows, before, None):
            self._left -= ROW_BYTES
            for cell in row.values() if isinstance(row, dict) else row:
                self._left -= CELL_BYTES
                if isinstance(cell, str | bytes | memoryview):
                    self._left -= len(cell)
                elif isinstance(cell, list | tuple | dict):
                    self._left -= len(msgspec.json.encode(cell, enc_hook=str)) * NESTED
        if self._left < 0:
            raise TooLarge(
                f"The result takes more than the {self._most:,} bytes of memory that this worker "
                "gives to one (NOETL_MAX_RESPONSE_BYTES). Ask for less (`LIMIT`), keep the rows as "
                "a file (`result_as: parquet`), or copy them with `kind: transfer`."
            )


def check_memory(size: int, most: int, remedy: str) -> None:
    """Raise TooLarge for a content that does not fit into the memory of one result."""
    if size > most:
        raise TooLarge(
            f"It has {size:,} bytes, more than the {most:,} that this worker reads into memory."
            f" {remedy}"
        )


# --- The clock of a task -----------------------------------------------------------------------


class _Limit:
    """A time limit that stands still while the work waits for capacity."""

    def __init__(self, timeout: asyncio.Timeout, seconds: float) -> None:
        self._timeout = timeout
        self._left = seconds
        self._waits = 0

    def stop(self) -> None:
        self._waits += 1
        when = self._timeout.when()
        if self._waits == 1 and when is not None and not self._timeout.expired():
            self._left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def go_on(self) -> None:
        self._waits -= 1
        if not self._waits and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)


Listener = Callable[[str, bool, float], None]
"""Called with what a call waits for, whether the wait begins (True) or ends (False), and how many
seconds ago it began.
"""
ANSWER_TOLD_SECONDS = 5.0
"""A call that waits for longer for somebody's answer is told; most are answered sooner."""
_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("limits", default=())
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[asyncio.Timeout | None]:
    """Like `asyncio.timeout`, but the time inside `waiting` does not count."""
    if seconds is None:
        yield None
        return
    async with asyncio.timeout(seconds) as timeout:
        token = _limits.set((*_limits.get(), _Limit(timeout, seconds)))
        try:
            yield timeout
        finally:
            _limits.reset(token)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """The call waits for capacity, such as "a Python process"."""
    limits, listener = _limits.get(), _listener.get()
    for limit in limits:
        limit.stop()
    if listener is not None:
        listener(what, True, 0.0)
    try:
        yield
    finally:
        for limit in limits:
            limit.go_on()
        if listener is not None:
            listener(what, False, 0.0)


@contextmanager
def awaiting(what: str) -> Iterator[None]:
    """The call waits for somebody else, such as "an answer of api.example.com". This counts as its
    time.
    """
    listener = _listener.get()
    if listener is None:
        yield
        return
    told = False

    def tell() -> None:
        nonlocal told
        told = True
        listener(what, True, ANSWER_TOLD_SECONDS)

    timer = asyncio.get_running_loop().call_later(ANSWER_TOLD_SECONDS, tell)
    try:
        yield
    finally:
        timer.cancel()
        if told:
            listener(what, False, 0.0)


def listen(listener: Listener) -> None:
    """Tell this listener of all waiting in the current task, and in tasks that it starts."""
    _listener.set(listener)


Given = ParamSpec("Given")
Result = TypeVar("Result")
TICK_SECONDS = 0.02


async def to_thread(
    work: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs
) -> Result:
    """Like `asyncio.to_thread`, but waiting for a free thread does not count as the task's time."""
    context, begun = copy_context(), threading.Event()

    def run() -> Result:
        begun.set()
        return context.run(work, *args, **kwargs)

    future = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        await asyncio.wait([future], timeout=TICK_SECONDS)
        if not begun.is_set():
            with waiting("a free thread"):
                while not (begun.is_set() or future.done()):
                    await asyncio.sleep(TICK_SECONDS)
    except asyncio.CancelledError:
        # A call that no thread has begun must not begin any more.
        future.cancel()
        raise
    return await future
