"""The part of the promise that is about what starts executions: what is due when, and what became
of each time.

A row belongs to a document, or to one thing of it (`key`). Whoever decides something about it names
the revision that was read: if the row has moved, nothing is written. The start of an execution can
carry such a change (`Write.trigger`); then both are kept, or neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from noetl.model.triggers import TriggerChange, TriggerRow, TriggerTime

Renewed = Callable[[int, TriggerRow | None], TriggerRow]
"""The row of a document that was registered, by its version in the catalog and the row before."""


class TriggerStore(Protocol):
    """What every store keeps about what starts executions."""

    async def trigger(self, path: str, key: str = "") -> TriggerRow | None:
        """One row."""

    async def triggers(
        self, kind: str, *, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[TriggerRow]:
        """Rows of a kind by path and key, of those behind `after`."""

    async def due_triggers(self, *, now: float, limit: int = 100) -> list[TriggerRow]:
        """Rows whose time has come, earliest first. Changes nothing."""

    async def next_trigger(self) -> float | None:
        """When the next one is due."""

    async def change_trigger(self, decided: TriggerChange) -> bool:
        """Write it; False, and nothing is changed, if the row has moved."""

    async def trigger_times(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerTime]:
        """What became of times before that, newest first."""

    async def trigger_times_between(
        self, path: str, first: float, last: float
    ) -> list[TriggerTime]:
        """What became of the times from the first to the last, in order."""

    async def buffered_times(self, path: str, *, limit: int = 100) -> list[TriggerTime]:
        """Times that wait for their turn, oldest first."""
