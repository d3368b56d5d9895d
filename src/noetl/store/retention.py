"""What is kept and what is forgotten: executions that ended, holds on them, and counts that outlive
them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from noetl.model.ids import ExecutionId


class Ended(NamedTuple):
    """An execution that nobody called and that has ended."""

    execution_id: ExecutionId
    path: str
    status: str
    requested_at: float
    ended_at: float


class Member(NamedTuple):
    """An execution of a tree: one that nobody called, what it called, and so on."""

    execution_id: ExecutionId
    has_ended: bool
    is_held: bool
    """Somebody wants it to be kept."""
    is_reused: bool
    """An execution outside of the tree stands on its results."""
    seq: int
    """How many events it has."""


class Forgotten(NamedTuple):
    """Executions of one day, path and status that are not kept any more."""

    day: int
    """Days since 1970."""
    path: str
    status: str
    executions: int


class Gone(NamedTuple):
    """An execution that was removed."""

    execution_id: ExecutionId
    path: str
    is_root: bool
    """Nobody called it."""
    seq: int
    """How many events it had."""


class Hold(NamedTuple):
    """Why an execution is kept, by whose wish, and since when."""

    execution_id: ExecutionId
    note: str
    who: str
    at: float


class Retention(Protocol):
    """What every store promises about forgetting."""

    has_spans: bool
    """It gives back the room of a span of time at once (`spans`), if all of it may go."""

    async def ended(
        self,
        *,
        before: float,
        since: float = 0.0,
        prefix: str = "",
        after: Ended | None = None,
        limit: int = 200,
    ) -> list[Ended]:
        """Executions that nobody called and that ended between these moments, oldest first: by
        their request or by their end, as the store finds them. `after` is the last one of the page
        before."""

    async def tree(self, execution_id: ExecutionId) -> list[Member]:
        """An execution and all that it called, the called ones first; none if it is unknown."""

    async def forget(self, execution_ids: Collection[ExecutionId]) -> int:
        """Remove these with all that belongs to them, and count them; how many were removed.

        Whatever has not ended or is held stays.
        """

    async def forget_files(self) -> int:
        """Remove bodies in files that no execution refers to any more; how many bytes."""

    async def spans(self, *, before: float, now: float) -> list[str]:
        """Names of past spans of time of which all executions ended before a moment and may go."""

    async def forget_span(self, name: str, *, limit: int = 500) -> list[Gone]:
        """Remove executions of a span, and count them. If none is left, what else belongs to them
        is dropped, and the answer is empty."""

    async def forgotten(self, *, since_day: int = 0) -> list[Forgotten]:
        """What is not kept any more, by day, path and status."""

    async def reuse(self, execution_id: ExecutionId, source: ExecutionId) -> None:
        """One execution stands on results of another, which must be kept as long as it is."""

    async def hold(self, hold: Hold) -> bool:
        """Keep an execution until it is released; False if there is no such execution."""

    async def release(self, execution_id: ExecutionId) -> bool:
        """Whether it was held."""

    async def holds(self) -> list[Hold]:
        """All of them, the newest first."""
