"""Time that may be judged on a busy machine.

"Others are answered within a second" is about the product. While the machine runs something else
in its place the product can do nothing about it, and the kernel counts how long that was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

PAUSE_SECONDS = 0.05
PATIENCE = 240.0
"""How long a test waits for what must happen. Where all is well that costs nothing, and a busy
machine is no fault; what hangs is ended soon after by pytest, which shows where."""


class Stopwatch:
    """Seconds since it was made, less those in which this thread, or the first one of a process,
    could have gone on and had no processor."""

    def __init__(self, *pids: int) -> None:
        this = Path("/proc/thread-self").resolve()
        self._waited = {this: 0.0} | {Path(f"/proc/{pid}/task/{pid}"): 0.0 for pid in pids}
        self._begun = self._now()

    def seconds(self) -> float:
        return self._now() - self._begun

    def _now(self) -> float:
        for thread in self._waited:
            with suppress(FileNotFoundError, ProcessLookupError):  # It ended: as it was last.
                said = (thread / "schedstat").read_bytes()
                self._waited[thread] = int(said.split()[1]) / 1e9
        return time.monotonic() - sum(self._waited.values())


@contextmanager
def meanwhile(ask: Callable[[], object], *pids: int) -> Iterator[list[float]]:
    """How long each answer takes that somebody else asks for, again and again; `pids` answer."""
    waits: list[float] = []
    failures: list[BaseException] = []
    done = Event()

    def go_on_asking() -> None:
        try:
            while not (waits and done.wait(PAUSE_SECONDS)):
                watch = Stopwatch(*pids)
                ask()
                waits.append(watch.seconds())
        except BaseException as error:  # noqa: BLE001 - raised where the test sees it
            failures.append(error)

    asking = Thread(target=go_on_asking)
    asking.start()
    try:
        yield waits
    finally:
        done.set()
        asking.join(PATIENCE)
    if failures:
        raise failures[0]
