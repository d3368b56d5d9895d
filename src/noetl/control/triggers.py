"""The loop that looks after everything that is due by itself: times of schedules, debounced hooks,
consumers without a reader, notifications.

A row of a trigger says when a server has to look at it next. A server sleeps until the first of
them is due and hands it to the service of its kind. Looking twice, or on several servers at once,
changes nothing: each kind stores what it decides on condition that the row has not moved. Sharing
rows out among servers only saves everybody the work of all.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping

from noetl.control.clock import Clock, Deadline, heard
from noetl.control.timers import GRACE_SECONDS, POLL_SECONDS, Resting
from noetl.errors import NoetlError, StoreError
from noetl.model.triggers import TriggerRow
from noetl.store.triggers import Triggers as Rows

logger = logging.getLogger(__name__)

BATCH = 200
LOOK_SECONDS = 30.0
"""Where other processes write, seconds between two looks for what news did not bring."""
SLEEP_SECONDS = 5.0
"""Seconds between two looks at the clock, which may have been set."""
NEIGHBOUR_SECONDS = 0.5
"""Seconds until the next look while something is due that another server looks after."""

Settle = Callable[[TriggerRow], Awaitable[None]]
"""Does what is due for a row, and moves it."""


class Triggers:
    """Settles what is due, of all kinds."""

    def __init__(
        self,
        rows: Rows,
        clock: Clock,
        owns: Callable[[str], bool],
        look_seconds: float,
        kinds: Mapping[str, Settle],
    ) -> None:
        """`kinds` know what to do for rows of their kind."""
        self._rows = rows
        self._clock = clock
        self._owns = owns
        self.look_seconds = look_seconds
        """Seconds between two looks for what other processes wrote; infinite if there are none."""
        self._kinds = kinds
        self._changed = asyncio.Event()
        self._touched: dict[tuple[str, str], TriggerRow] = {}
        """Rows to settle now, due or not."""
        self.on_changed: Callable[[], None] = lambda: None
        """Tells other servers that something may be due earlier than they know."""
        self._resting = Resting()
        self.registered = asyncio.Event()
        """Set, and replaced by another, when a document was registered or a credential stored: who
        waits may go on.
        """
        self._looks_at = math.inf
        """When this server looks next; infinite while it looks."""
        self._stuck: dict[str, tuple[str, str]] = {}
        """By path: the row that could not be settled, and why, as the log has it."""

    def wake(self) -> None:
        """Something may be due earlier than this server thinks."""
        self._changed.set()

    def announce(self, at: float = -math.inf) -> None:
        """Something may be due, at that moment: earlier than servers think, unless they look
        before it anyway. When the others look is not known here."""
        if at < self._looks_at:
            self._changed.set()
        if at < self._clock.now() + LOOK_SECONDS:
            self.on_changed()

    def retry(self) -> None:
        """A document was registered, or a credential stored: what waited may be settled."""
        self._resting = Resting()
        self._changed.set()
        self.registered.set()
        self.registered = asyncio.Event()

    def touch(self, kind: str, path: str) -> None:
        """Settle this row now."""
        self._touched[path, ""] = TriggerRow(path=path, kind=kind)
        self._changed.set()

    async def run(self) -> None:
        """Settle what is due and sleep until the next is, until cancelled."""
        while True:
            try:
                await self._round(self._resting)
            except StoreError as error:
                logger.warning("schedules could not be read: %s", error)
                await self._clock.sleep(POLL_SECONDS)

    async def _round(self, resting: Resting) -> None:
        self._looks_at = math.inf
        self._changed.clear()
        touched, self._touched = self._touched, {}
        await asyncio.gather(*map(self._settle, touched.values()))
        now = self._clock.now()
        found = await self._rows.due(now=now, limit=BATCH + len(resting))
        awake = resting.awake({(row.path, row.key): row for row in found}, now)
        overdue = now - GRACE_SECONDS
        due = [
            row
            for row in awake.values()
            if self._owns(row.path) or (row.next_at is not None and row.next_at <= overdue)
        ]
        done = await asyncio.gather(*map(self._settle, due))
        for row, is_done in zip(due, done, strict=True):
            resting.note((row.path, row.key), self._clock.now(), done=is_done)
        if not any(done):
            await self._sleep(await self._rows.next_due(), is_resting=bool(len(resting)))

    async def _settle(self, row: TriggerRow) -> bool:
        """Whether it could be done. A trigger that cannot continue must not stop the others."""
        try:
            # A kind that only a later release knows is left to servers of that release.
            if (settle := self._kinds.get(row.kind)) is None:
                return False
            await settle(row)
        except NoetlError as error:
            # One line until it changes: many rows of a path may wait, and each is tried often.
            if self._stuck.get(row.path, ("", ""))[1] != str(error):
                self._stuck[row.path] = (row.key, str(error))
                logger.warning("a trigger cannot go on: %s", error, extra={"path": row.path})
            return False
        except Exception:
            logger.exception("a trigger cannot go on", extra={"path": row.path})
            return False
        if self._stuck and self._stuck.get(row.path, ("",))[0] == row.key:
            self._stuck.pop(row.path, None)
        return True

    async def _sleep(self, following: float | None, *, is_resting: bool) -> None:
        """Until that moment, or until something changes."""
        longest = self.look_seconds
        if following is not None and following <= self._clock.now():
            # It rests, or it is another server's to look after.
            following = None
            longest = min(longest, POLL_SECONDS if is_resting else NEIGHBOUR_SECONDS)
        now = self._clock.now()
        self._looks_at = now + longest if following is None else min(following, now + longest)
        deadline = Deadline(self._clock, longest)
        while not self._changed.is_set() and (left := deadline.left()) > 0:
            ahead = left if following is None else following - self._clock.now()
            if ahead <= 0:
                break
            await heard(self._changed, min(left, ahead, SLEEP_SECONDS))
