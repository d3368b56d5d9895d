"""What holds executions back: slots of limits, and rates that all workers share."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from noetl.model.ids import ExecutionId


class Slot(NamedTuple):
    """A limit that an execution is held to: so many that have it run at the same time."""

    name: str
    capacity: int
    replaces: bool = False
    """Older ones make room for newer ones."""
    priority: int = 0


class SlotUse(NamedTuple):
    """An execution that holds a slot of a limit, or waits for one."""

    execution_id: ExecutionId
    name: str
    capacity: int
    held: bool
    path: str


class Admissions(Protocol):
    """Who may start, and who has to end for it."""

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        """Executions that wait although all their limits have room, in the order of their turn."""

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        """Executions that have to make room, and for which newer one."""


class Limits(Admissions, Protocol):
    """What every store promises about limits. A slot is taken and freed by a commit."""

    async def slot_uses(self, names: Collection[str]) -> list[SlotUse]:
        """Who holds a slot of these limits, and who waits for one, in the order they will run: the
        first hundred."""

    async def take_moment(self, key: str, *, apart: float, now: float) -> float:
        """The next free moment of a rate, which is nobody else's then: moments of one key lie at
        least so many seconds apart, whoever takes them.
        """

    async def forget_moments(self, *, before: float) -> None:
        """Rates whose next free moment has passed by then need no row."""
