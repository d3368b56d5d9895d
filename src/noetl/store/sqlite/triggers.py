"""What starts executions, in SQLite. The promise is written in `noetl.store.triggers`."""

from __future__ import annotations

import sqlite3
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from noetl.model.triggers import TriggerChange, TriggerRow, TriggerTime
from noetl.store.queries import read_queries
from noetl.store.sqlite.lanes import Job

T = TypeVar("T")
QUERIES = read_queries((files(__package__) / "triggers.sql").read_text(encoding="utf-8"))


def change(db: sqlite3.Connection, decided: TriggerChange) -> bool:
    """Write a decision within the transaction that is open; whether the row was still the same."""
    name = "delete_trigger" if decided.gone else "update_trigger"
    if decided.row.revision == 0:
        name = "insert_trigger"
    if db.execute(QUERIES[name], msgspec.structs.asdict(decided.row)).rowcount != 1:
        return False
    rows = [msgspec.structs.asdict(time) for time in decided.times]
    db.executemany(QUERIES["put_trigger_time"], rows)
    return True


def trigger(db: sqlite3.Connection, path: str, key: str = "") -> TriggerRow | None:
    row = db.execute(QUERIES["trigger"], (path, key)).fetchone()
    return _row(row) if row else None


def _row(row: tuple[Any, ...]) -> TriggerRow:
    path, key, kind, revision, next_at, state = row
    return TriggerRow(
        path=path, key=key, kind=kind, revision=revision, next_at=next_at, state=state
    )


def _time(row: tuple[Any, ...]) -> TriggerTime:
    return TriggerTime(**dict(zip(TriggerTime.__struct_fields__, row, strict=True)))


class TriggerMethods:
    """The methods of `TriggerStore`, for a store with lanes."""

    async def _read(self, job: Job[T]) -> T:
        raise AssertionError("the store says how")

    async def _write(self, job: Job[T]) -> T:
        raise AssertionError("the store says how")

    async def trigger(self, path: str, key: str = "") -> TriggerRow | None:
        return await self._read(lambda db: trigger(db, path, key))

    async def triggers(
        self, kind: str, *, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[TriggerRow]:
        chosen = {"kind": kind, "prefix": prefix, "path": after[0], "key": after[1]}
        return await self._rows("triggers", chosen | {"limit": limit})

    async def due_triggers(self, *, now: float, limit: int = 100) -> list[TriggerRow]:
        return await self._rows("due_triggers", (now, limit))

    async def _rows(self, query: str, values: Any) -> list[TriggerRow]:
        found = await self._read(lambda db: db.execute(QUERIES[query], values).fetchall())
        return [_row(row) for row in found]

    async def next_trigger(self) -> float | None:
        (found,) = await self._read(lambda db: db.execute(QUERIES["next_trigger"]).fetchone())
        return None if found is None else float(found)

    async def change_trigger(self, decided: TriggerChange) -> bool:
        return await self._write(lambda db: change(db, decided))

    async def trigger_times(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerTime]:
        return await self._times("trigger_times", {"path": path, "before": before, "limit": limit})

    async def trigger_times_between(
        self, path: str, first: float, last: float
    ) -> list[TriggerTime]:
        chosen = {"path": path, "first": first, "last": last}
        return await self._times("trigger_times_between", chosen)

    async def buffered_times(self, path: str, *, limit: int = 100) -> list[TriggerTime]:
        return await self._times("buffered_times", (path, limit))

    async def _times(self, query: str, values: Any) -> list[TriggerTime]:
        found = await self._read(lambda db: db.execute(QUERIES[query], values).fetchall())
        return [_time(row) for row in found]
