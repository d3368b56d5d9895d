"""What starts executions, in PostgreSQL. The promise is written in `noetl.store.triggers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from noetl.model.ids import ExecutionId
from noetl.model.triggers import TriggerChange, TriggerMessage, TriggerRow, TriggerTime
from noetl.store.postgres.database import Connection, Database, change, rows


class PostgresTriggers:
    """See `noetl.store.triggers.Triggers`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, path: str, key: str = "") -> TriggerRow | None:
        return await self._database.row("trigger", _row, {"path": path, "key": key})

    async def of_kind(
        self, kind: str, *, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[TriggerRow]:
        chosen = {"kind": kind, "prefix": prefix, "path": after[0], "key": after[1]}
        return await self._database.rows("triggers", _row, chosen | {"limit": limit})

    async def due(self, *, now: float, limit: int = 100) -> list[TriggerRow]:
        return await self._database.rows("due_triggers", _row, {"now": now, "limit": limit})

    async def next_due(self) -> float | None:
        row = await self._database.one("next_trigger")
        assert row is not None
        found: float | None = row["next_at"]
        return found

    async def change(self, decided: TriggerChange) -> bool:
        async def whole(db: Connection) -> bool:
            async with db.transaction() as transaction:
                if await write_change(db, decided):
                    return True
                raise psycopg.Rollback(transaction)
            return False

        return await self._database.run(whole)

    async def forget(self, path: str, kind: str) -> None:
        await self._database.change("forget_triggers", {"path": path, "kind": kind})

    async def times(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerTime]:
        return await self._times("trigger_times", path=path, before=before, limit=limit)

    async def times_between(self, path: str, first: float, last: float) -> list[TriggerTime]:
        return await self._times("trigger_times_between", path=path, first=first, last=last)

    async def buffered(self, path: str, *, limit: int = 100) -> list[TriggerTime]:
        return await self._times("buffered_times", path=path, limit=limit)

    async def _times(self, query: str, **chosen: Any) -> list[TriggerTime]:
        return await self._database.rows(query, TriggerTime, chosen)


class PostgresMessages:
    """See `noetl.store.triggers.Messages`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerMessage]:
        chosen = {"path": path, "before": before, "limit": limit}
        return await self._database.rows("trigger_messages", TriggerMessage, chosen)

    async def known(self, path: str, ids: Sequence[str]) -> set[str]:
        chosen = {"path": path, "ids": list(ids)}
        return {row["id"] for row in await self._database.all("known_messages", chosen)}

    async def open(self, path: str, *, limit: int = 1000) -> list[ExecutionId]:
        found = await self._database.all("open_messages", {"path": path, "limit": limit})
        return [row["execution_id"] for row in found]

    async def forget(self, path: str, ids: Sequence[str]) -> None:
        await self._database.change("forget_messages", {"path": path, "ids": list(ids)})

    async def forget_old(self, path: str, *, before: float) -> None:
        await self._database.change("forget_old_messages", {"path": path, "before": before})


async def write_change(db: Connection, decided: TriggerChange) -> bool:
    """Write a decision within the open transaction. Returns whether the row was unchanged."""
    if decided.row is not None:
        name = "delete_trigger" if decided.gone else "update_trigger"
        if decided.row.revision == 0:
            name = "insert_trigger"
        if await change(db, name, msgspec.structs.asdict(decided.row)) != 1:
            return False
    if decided.times:
        await change(db, "put_trigger_times", {"times": _plain(decided.times)})
    if decided.messages:
        messages = {"messages": _plain(decided.messages)}
        if await change(db, "put_trigger_messages", messages) != len(decided.messages):
            return False
    for row in decided.rows:
        await change(db, "insert_trigger", msgspec.structs.asdict(row))
    return True


def _plain(found: Sequence[TriggerTime] | Sequence[TriggerMessage]) -> str:
    # PostgreSQL text cannot contain NUL.
    return msgspec.json.encode(
        [msgspec.structs.replace(one, reason=one.reason.replace("\0", "\ufffd")) for one in found]
    ).decode()


async def locked(db: Connection, path: str, key: str = "") -> TriggerRow | None:
    found = await rows(db, "lock_trigger", {"path": path, "key": key})
    return _row(**found[0]) if found else None


def _row(state: bytes, **fields: Any) -> TriggerRow:
    return TriggerRow(state=bytes(state), **fields)
