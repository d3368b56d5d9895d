"""Lists of executions in PostgreSQL. The promise is written in `noetl.store.records`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from psycopg.rows import DictRow

from noetl.model.execution_query import Wanted
from noetl.model.ids import ExecutionId
from noetl.store.postgres.database import Connection, Database, first_column
from noetl.store.postgres.queries import QUERIES
from noetl.store.queries import columns_of
from noetl.store.records import (
    Dialect,
    SavedView,
    Summary,
    composed,
    counts,
    like_glob,
    looked_up,
    page,
    summary_of,
)

DIALECT = Dialect(QUERIES, re.compile(r"%\((\w+)\)s"), "%({})s", like_glob, list)


class PostgresRecords:
    """See `noetl.store.records.Records`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def summary(self, execution_id: ExecutionId) -> Summary | None:
        return await self._database.row("summary", summary_of, {"execution_id": execution_id})

    async def summaries(
        self,
        wanted: Wanted = (),
        *,
        now: float = 0.0,
        before: tuple[float, ExecutionId] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        rows = await self._found("summaries", wanted, now, page(wanted, before, limit))
        return [summary_of(**row) for row in rows]

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        [row] = await self._found("executions_count", wanted, now)
        return int(row["count"])

    async def span(self) -> tuple[float, float] | None:
        [row] = await self._database.all("executions_span")
        return None if row["first"] is None else (row["first"], row["last"])

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        chosen = {"begin": begin, "width": width, "end": end}
        rows = await self._found("executions_histogram", wanted, now, chosen)
        return sorted((row["bucket"], row["status"], row["count"]) for row in rows)

    async def _found(
        self, name: str, wanted: Wanted, now: float, values: Mapping[str, Any] | None = None
    ) -> list[DictRow]:
        """Every row of a statement with the conditions of a query."""
        lookups = await looked_up(DIALECT, wanted, self._column)
        statement, chosen = composed(DIALECT, name, wanted, now, lookups)

        async def ask(db: Connection) -> list[DictRow]:
            # Not prepared: the plan for one query is a poor one for another.
            given = {**chosen, **(values or {})}
            cursor = await db.execute(statement.encode(), given, binary=True, prepare=False)
            return await cursor.fetchall()

        return await self._database.run(ask)

    async def _column(self, name: str, values: dict[str, Any]) -> list[Any]:
        return first_column(await self._database.all(name, values))

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        found = await self._database.all("label_counts", counts(label, since, limit))
        return [(row["value"], row["executions"]) for row in found]

    async def by_key(self, key: str) -> Summary | None:
        return await self._database.row("summary_by_key", summary_of, {"key": key})

    async def unfinished(self) -> list[ExecutionId]:
        return [row["execution_id"] for row in await self._database.all("unfinished")]

    async def ended(
        self, *, after: tuple[float, ExecutionId], before: float, limit: int
    ) -> list[tuple[float, ExecutionId]]:
        at, execution_id = after
        given = {"at": at, "execution_id": execution_id, "before": before, "limit": limit}
        rows = await self._database.all("ended_since", given)
        return [(row["ended_at"], row["execution_id"]) for row in rows]

    async def views(self) -> list[SavedView]:
        return await self._database.rows("views", SavedView)

    async def put_view(self, view: SavedView) -> None:
        await self._database.change("put_view", columns_of(view))

    async def delete_view(self, name: str) -> bool:
        return await self._database.change("delete_view", {"name": name}) > 0
