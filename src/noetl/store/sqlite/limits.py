"""Slots of limits and rates, in SQLite. The promise is written in `noetl.store.limits`."""

from __future__ import annotations

from collections.abc import Collection

from noetl.model.ids import ExecutionId
from noetl.store.limits import SlotUse
from noetl.store.sqlite.database import Database
from noetl.store.sqlite.queries import QUERIES
from noetl.store.sqlite.queue import listed


class SqliteLimits:
    """See `noetl.store.limits.Limits`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def slot_uses(self, names: Collection[str]) -> list[SlotUse]:
        found = await self._database.tuples("slot_holders", names=listed(names))
        return [SlotUse(one, name, most, bool(held), path) for one, name, most, held, path in found]

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        return [one for (one,) in await self._database.tuples("admissible", limit=limit)]

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        return await self._database.tuples("displaced", limit=limit)

    async def take_moment(self, key: str, *, apart: float, now: float) -> float:
        values = {"key": key, "apart": apart, "now": now}
        (after,) = await self._database.write(
            lambda db: db.execute(QUERIES["take_moment"], values).fetchone()
        )
        return float(after) - apart

    async def forget_moments(self, *, before: float) -> None:
        await self._database.change("forget_moments", before=before)
