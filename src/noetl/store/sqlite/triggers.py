"""Changes of triggers in SQLite. The promise is written in `noetl.store.triggers`."""

from __future__ import annotations

import sqlite3

import msgspec

from noetl.model.triggers import TriggerChange
from noetl.store.sqlite.database import QUERIES, SqliteDatabase, SqliteTransaction, finished
from noetl.store.triggers import Triggers, write_row


class SqliteTriggers(Triggers):
    """See `noetl.store.triggers.Triggers`."""

    _database: SqliteDatabase

    async def change(self, decided: TriggerChange) -> bool:
        return await self._database.write(lambda db: change(db, decided))


def change(db: sqlite3.Connection, decided: TriggerChange) -> bool:
    """Write a decision within the open transaction. Returns whether the row was unchanged."""
    # First the messages, which may be known already, so that a refusal has written nothing.
    for message in decided.messages:
        chosen = {"path": message.path, "id": message.id}
        if db.execute(QUERIES["trigger_message"], chosen).fetchone():
            return False
    row = decided.row
    if row is not None and not finished(write_row(SqliteTransaction(db), row, gone=decided.gone)):
        return False
    for query, values in (
        ("put_trigger_time", decided.times),
        ("put_trigger_message", decided.messages),
        ("insert_trigger", decided.rows),
    ):
        db.executemany(QUERIES[query], [msgspec.structs.asdict(value) for value in values])
    return True
