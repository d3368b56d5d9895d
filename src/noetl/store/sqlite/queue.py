"""Commands, leases and timers in SQLite. The promise is written in `noetl.store.queue`."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from noetl.model.commands import Command, Lease
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.store.checksums import damaged_command, verified_command
from noetl.store.queue import Queue
from noetl.store.sqlite.database import QUERIES, SqliteDatabase, encode_json


class SqliteQueue(Queue):
    """See `noetl.store.queue.Queue`."""

    _database: SqliteDatabase
    goes_along = True

    async def claim(
        self, worker_id: str, *, pool: str, limit: int, expires_at: float, own: bool = False
    ) -> list[Lease]:
        # Nobody else opens any: all are our own.
        chosen: dict[str, object] = {"pool": pool}
        return await self._database.write(
            lambda db: claim(db, "free_commands", chosen, worker_id, limit, expires_at)
        )

    async def claim_of(
        self,
        worker_id: str,
        commands: Collection[CommandId],
        *,
        pool: str,
        limit: int,
        expires_at: float,
    ) -> list[Lease]:
        chosen: dict[str, object] = {"pool": pool, "commands": encode_json(list(commands)).decode()}
        return await self._database.write(
            lambda db: claim(db, "free_commands_of", chosen, worker_id, limit, expires_at)
        )

    async def open_commands(
        self, execution_id: ExecutionId | None = None
    ) -> list[tuple[Command, str | None, float | None]]:
        return await self._database.read(lambda db: _open_commands(db, execution_id))


def claim(
    db: sqlite3.Connection,
    query: str,
    chosen: dict[str, object],
    worker_id: str,
    limit: int,
    expires_at: float,
) -> list[Lease]:
    """Lease free commands. One whose bytes have changed is set aside, so that it blocks nobody."""
    leases: list[Lease] = []
    while len(leases) < limit:
        chosen["limit"] = limit - len(leases)
        leased, corrupted = [], []
        for position, body, checksum in db.execute(QUERIES[query], chosen).fetchall():
            command = verified_command(body, checksum)
            if command is None:
                corrupted.append((position,))
                continue
            token = token_of(command.command_id)
            leases.append(Lease(command=command, token=token, expires_at=expires_at))
            leased.append((worker_id, expires_at, position))
        db.executemany(QUERIES["lease_command"], leased)
        db.executemany(QUERIES["leave_queue"], [(position,) for *_, position in leased])
        db.executemany(QUERIES["set_aside"], corrupted)
        if not corrupted:
            break
    return leases


def _open_commands(
    db: sqlite3.Connection, execution_id: ExecutionId | None
) -> list[tuple[Command, str | None, float | None]]:
    if execution_id is None:
        rows = db.execute(QUERIES["open_commands"])
    else:
        verify_commands(db, execution_id)
        rows = db.execute(QUERIES["open_commands_of"], (execution_id,))
    found = []
    for body, checksum, worker_id, expires_at in rows:
        command = verified_command(body, checksum)
        if command is not None:
            found.append((command, worker_id, expires_at))
    return found


def verify_commands(db: sqlite3.Connection, execution_id: ExecutionId) -> None:
    """Raise Corrupted if an open command is not what was written."""
    chosen = {"execution_id": execution_id}
    for command_id, body, checksum in db.execute(QUERIES["commands_to_verify"], chosen):
        if verified_command(body, checksum) is None:
            raise damaged_command(command_id, execution_id)
