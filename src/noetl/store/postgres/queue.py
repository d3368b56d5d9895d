"""Commands, leases and timers in PostgreSQL. The promise is written in `noetl.store.queue`."""

from __future__ import annotations

from collections.abc import Collection

from noetl.model.commands import Command, Lease
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.store.checksums import verified_command
from noetl.store.postgres.database import Database
from noetl.store.postgres.log import verify_commands
from noetl.store.queue import Free, Holder, Lapsed


class PostgresQueue:
    """See `noetl.store.queue.Queue`."""

    goes_along = False  # Another round trip, for which all others would have to wait.

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, worker_id: str, *, pool: str, limit: int, expires_at: float, own: bool = False
    ) -> list[Lease]:
        chosen = {"worker_id": worker_id, "pool": pool, "expires_at": expires_at}
        if own:
            return await self._lease("claim_own", chosen | {"home": self._database.home}, limit)
        return await self._lease("claim", chosen, limit)

    async def claim_of(
        self,
        worker_id: str,
        commands: Collection[CommandId],
        *,
        pool: str,
        limit: int,
        expires_at: float,
    ) -> list[Lease]:
        chosen = {"worker_id": worker_id, "pool": pool, "expires_at": expires_at}
        return await self._lease("claim_of", chosen | {"commands": list(commands)}, limit)

    async def free(self, pool: str, *, limit: int) -> list[Free]:
        return await self._database.rows("free", Free, {"pool": pool, "limit": limit})

    async def _lease(self, query: str, chosen: dict[str, object], limit: int) -> list[Lease]:
        """One whose bytes have changed is set aside, so that it blocks nobody."""
        expires_at = chosen["expires_at"]
        assert isinstance(expires_at, float)
        leases: list[Lease] = []
        while len(leases) < limit:
            rows = await self._database.all(query, chosen | {"limit": limit - len(leases)})
            # RETURNING promises no order, so put them in order again.
            rows.sort(key=lambda row: (-row["priority"], row["turn"], row["position"]))
            damaged = []
            for row in rows:
                command = verified_command(row["body"], row["checksum"])
                if command is None:
                    damaged.append(row)
                    continue
                token = token_of(command.command_id)
                leases.append(Lease(command=command, token=token, expires_at=expires_at))
            for row in damaged:
                which = {"execution_id": row["execution_id"], "command_id": row["command_id"]}
                await self._database.change("set_aside", which)
            if not damaged:
                break
        return leases

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        chosen = {"commands": list(commands), "now": now, "expires_at": expires_at}
        return {row["command_id"] for row in await self._database.all("renew_leases", chosen)}

    async def holders(self, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
        rows = await self._database.all("holders", {"commands": list(commands)})
        return {row["command_id"]: Holder(row["execution_id"], row["worker_id"]) for row in rows}

    async def lapsed(self, *, now: float, limit: int = 100) -> list[Lapsed]:
        """Those of damaged commands are left out."""
        found = []
        for row in await self._database.all("lapsed", {"now": now, "limit": limit}):
            command = verified_command(row["body"], row["checksum"])
            if command is not None:
                found.append(Lapsed(command, row["worker_id"], row["lease_expires_at"]))
        return found

    async def free_pools(self) -> dict[str, int]:
        return {row["pool"]: row["turn"] for row in await self._database.all("free_pools")}

    async def sizes(self) -> dict[str, tuple[int, int]]:
        rows = await self._database.all("queue_sizes")
        return {row["pool"]: (row["free"], row["leased"]) for row in rows}

    async def open_commands(
        self, execution_id: ExecutionId | None = None
    ) -> list[tuple[Command, str | None, float | None]]:
        """Of one execution a damaged command is an error; among all it is left out."""
        if execution_id is None:
            rows = await self._database.all("open_commands")
        else:
            rows = await self._database.all("open_commands_of", {"execution_id": execution_id})
            verify_commands(rows, execution_id)
        found = []
        for row in rows:
            command = verified_command(row["body"], row["checksum"])
            if command is not None and not row["is_corrupted"]:
                found.append((command, row["worker_id"], row["lease_expires_at"]))
        return found

    async def waiting_commands(self, *, limit: int = 1000) -> list[Command]:
        rows = await self._database.all("waiting_commands", {"limit": limit})
        found = [verified_command(row["body"], row["checksum"]) for row in rows]
        return [command for command in found if command is not None]

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        rows = await self._database.all("due_timers", {"now": now, "limit": limit})
        return [(row["execution_id"], row["timer_id"], row["fires_at"]) for row in rows]

    async def timers(self, execution_id: ExecutionId) -> dict[str, float]:
        rows = await self._database.all("timers_of", {"execution_id": execution_id})
        return {row["timer_id"]: row["fires_at"] for row in rows}

    async def next_timer(self) -> float | None:
        row = await self._database.one("next_timer")
        return row["fires_at"] if row else None
