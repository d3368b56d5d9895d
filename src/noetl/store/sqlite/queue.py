"""Commands, leases and timers in SQLite. The promise is written in `noetl.store.queue`."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

import msgspec

from noetl.model.commands import Command, Lease
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.store.checksums import damaged_command, verified_command
from noetl.store.queue import Free, Holder, Lapsed
from noetl.store.sqlite.database import Database
from noetl.store.sqlite.queries import QUERIES

encode_json = msgspec.json.Encoder().encode


class SqliteQueue:
    """See `noetl.store.queue.Queue`."""

    goes_along = True

    def __init__(self, database: Database) -> None:
        self._database = database

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
        chosen: dict[str, object] = {"pool": pool, "commands": listed(commands)}
        return await self._database.write(
            lambda db: claim(db, "free_commands_of", chosen, worker_id, limit, expires_at)
        )

    async def free(self, pool: str, *, limit: int) -> list[Free]:
        return [Free(*row) for row in await self._database.tuples("free", pool=pool, limit=limit)]

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        chosen = {"commands": listed(commands), "now": now, "expires_at": expires_at}
        return await self._database.write(
            lambda db: {one for (one,) in db.execute(QUERIES["renew_leases"], chosen)}
        )

    async def holders(self, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
        found = await self._database.tuples("holders", commands=listed(commands))
        return {command_id: Holder(*rest) for command_id, *rest in found}

    async def lapsed(self, *, now: float, limit: int = 100) -> list[Lapsed]:
        """Those of damaged commands are left out."""
        rows = await self._database.tuples("lapsed", now=now, limit=limit)
        found = [(verified_command(body, checksum), *rest) for body, checksum, *rest in rows]
        return [Lapsed(command, *rest) for command, *rest in found if command is not None]

    async def free_pools(self) -> dict[str, int]:
        return dict(await self._database.tuples("free_pools"))

    async def sizes(self) -> dict[str, tuple[int, int]]:
        rows = await self._database.tuples("queue_sizes")
        return {pool: (free, leased) for pool, free, leased in rows}

    async def open_commands(
        self, execution_id: ExecutionId | None = None
    ) -> list[tuple[Command, str | None, float | None]]:
        return await self._database.read(lambda db: _open_commands(db, execution_id))

    async def waiting_commands(self, *, limit: int = 1000) -> list[Command]:
        rows = await self._database.tuples("waiting_commands", limit=limit)
        found = [verified_command(body, checksum) for body, checksum in rows]
        return [command for command in found if command is not None]

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        return await self._database.tuples("due_timers", now=now, limit=limit)

    async def timers(self, execution_id: ExecutionId) -> dict[str, float]:
        return dict(await self._database.tuples("timers_of", execution_id=execution_id))

    async def next_timer(self) -> float | None:
        [(fires_at,)] = await self._database.tuples("next_timer")
        return None if fires_at is None else float(fires_at)


def listed(names: Collection[str]) -> str:
    """Names as `json_each` takes them."""
    return encode_json(list(names)).decode()


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
    """Of one execution a damaged command is an error; among all it is left out."""
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
