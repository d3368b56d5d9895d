"""Who holds which command."""

from __future__ import annotations

from noetl.model.commands import Command, Lease
from noetl.model.ids import ExecutionId, token_of
from noetl.store.base import Lapsed
from noetl.store.checksums import verified_command
from noetl.store.postgres.connections import Database
from noetl.store.postgres.reading import verify_commands


async def claim(
    database: Database, query: str, chosen: dict[str, object], limit: int
) -> list[Lease]:
    """Lease free commands. One whose bytes have changed is set aside, so that it blocks nobody."""
    expires_at = chosen["expires_at"]
    assert isinstance(expires_at, float)
    leases: list[Lease] = []
    while len(leases) < limit:
        rows = await database.all(query, chosen | {"limit": limit - len(leases)})
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
            await database.change("set_aside", which)
        if not damaged:
            break
    return leases


async def lapsed(database: Database, now: float, limit: int) -> list[Lapsed]:
    """Those of damaged commands are left out."""
    found = []
    for row in await database.all("lapsed", {"now": now, "limit": limit}):
        command = verified_command(row["body"], row["checksum"])
        if command is not None:
            found.append(Lapsed(command, row["worker_id"], row["lease_expires_at"]))
    return found


async def open_commands(
    database: Database, execution_id: ExecutionId | None
) -> list[tuple[Command, str | None, float | None]]:
    """Of one execution a damaged command is an error; among all it is left out."""
    if execution_id is None:
        rows = await database.all("open_commands")
    else:
        rows = await database.all("open_commands_of", {"execution_id": execution_id})
        verify_commands(rows, execution_id)
    found = []
    for row in rows:
        command = verified_command(row["body"], row["checksum"])
        if command is not None and not row["is_corrupted"]:
            found.append((command, row["worker_id"], row["lease_expires_at"]))
    return found


async def waiting_commands(database: Database, limit: int) -> list[Command]:
    rows = await database.all("waiting_commands", {"limit": limit})
    found = [verified_command(row["body"], row["checksum"]) for row in rows]
    return [command for command in found if command is not None]
