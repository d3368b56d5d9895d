"""What has come in and is not decided yet: inputs for executions, with who waits for each."""

from __future__ import annotations

import asyncio

from noetl.control.dispatch import Waiter
from noetl.errors import NoetlError
from noetl.model.inputs import Input


class Entry:
    """One input on its way through the commit loop."""

    __slots__ = (
        "changed",
        "decided_on_old_state",
        "future",
        "has_voice",
        "input",
        "is_consequence",
        "refusal",
        "waiter",
    )

    def __init__(
        self, given: Input, waiter: Waiter | None = None, *, is_consequence: bool = False
    ) -> None:
        self.input = given
        self.waiter = waiter
        """The worker that reports, and wants more to do."""
        self.is_consequence = is_consequence
        """It follows from another input of the same batch. If that one is decided again, so is
        this."""
        self.has_voice = True
        """It is no report, or its command was still open when it was decided."""
        self.changed = False
        """It made something happen."""
        self.refusal: NoetlError | None = None
        """Why the execution did not take it; nothing has changed then."""
        self.decided_on_old_state = False
        """The stored state had moved on: it has to be decided again."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when what follows is stored."""

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Nobody waits for a consequence (the end of a child, say): its error counts as seen.
            self.future.exception()


class Inbox:
    """Entries in the order they came."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._arrival: asyncio.Future[None] | None = None
        """Done when there is an entry for the loop that waits for one."""

    def put(self, entry: Entry) -> None:
        self._entries.append(entry)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self, limit: int) -> list[Entry]:
        """The oldest entries, as soon as there is one."""
        while not self._entries:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        taken = self._entries[:limit]
        del self._entries[:limit]
        return taken
