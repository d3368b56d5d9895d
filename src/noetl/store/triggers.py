"""Triggers: when each is due, and the outcome of each time and each message.

A row belongs to a document, or to one item of it (`key`). A change names the revision that was
read: if the row has moved, nothing is written. The start of an execution can carry such a change
(`Write.trigger`); then both are written, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from noetl.model.ids import ExecutionId
from noetl.model.triggers import TriggerChange, TriggerMessage, TriggerRow, TriggerTime

Renewed = Callable[[int, TriggerRow | None], TriggerRow]
"""The row of a registered document, given its catalog version and the previous row."""


class Triggers(Protocol):
    """What every store promises about documents that start executions."""

    async def get(self, path: str, key: str = "") -> TriggerRow | None:
        """One row."""

    async def of_kind(
        self, kind: str, *, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[TriggerRow]:
        """Rows of a kind by path and key, after `after`."""

    async def due(self, *, now: float, limit: int = 100) -> list[TriggerRow]:
        """Rows that are due, earliest first. Changes nothing."""

    async def next_due(self) -> float | None:
        """When the next row is due."""

    async def change(self, decided: TriggerChange) -> bool:
        """Write it. Returns False, and changes nothing, if the row has moved or a message is
        known.
        """

    async def forget(self, path: str, kind: str) -> None:
        """Remove the rows of that kind which belong to a document; its own row stays."""

    async def times(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerTime]:
        """Outcomes of times before that, newest first."""

    async def times_between(self, path: str, first: float, last: float) -> list[TriggerTime]:
        """Outcomes of the times from the first to the last, in order."""

    async def buffered(self, path: str, *, limit: int = 100) -> list[TriggerTime]:
        """Times that wait for their turn, oldest first."""


class Messages(Protocol):
    """What every store promises about messages that start executions."""

    async def of(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerMessage]:
        """Outcomes of messages before that, newest first."""

    async def known(self, path: str, ids: Sequence[str]) -> set[str]:
        """Those of these messages whose outcome is stored."""

    async def open(self, path: str, *, limit: int = 1000) -> list[ExecutionId]:
        """Executions started by messages that have not ended, oldest first."""

    async def forget(self, path: str, ids: Sequence[str]) -> None:
        """These messages can never come again."""

    async def forget_old(self, path: str, *, before: float) -> None:
        """Messages before that can never come again."""
