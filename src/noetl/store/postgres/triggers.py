"""What starts executions, in PostgreSQL. What the methods promise is written in
`noetl.store.triggers`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from psycopg.rows import DictRow

from noetl.model.triggers import TriggerChange, TriggerRow, TriggerTime
from noetl.store.postgres.connections import Connection, Database, change, rows


async def write_change(db: Connection, decided: TriggerChange) -> bool:
    """Write a decision within the transaction that is open; whether the row was still the same."""
    name = "delete_trigger" if decided.gone else "update_trigger"
    if decided.row.revision == 0:
        name = "insert_trigger"
    if await change(db, name, msgspec.structs.asdict(decided.row)) != 1:
        return False
    if decided.times:
        times = msgspec.json.encode([_plain(time) for time in decided.times]).decode()
        await change(db, "put_trigger_times", {"times": times})
    return True


def _plain(time: TriggerTime) -> TriggerTime:
    # A text of PostgreSQL cannot hold NUL.
    return msgspec.structs.replace(time, reason=time.reason.replace("\0", "\ufffd"))


async def locked(db: Connection, path: str, key: str = "") -> TriggerRow | None:
    found = await rows(db, "lock_trigger", {"path": path, "key": key})
    return _row(found[0]) if found else None


def _row(row: DictRow) -> TriggerRow:
    return TriggerRow(**row | {"state": bytes(row["state"])})


class TriggerMethods:
    """The methods of `TriggerStore`, for a store with a database."""

    _database: Database

    async def trigger(self, path: str, key: str = "") -> TriggerRow | None:
        found = await self._database.one("trigger", {"path": path, "key": key})
        return _row(found) if found else None

    async def triggers(
        self, kind: str, *, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[TriggerRow]:
        chosen = {"kind": kind, "prefix": prefix, "path": after[0], "key": after[1]}
        found = await self._database.all("triggers", chosen | {"limit": limit})
        return [_row(row) for row in found]

    async def due_triggers(self, *, now: float, limit: int = 100) -> list[TriggerRow]:
        found = await self._database.all("due_triggers", {"now": now, "limit": limit})
        return [_row(row) for row in found]

    async def next_trigger(self) -> float | None:
        row = await self._database.one("next_trigger")
        assert row is not None
        found: float | None = row["next_at"]
        return found

    async def change_trigger(self, decided: TriggerChange) -> bool:
        return await self._database.together(lambda db: write_change(db, decided))

    async def trigger_times(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerTime]:
        return await self._times("trigger_times", path=path, before=before, limit=limit)

    async def trigger_times_between(
        self, path: str, first: float, last: float
    ) -> list[TriggerTime]:
        return await self._times("trigger_times_between", path=path, first=first, last=last)

    async def buffered_times(self, path: str, *, limit: int = 100) -> list[TriggerTime]:
        return await self._times("buffered_times", path=path, limit=limit)

    async def _times(self, query: str, **chosen: Any) -> list[TriggerTime]:
        return [TriggerTime(**row) for row in await self._database.all(query, chosen)]
