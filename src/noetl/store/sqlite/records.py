"""Lists of executions in SQLite. The promise is written in `noetl.store.records`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from noetl.model.execution_query import Wanted
from noetl.model.ids import ExecutionId
from noetl.store.queries import columns_of
from noetl.store.records import (
    Dialect,
    SavedView,
    Summary,
    composed,
    counts,
    looked_up,
    page,
    summary_of,
)
from noetl.store.sqlite.database import Database
from noetl.store.sqlite.queries import QUERIES

DIALECT = Dialect(
    QUERIES,
    re.compile(r"(?<!:):(\w+)"),
    ":{}",
    lambda pattern: pattern.replace("[", "[[]"),
    lambda texts: msgspec.json.encode(texts).decode(),
)


class SqliteRecords:
    """See `noetl.store.records.Records`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def summary(self, execution_id: ExecutionId) -> Summary | None:
        return await self._database.row("summary", summary_of, execution_id=execution_id)

    async def by_key(self, key: str) -> Summary | None:
        return await self._database.row("summary_by_key", summary_of, key=key)

    async def summaries(
        self,
        wanted: Wanted = (),
        *,
        now: float = 0.0,
        before: tuple[float, ExecutionId] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        found = await self._found("summaries", wanted, now, **page(wanted, before, limit))
        fields = Summary.__struct_fields__
        return [summary_of(**dict(zip(fields, row, strict=True))) for row in found]

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        [(count,)] = await self._found("executions_count", wanted, now)
        return int(count)

    async def span(self) -> tuple[float, float] | None:
        [(first, last)] = await self._database.tuples("executions_span")
        return None if first is None else (first, last)

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        chosen = {"begin": begin, "width": width, "end": end}
        return sorted(await self._found("executions_histogram", wanted, now, **chosen))

    async def _found(self, name: str, wanted: Wanted, now: float, **values: Any) -> list[Any]:
        """Every row of a statement with the conditions of a query."""
        lookups = await looked_up(DIALECT, wanted, self._column)
        statement, chosen = composed(DIALECT, name, wanted, now, lookups)
        return await self._database.read(
            lambda db: db.execute(statement, {**chosen, **values}).fetchall()
        )

    async def _column(self, name: str, values: dict[str, Any]) -> list[Any]:
        return [one for (one,) in await self._database.tuples(name, **values)]

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        return await self._database.tuples("label_counts", **counts(label, since, limit))

    async def unfinished(self) -> list[ExecutionId]:
        """Oldest first."""
        return [one for (one,) in await self._database.tuples("unfinished")]

    async def ended(
        self, *, after: tuple[float, ExecutionId], before: float, limit: int
    ) -> list[tuple[float, ExecutionId]]:
        at, execution_id = after
        return await self._database.tuples(
            "ended_since", at=at, execution_id=execution_id, before=before, limit=limit
        )

    async def views(self) -> list[SavedView]:
        return await self._database.rows("views", SavedView)

    async def put_view(self, view: SavedView) -> None:
        await self._database.change("put_view", **columns_of(view))

    async def delete_view(self, name: str) -> bool:
        return await self._database.change("delete_view", name=name)
