"""Removal of executions in PostgreSQL. The protocol is `noetl.store.retention`."""

from __future__ import annotations

from collections.abc import Collection

from noetl.model.ids import ExecutionId
from noetl.store.postgres.database import BODY_SECONDS, Connection, Database, change, rows
from noetl.store.retention import Ended, Forgotten, Gone, Hold, Member

DAY_SECONDS = 86400
DAYS_AHEAD = 8
"""How many days of partitions are created ahead; for that long no maintenance is needed."""


class PostgresRetention:
    """See `noetl.store.retention.Retention`. A span is a day: a partition of log and results."""

    has_spans = True

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
        chosen = {
            "before": before,
            "prefix": prefix,
            "after_at": after.ended_at if after else since,
            "after_id": after.execution_id if after else "",
            "limit": limit,
        }
        return await self._database.rows("ended", Ended, chosen)

    async def tree(self, execution_id: ExecutionId) -> list[Member]:
        chosen = {"execution_id": execution_id}
        return await self._database.rows("tree", Member, chosen, BODY_SECONDS)

    async def forget(self, execution_ids: Collection[ExecutionId]) -> int:
        wanted = sorted(execution_ids)
        return await self._database.run(lambda db: _forget(db, wanted), BODY_SECONDS)

    async def forget_files(self) -> int:
        return 0  # Bodies are rows, and are removed with their execution.

    async def spans(self, *, before: float, now: float) -> list[str]:
        await self.add_partitions(now)
        chosen = {"before": before, "day": _day(now)}
        found = await self._database.all("spans", chosen, BODY_SECONDS)
        return [row["name"] for row in found]

    async def forget_span(self, name: str, *, limit: int = 500) -> list[Gone]:
        return await self._database.run(lambda db: _forget_span(db, name, limit), BODY_SECONDS)

    async def add_partitions(self, now: float) -> None:
        """Create the partitions of today and of some days ahead."""
        chosen = {"day": _day(now), "days": DAYS_AHEAD}
        await self._database.all("add_partitions", chosen, BODY_SECONDS)

    async def forgotten(self, *, since_day: int = 0) -> list[Forgotten]:
        return await self._database.rows("forgotten", Forgotten, {"since_day": since_day})

    async def reuse(self, execution_id: ExecutionId, source: ExecutionId) -> None:
        await self._database.change("reuse", {"execution_id": execution_id, "source": source})

    async def hold(self, hold: Hold) -> bool:
        return await self._database.change("hold", hold._asdict()) > 0

    async def release(self, execution_id: ExecutionId) -> bool:
        return await self._database.change("release", {"execution_id": execution_id}) > 0

    async def holds(self) -> list[Hold]:
        return await self._database.rows("holds", Hold)


async def _forget(db: Connection, execution_ids: list[ExecutionId]) -> int:
    """Remove executions with everything that belongs to them, in one transaction."""
    async with db.transaction():
        found = await rows(db, "forgettable", {"execution_ids": execution_ids})
        going = {"execution_ids": [row["execution_id"] for row in found]}
        if found:
            for name in ("tally", "forget_log", "forget_results", "forget_executions"):
                await change(db, name, going)
    return len(found)


async def _forget_span(db: Connection, name: str, limit: int) -> list[Gone]:
    """Remove executions of a span without their log and results, which are dropped with the
    partition at the end.
    """
    async with db.transaction():
        found = await rows(db, "span_executions", {"name": name, "limit": limit})
        going = {"execution_ids": [row["execution_id"] for row in found]}
        if found:
            for query in ("tally", "forget_executions"):
                await change(db, query, going)
        else:
            await rows(db, "drop_partition", {"name": name})
    return [Gone(**row) for row in found]


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)
