"""What a task prints, on its way into the event stream while the task still runs.

What is kept of it in the end stands in `task.done`. A task that is over before anything of it was
taken says nothing here; a longer one shows its lines as they come, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable

from noetl.secrets.masking import Mask

SHOWN_MAX = 64 * 1024
"""Characters of one call: the log of events must not grow with what somebody prints for hours."""
NO_MORE = "[… more output; the end of it will stand in task.done]\n"


class Printing:
    """The output of one call: whole lines, masked, each taken once."""

    def __init__(self, mask: Mask, wake: Callable[[], None]) -> None:
        self._mask = mask
        self._wake = wake
        self._waiting: list[str] = []
        self._room = SHOWN_MAX
        """Less than nothing once more was printed than is shown."""
        self._shown = False

    def __call__(self, text: str) -> None:
        if self._room < 0:
            return
        self._waiting.append(text[: self._room])
        self._room -= len(text)
        self._wake()

    def taken(self) -> str:
        """The lines that nobody has taken so far."""
        if not self._waiting:
            return ""
        lines, rest = self._mask.lines("".join(self._waiting))
        self._waiting = [rest] if rest else []
        if self._room < 0:
            self._waiting = []
            lines += NO_MORE
        self._shown = self._shown or bool(lines)
        return lines

    def rest(self) -> str:
        """What is left when the task is over; nothing if nobody saw what came before."""
        if not self._shown:
            return ""
        if self._room < 0:
            return self.taken()
        return self._mask.text("".join(self._waiting))
