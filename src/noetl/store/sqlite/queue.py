"""Commands, leases and timers in SQLite. The promise is written in `noetl.store.queue`."""

from __future__ import annotations

import sqlite3
from typing import Any

from noetl.model.commands import Lease
from noetl.model.ids import ExecutionId, token_of
from noetl.store.checksums import damaged_command, verified_command
from noetl.store.queue import Claim, Queue
from noetl.store.sqlite.database import QUERIES, SqliteDatabase, sent


class SqliteQueue(Queue):
    """See `noetl.store.queue.Queue`."""

    _database: SqliteDatabase
    goes_along = True
    own_claim = "claim"  # Nobody else opens any: all are our own.

    async def _lease(self, query: str, claim: Claim, **chosen: Any) -> list[Lease]:
        return await self._database.write(lambda db: lease(db, query, claim, **chosen))


def lease(db: sqlite3.Connection, query: str, claim: Claim, **chosen: Any) -> list[Lease]:
    """Lease what the statement finds, within the open transaction. See `Queue._lease`."""
    leases: list[Lease] = []
    while len(leases) < claim.limit:
        values = sent({"pool": claim.pool, "limit": claim.limit - len(leases), **chosen})
        leased, corrupted = [], []
        for position, body, checksum in db.execute(QUERIES[query], values).fetchall():
            command = verified_command(body, checksum)
            if command is None:
                corrupted.append((position,))
                continue
            token = token_of(command.command_id)
            leases.append(Lease(command=command, token=token, expires_at=claim.expires_at))
            leased.append((claim.worker_id, claim.expires_at, position))
        db.executemany(QUERIES["lease_command"], leased)
        db.executemany(QUERIES["leave_queue"], [(position,) for *_, position in leased])
        db.executemany(QUERIES["set_aside"], corrupted)
        if not corrupted:
            break
    return leases


def verify_commands(db: sqlite3.Connection, execution_id: ExecutionId) -> None:
    """Raise Corrupted if an open command is not what was written."""
    chosen = {"execution_id": execution_id}
    for command_id, body, checksum, *_ in db.execute(QUERIES["open_commands_of"], chosen):
        if verified_command(body, checksum) is None:
            raise damaged_command(command_id, execution_id)
