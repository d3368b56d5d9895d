"""Commands, leases and timers in PostgreSQL. The promise is written in `noetl.store.queue`."""

from __future__ import annotations

from collections.abc import Collection

from noetl.model.commands import Command, Lease
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.store.checksums import verified_command
from noetl.store.postgres.database import PostgresDatabase
from noetl.store.postgres.log import verify_commands
from noetl.store.queue import Queue


class PostgresQueue(Queue):
    """See `noetl.store.queue.Queue`."""

    _database: PostgresDatabase
    goes_along = False  # Another round trip, for which all others would have to wait.

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

    async def _lease(self, query: str, chosen: dict[str, object], limit: int) -> list[Lease]:
        """One whose bytes have changed is set aside, so that it blocks nobody."""
        expires_at = chosen["expires_at"]
        assert isinstance(expires_at, float)
        leases: list[Lease] = []
        while len(leases) < limit:
            rows = await self._database.all(query, **chosen, limit=limit - len(leases))
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
                await self._database.change(
                    "set_aside", execution_id=row["execution_id"], command_id=row["command_id"]
                )
            if not damaged:
                break
        return leases

    async def open_commands(
        self, execution_id: ExecutionId | None = None
    ) -> list[tuple[Command, str | None, float | None]]:
        if execution_id is None:
            rows = await self._database.all("open_commands")
        else:
            rows = await self._database.all("open_commands_of", execution_id=execution_id)
            verify_commands(rows, execution_id)
        found = []
        for row in rows:
            command = verified_command(row["body"], row["checksum"])
            if command is not None and not row["is_corrupted"]:
                found.append((command, row["worker_id"], row["lease_expires_at"]))
        return found
