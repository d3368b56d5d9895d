"""Slots of limits and rates, in PostgreSQL. The promise is written in `noetl.store.limits`."""

from __future__ import annotations

from collections.abc import Collection

from noetl.model.ids import ExecutionId
from noetl.store.limits import SlotUse
from noetl.store.postgres.database import Database


class PostgresLimits:
    """See `noetl.store.limits.Limits`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def slot_uses(self, names: Collection[str]) -> list[SlotUse]:
        return await self._database.rows("slot_holders", SlotUse, {"names": list(names)})

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        found = await self._database.all("admissible", {"limit": limit})
        return [row["execution_id"] for row in found]

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        found = await self._database.all("displaced", {"limit": limit})
        return [(row["execution_id"], row["by"]) for row in found]

    async def take_moment(self, key: str, *, apart: float, now: float) -> float:
        values = {"key": key, "apart": apart, "now": now}
        row = await self._database.one("take_moment", values)
        assert row is not None
        return float(row["next_at"]) - apart

    async def forget_moments(self, *, before: float) -> None:
        await self._database.change("forget_moments", {"before": before})
