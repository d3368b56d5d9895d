"""The last deliveries to each hook and their outcomes, for people who look.

Deliveries are kept in memory for a moment and written together: a burst costs the database one
transaction, and its senders no time. Debounced ones are written with what they change. Those that
were refused are only counted, in one row for each hook and span, however many strangers call. Of
each hook the newest rows are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from noetl.errors import StoreError
from noetl.model.ids import ExecutionId
from noetl.model.triggers import MessageOutcome, TriggerChange, TriggerMessage

if TYPE_CHECKING:
    from noetl.control.clock import Clock
    from noetl.store.triggers import Messages, Triggers

logger = logging.getLogger(__name__)

MOMENT = 0.2
"""How long a delivery waits to be written with others."""
REFUSED_SECONDS = 5.0
"""Refused deliveries of so long are one row."""
WAITING_MAX = 1000
KEPT, FORGOTTEN_AFTER = 500, 200
"""Rows of each hook that are kept, and how many new ones make older ones go."""
REASON_MAX = 500
_STORED: dict[str, MessageOutcome] = {
    "started": "started",
    "signalled": "started",
    "refused": "refused",
    "failed": "refused",
}
"""What the store calls an outcome, if it is not `ignored`."""


class Told(NamedTuple):
    """The outcome of a delivery, in the word that its sender was answered with."""

    at: float
    outcome: str
    reason: str
    execution_id: ExecutionId | None


class Deliveries:
    """The last deliveries of all hooks."""

    def __init__(self, triggers: Triggers, messages: Messages, clock: Clock) -> None:
        self._triggers = triggers
        self._messages = messages
        self._clock = clock
        self._waiting: list[TriggerMessage] = []
        self._left_out = 0
        self._refused: Counter[str] = Counter()
        self._refused_at: dict[str, float] = {}
        self._written: Counter[str] = Counter()
        self._writing: asyncio.Task[None] | None = None

    def note(
        self, path: str, outcome: str, execution_id: ExecutionId | None = None, reason: str = ""
    ) -> None:
        """Note the outcome of a delivery."""
        if len(self._waiting) >= WAITING_MAX:
            self._left_out += 1
            return
        self._waiting.append(self.row(path, outcome, execution_id, reason))
        self._write_soon()

    def row(
        self,
        path: str,
        outcome: str,
        execution_id: ExecutionId | None = None,
        reason: str = "",
        *,
        delivery_id: str = "",
    ) -> TriggerMessage:
        """The row of a delivery, for whoever writes it together with what was decided."""
        return TriggerMessage(
            path=path,
            id=f"={delivery_id}" if delivery_id else uuid4().hex,
            at=self._clock.now(),
            outcome=_STORED.get(outcome, "ignored"),
            reason=f"{outcome}: {reason}"[:REASON_MAX] if reason else outcome,
            execution_id=execution_id,
        )

    def wrote(self, path: str) -> None:
        """Count a row that was written with what was decided."""
        self._written[path] += 1
        if self._written[path] >= FORGOTTEN_AFTER:
            self._write_soon()

    def refuse(self, path: str) -> None:
        """Count a delivery whose sender could not show that it may deliver."""
        self._refused[path] += 1
        self._write_soon()

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        is_more = True
        while is_more:
            await asyncio.sleep(MOMENT)
            self._count_refused()
            rows, self._waiting = self._waiting, []
            left_out, self._left_out = self._left_out, 0
            if left_out:
                logger.warning("%d deliveries to hooks are not listed: too many came", left_out)
            try:
                if rows:
                    await self._triggers.change(TriggerChange(messages=tuple(rows)))
                await self._forget(rows)
            except StoreError as error:
                # They were taken, and answered; only this list lacks them.
                logger.warning("%d deliveries to hooks are not listed: %s", len(rows), error)
            is_more = bool(self._waiting or self._refused)

    def _count_refused(self) -> None:
        now = self._clock.now()
        for path, count in list(self._refused.items()):
            if now - self._refused_at.get(path, 0.0) >= REFUSED_SECONDS:
                del self._refused[path]
                self._refused_at[path] = now
                self.note(path, "refused", reason="" if count == 1 else f"{count} deliveries")

    async def _forget(self, rows: list[TriggerMessage]) -> None:
        self._written.update(row.path for row in rows)
        for path, written in list(self._written.items()):
            if written >= FORGOTTEN_AFTER:
                del self._written[path]
                kept = await self._messages.of(path, limit=KEPT)
                if len(kept) == KEPT:
                    await self._messages.forget_old(path, before=kept[-1].at)

    async def of(self, path: str, *, limit: int) -> list[Told]:
        """The last deliveries, newest first."""
        found = []
        for row in await self._messages.of(path, limit=limit):
            outcome, _, reason = row.reason.partition(": ")
            found.append(Told(row.at, outcome, reason, row.execution_id))
        return found
