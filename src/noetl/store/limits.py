"""Limits on executions: slots, and rates that all workers share."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from noetl.model.ids import ExecutionId
from noetl.store.database import Database


class Slot(NamedTuple):
    """A limit of an execution: how many executions with it may run at the same time."""

    name: str
    capacity: int
    replaces: bool = False
    """Older ones make room for newer ones."""
    priority: int = 0


HOLDING = frozenset({"RUNNING", "PAUSED"})
"""The statuses in which an execution holds its slots."""


class SlotUse(NamedTuple):
    """An execution that holds a slot of a limit, or waits for one."""

    execution_id: ExecutionId
    name: str
    capacity: int
    held: bool
    path: str


class SlotRow(NamedTuple):
    """A limit of an execution, as it is stored."""

    slot: Slot
    held: bool
    requested_at: float


class Admissions(Protocol):
    """Which executions may start, and which have to end for that."""

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        """Waiting executions whose limits all have room, in the order of their turn."""

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        """Executions that have to make room, and the newer one that replaces each."""


class Limits(Admissions):
    """Slots and rates. A slot is taken and freed by a commit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        return await self._database.column("admissible", limit=limit)

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        return await self._database.tuples("displaced", limit=limit)

    async def slot_uses(self, names: Collection[str]) -> list[SlotUse]:
        """The executions that hold a slot of these limits, and those that wait, in the order they
        will run: the first hundred.
        """
        found = await self._database.tuples("slot_holders", names=list(names))
        return [SlotUse(one, name, most, bool(held), path) for one, name, most, held, path in found]

    async def bounded(self) -> list[ExecutionId]:
        """Executions that hold a slot or wait for one."""
        return await self._database.column("bounded")

    async def slots_of(self, execution_id: ExecutionId) -> list[SlotRow]:
        """The limits of an execution that waits or runs."""
        found = await self._database.tuples("slots_of", execution_id=execution_id)
        return [
            SlotRow(Slot(name, most, bool(replaces), priority), bool(held), at)
            for name, most, replaces, priority, held, at in found
        ]

    async def take_moment(self, key: str, *, apart: float, now: float) -> float:
        """Take the next free moment of a rate for one caller: moments of one key are at least
        `apart` seconds apart, for all callers together.
        """
        [(after,)] = await self._database.returned("take_moment", key=key, apart=apart, now=now)
        return float(after) - apart

    async def forget_moments(self, *, before: float) -> None:
        """Delete rates whose next free moment has passed by then."""
        await self._database.change("forget_moments", before=before)
