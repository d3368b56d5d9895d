"""Commands, leases and timers in PostgreSQL. The promise is written in `noetl.store.queue`."""

from __future__ import annotations

from typing import Any

from noetl.model.commands import Lease
from noetl.model.ids import token_of
from noetl.store.checksums import verified_command
from noetl.store.postgres.database import PostgresDatabase
from noetl.store.queue import Claim, Queue


class PostgresQueue(Queue):
    """See `noetl.store.queue.Queue`."""

    _database: PostgresDatabase
    goes_along = False  # Another round trip, for which all others would have to wait.

    async def _lease(self, query: str, claim: Claim, **chosen: Any) -> list[Lease]:
        chosen |= {"worker_id": claim.worker_id, "pool": claim.pool, "home": self._database.home}
        leases: list[Lease] = []
        while len(leases) < claim.limit:
            rows: list[dict[str, Any]] = await self._database.rows(
                query, dict, **chosen, limit=claim.limit - len(leases), expires_at=claim.expires_at
            )
            # RETURNING promises no order, so put them in order again.
            rows.sort(key=lambda row: (-row["priority"], row["turn"], row["position"]))
            damaged = []
            for row in rows:
                command = verified_command(row["body"], row["checksum"])
                if command is None:
                    damaged.append(row)
                    continue
                token = token_of(command.command_id)
                leases.append(Lease(command=command, token=token, expires_at=claim.expires_at))
            for row in damaged:
                await self._database.change(
                    "set_aside", execution_id=row["execution_id"], command_id=row["command_id"]
                )
            if not damaged:
                break
        return leases
