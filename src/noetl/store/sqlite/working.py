"""Who holds which command, what has a time on it, and who is there."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

import msgspec

from noetl.model.commands import Command, Lease
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.store.base import Holder, Lapsed, Runtime
from noetl.store.checksums import damaged_command, verified_command
from noetl.store.sqlite.queries import QUERIES

encode_json = msgspec.json.Encoder().encode


def claim(
    db: sqlite3.Connection,
    worker_id: str,
    pool: str,
    limit: int,
    expires_at: float,
    executions: Collection[ExecutionId] | None,
    commands: Collection[CommandId] | None,
) -> list[Lease]:
    """Lease free commands. One whose bytes have changed is set aside, so that it blocks nobody."""
    chosen: dict[str, object] = {"pool": pool}
    name = "free_commands"
    if executions is not None or commands is not None:
        name = "free_commands_of"
        chosen |= {"executions": _listed(executions), "commands": _listed(commands)}
    leases: list[Lease] = []
    while len(leases) < limit:
        chosen["limit"] = limit - len(leases)
        leased, corrupted = [], []
        for position, body, checksum in db.execute(QUERIES[name], chosen).fetchall():
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


def _listed(names: Collection[str] | None) -> str | None:
    return None if names is None else encode_json(list(names)).decode()


def free_pools(db: sqlite3.Connection) -> dict[str, int]:
    return dict(db.execute(QUERIES["free_pools"]).fetchall())


def queue_sizes(db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
    return {pool: (free, leased) for pool, free, leased in db.execute(QUERIES["queue_sizes"])}


def renew(
    db: sqlite3.Connection, commands: Collection[CommandId], now: float, expires_at: float
) -> set[CommandId]:
    """Extend the leases that still hold; which they are."""
    chosen = {"commands": encode_json(list(commands)).decode(), "now": now}
    rows = db.execute(QUERIES["renew_leases"], chosen | {"expires_at": expires_at})
    return {command_id for (command_id,) in rows}


def holders(db: sqlite3.Connection, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
    rows = db.execute(QUERIES["holders"], {"commands": encode_json(list(commands)).decode()})
    return {command_id: Holder(*rest) for command_id, *rest in rows}


def lapsed(db: sqlite3.Connection, now: float, limit: int) -> list[Lapsed]:
    """Those of damaged commands are left out."""
    rows = db.execute(QUERIES["lapsed"], {"now": now, "limit": limit})
    found = [(verified_command(body, checksum), *rest) for body, checksum, *rest in rows]
    return [Lapsed(command, *rest) for command, *rest in found if command is not None]


def open_commands(
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


def waiting_commands(db: sqlite3.Connection, limit: int) -> list[Command]:
    rows = db.execute(QUERIES["waiting_commands"], {"limit": limit})
    found = [verified_command(body, checksum) for body, checksum in rows]
    return [command for command in found if command is not None]


def verify_commands(db: sqlite3.Connection, execution_id: ExecutionId) -> None:
    """Raise Corrupted if an open command is not what was written."""
    chosen = {"execution_id": execution_id}
    for command_id, body, checksum in db.execute(QUERIES["commands_to_verify"], chosen):
        if verified_command(body, checksum) is None:
            raise damaged_command(command_id, execution_id)


def due_timers(
    db: sqlite3.Connection, now: float, limit: int
) -> list[tuple[ExecutionId, str, float]]:
    return db.execute(QUERIES["due_timers"], {"now": now, "limit": limit}).fetchall()


def next_timer(db: sqlite3.Connection) -> float | None:
    (fires_at,) = db.execute(QUERIES["next_timer"]).fetchone()
    return None if fires_at is None else float(fires_at)


def beat(db: sqlite3.Connection, runtime: Runtime) -> None:
    db.execute(QUERIES["beat"], msgspec.structs.astuple(runtime))


def runtimes(db: sqlite3.Connection, kind: str | None, since: float | None) -> list[Runtime]:
    rows = db.execute(QUERIES["runtimes"], {"kind": kind, "since": since})
    fields = Runtime.__struct_fields__
    named = (dict(zip(fields, row, strict=True)) for row in rows)
    return [msgspec.convert(row, Runtime, strict=False) for row in named]


def probe(db: sqlite3.Connection) -> None:
    """Write what is there already."""
    db.execute(QUERIES["probe"])


def installation(db: sqlite3.Connection) -> str:
    (found,) = db.execute(QUERIES["installation"]).fetchone()
    return str(found)


def leave(db: sqlite3.Connection, name: str) -> bool:
    return db.execute(QUERIES["leave"], (name,)).rowcount > 0
