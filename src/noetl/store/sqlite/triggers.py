"""What starts executions, in SQLite. The promise is written in `noetl.store.triggers`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from noetl.model.ids import ExecutionId
from noetl.model.triggers import TriggerChange, TriggerMessage, TriggerRow, TriggerTime
from noetl.store.sqlite.database import Database, rows
from noetl.store.sqlite.queries import QUERIES
from noetl.store.sqlite.queue import listed


class SqliteTriggers:
    """See `noetl.store.triggers.Triggers`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, path: str, key: str = "") -> TriggerRow | None:
        return await self._database.row("trigger", TriggerRow, path=path, key=key)

    async def of_kind(
        self, kind: str, *, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[TriggerRow]:
        path, key = after
        return await self._database.rows(
            "triggers", TriggerRow, kind=kind, prefix=prefix, path=path, key=key, limit=limit
        )

    async def due(self, *, now: float, limit: int = 100) -> list[TriggerRow]:
        return await self._database.rows("due_triggers", TriggerRow, now=now, limit=limit)

    async def next_due(self) -> float | None:
        [(found,)] = await self._database.tuples("next_trigger")
        return None if found is None else float(found)

    async def change(self, decided: TriggerChange) -> bool:
        return await self._database.write(lambda db: change(db, decided))

    async def forget(self, path: str, kind: str) -> None:
        await self._database.change("forget_triggers", path=path, kind=kind)

    async def times(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerTime]:
        return await self._database.rows(
            "trigger_times", TriggerTime, path=path, before=before, limit=limit
        )

    async def times_between(self, path: str, first: float, last: float) -> list[TriggerTime]:
        return await self._database.rows(
            "trigger_times_between", TriggerTime, path=path, first=first, last=last
        )

    async def buffered(self, path: str, *, limit: int = 100) -> list[TriggerTime]:
        return await self._database.rows("buffered_times", TriggerTime, path=path, limit=limit)


class SqliteMessages:
    """See `noetl.store.triggers.Messages`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerMessage]:
        return await self._database.rows(
            "trigger_messages", TriggerMessage, path=path, before=before, limit=limit
        )

    async def known(self, path: str, ids: Sequence[str]) -> set[str]:
        found = await self._database.tuples("known_messages", path=path, ids=listed(ids))
        return {one for (one,) in found}

    async def open(self, path: str, *, limit: int = 1000) -> list[ExecutionId]:
        found = await self._database.tuples("open_messages", path=path, limit=limit)
        return [one for (one,) in found]

    async def forget(self, path: str, ids: Sequence[str]) -> None:
        await self._database.change("forget_messages", path=path, ids=listed(ids))

    async def forget_old(self, path: str, *, before: float) -> None:
        await self._database.change("forget_old_messages", path=path, before=before)


def change(db: sqlite3.Connection, decided: TriggerChange) -> bool:
    """Write a decision within the open transaction. Returns whether the row was unchanged."""
    # First the messages, which may be known already, so that a refusal has written nothing.
    for message in decided.messages:
        chosen = {"path": message.path, "id": message.id}
        if db.execute(QUERIES["trigger_message"], chosen).fetchone():
            return False
    if decided.row is not None:
        name = "delete_trigger" if decided.gone else "update_trigger"
        if decided.row.revision == 0:
            name = "insert_trigger"
        if db.execute(QUERIES[name], msgspec.structs.asdict(decided.row)).rowcount != 1:
            return False
    for query, values in (
        ("put_trigger_time", decided.times),
        ("put_trigger_message", decided.messages),
        ("insert_trigger", decided.rows),
    ):
        db.executemany(QUERIES[query], [msgspec.structs.asdict(value) for value in values])
    return True


def trigger(db: sqlite3.Connection, path: str, key: str = "") -> TriggerRow | None:
    return next(iter(rows(db, "trigger", TriggerRow, path=path, key=key)), None)
