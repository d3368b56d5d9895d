"""Removal of executions in PostgreSQL. The promise is written in `noetl.store.retention`."""

from __future__ import annotations

from noetl.store.database import Transaction
from noetl.store.postgres.database import PostgresDatabase
from noetl.store.retention import FORGOTTEN_LAST, Gone, Retention

DAY_SECONDS = 86400
DAYS_AHEAD = 8
"""How many days of partitions are created ahead; for that long no maintenance is needed."""


class PostgresRetention(Retention):
    """See `noetl.store.retention.Retention`. A span is a day: a partition of log and results."""

    _database: PostgresDatabase
    has_spans = True

    async def spans(self, *, before: float, now: float) -> list[str]:
        await self.add_partitions(now)
        return await self._database.column("spans", before=before, day=_day(now))

    async def forget_span(self, name: str, *, limit: int = 500) -> list[Gone]:
        async def forget(db: Transaction) -> list[Gone]:
            """Without their log and results, which are dropped with the partition at the end."""
            found = await db.rows("span_executions", Gone, name=name, limit=limit)
            if found:
                for query in ("tally", *FORGOTTEN_LAST):
                    await db.change(query, execution_ids=[one.execution_id for one in found])
            else:
                await db.tuples("drop_partition", name=name)
            return found

        return await self._database.together(forget, is_long=True)

    async def add_partitions(self, now: float) -> None:
        """Create the partitions of today and of some days ahead."""
        await self._database.tuples("add_partitions", day=_day(now), days=DAYS_AHEAD)


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)
