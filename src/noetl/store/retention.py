"""Retention: executions that ended, holds on them, and counts that outlive them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from noetl.model.ids import ExecutionId
from noetl.store.database import Database, Transaction

FORGOTTEN_LAST = ("forget_reuse", "forget_executions")


class Ended(NamedTuple):
    """A top-level execution that has ended."""

    execution_id: ExecutionId
    path: str
    status: str
    requested_at: float
    ended_at: float


class Member(NamedTuple):
    """A member of an execution tree: a top-level execution, what it called, and so on."""

    execution_id: ExecutionId
    has_ended: bool
    is_held: bool
    """It is on hold."""
    is_reused: bool
    """An execution outside the tree reuses its results."""
    seq: int
    """How many events it has."""


class Forgotten(NamedTuple):
    """Removed executions of one day, path and status."""

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
    """Why an execution is on hold, by whom, and since when."""

    execution_id: ExecutionId
    note: str
    who: str
    at: float


class Retention:
    """What may be forgotten, and what must be kept."""

    has_spans = False
    """Whether it can free the space of a whole time span at once (`spans`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        return await self._database.rows(
            "ended",
            Ended,
            before=before,
            since=since,
            prefix=prefix,
            requested_after=after.requested_at if after else 0.0,
            ended_after=after.ended_at if after else since,
            after_id=after.execution_id if after else "",
            limit=limit,
        )

    async def trees(
        self, execution_ids: Collection[ExecutionId]
    ) -> dict[ExecutionId, list[Member]]:
        """Each of these with everything that it called, the called ones first; empty for one that
        is unknown."""
        trees: dict[ExecutionId, list[Member]] = {one: [] for one in execution_ids}
        found = await self._database.tuples("trees", execution_ids=list(execution_ids))
        for root, one, has_ended, is_held, is_reused, seq in found:
            trees[root].append(Member(one, bool(has_ended), bool(is_held), bool(is_reused), seq))
        return trees

    async def tree(self, execution_id: ExecutionId) -> list[Member]:
        """One of them."""
        return (await self.trees([execution_id]))[execution_id]

    async def forget(self, execution_ids: Collection[ExecutionId]) -> list[ExecutionId]:
        """Remove these with everything that belongs to them, and count them. Returns which were
        removed.

        Executions that have not ended or are on hold stay.
        """

        async def forget(db: Transaction) -> list[ExecutionId]:
            going: list[ExecutionId] = await db.column(
                "forgettable", execution_ids=sorted(execution_ids)
            )
            if going:
                for name in ("tally", "forget_log", "forget_results", *FORGOTTEN_LAST):
                    await db.change(name, execution_ids=going)
            return going

        return await self._database.together(forget, is_long=True)

    async def forget_files(self) -> int:
        """Remove body files that no execution refers to any more. Returns how many bytes."""
        return 0

    async def spans(self, *, before: float, now: float) -> list[str]:
        """Names of past time spans in which all executions ended before a moment and may be
        removed.
        """
        return []

    async def forget_span(self, name: str, *, limit: int = 500) -> list[Gone]:
        """Remove executions of a span, and count them. If none is left, the rest of the span is
        dropped, and the answer is empty.
        """
        return []

    async def forgotten(self, *, since_day: int = 0) -> list[Forgotten]:
        """Counts of removed executions, by day, path and status."""
        return await self._database.rows("forgotten", Forgotten, since_day=since_day)

    async def reuse(self, execution_id: ExecutionId, source: ExecutionId) -> None:
        """One execution reuses results of another, which must be kept as long as it is."""
        await self._database.change("reuse", execution_id=execution_id, source=source)

    async def hold(self, hold: Hold) -> bool:
        """Hold an execution until it is released; without a note the one it has stays. Returns
        False if there is no such execution.
        """
        return await self._database.change("hold", **hold._asdict()) > 0

    async def release(self, execution_id: ExecutionId) -> bool:
        """Release it. Returns whether it was on hold."""
        return await self._database.change("release", execution_id=execution_id) > 0

    async def holds(self) -> list[Hold]:
        """All holds, newest first."""
        return await self._database.rows("holds", Hold)
