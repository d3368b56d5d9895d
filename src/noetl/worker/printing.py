"""The output of a task, on its way into the event stream while the task still runs.

`task.done` holds the output that is kept, and says how much of it readers have already seen. A task
that ends before any of its output was sent reports nothing here; a longer one sends its lines as
they appear, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable

from noetl.engine.pipeline.machine import Printed
from noetl.secrets.masking import Mask
from noetl.tools.base import TaskLog

SHOWN_MAX = 64 * 1024
"""Characters of one call: the log of events must not grow with hours of output."""
NO_MORE = "[… more output; the end of it comes when the task ends]\n"


class Printing:
    """The output of one call: whole lines, masked, each sent once."""

    def __init__(self, mask: Mask, wake: Callable[[], None]) -> None:
        self._mask = mask
        self._wake = wake
        self._log = TaskLog()
        self._waiting: list[str] = []
        self._length = 0
        """Characters that were printed."""
        self._told = 0
        """Characters of them that were sent."""
        self._room = SHOWN_MAX
        """Negative once more was printed than is shown."""

    def __call__(self, text: str) -> None:
        self._log(text)
        self._length += len(text)
        if self._room < 0:
            return
        self._waiting.append(text[: self._room])
        self._room -= len(text)
        self._wake()

    def taken(self) -> str:
        """The lines that were not sent yet."""
        if not self._waiting:
            return ""
        text = "".join(self._waiting)
        lines, rest = self._mask.lines(text)
        self._told += len(text) - len(rest)
        self._waiting = [rest] if rest else []
        if self._room < 0:
            self._waiting = []
            lines += NO_MORE
        return lines

    def rest(self) -> str:
        """What is left when the task is over; empty if nothing was sent before."""
        if not self._told:
            return ""
        if self._room < 0:
            return self.taken()
        self._told = self._length
        return self._mask.text("".join(self._waiting))

    def printed(self) -> Printed:
        """The output that is kept, after the rest was sent."""
        kept = self._log.text()
        text = self._mask.text(kept)
        untold = self._length - self._told
        if self._told == 0 or untold > self._log.limit:
            return Printed(text)
        return Printed(text, len(self._mask.text(kept[: len(kept) - untold])))
