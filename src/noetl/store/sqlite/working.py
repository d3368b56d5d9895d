"""Who holds which command: claiming, renewing and letting go of leases; timers."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

import msgspec

from noetl.errors import Corrupted
from noetl.model.commands import Command, Lease
from noetl.model.ids import ExecutionId, derive
from noetl.store.sqlite.checksums import agrees
from noetl.store.sqlite.queries import QUERIES

encode_json = msgspec.json.Encoder().encode
_decode_command = msgspec.json.Decoder(Command).decode


def claim(
    db: sqlite3.Connection,
    worker_id: str,
    pool: str,
    limit: int,
    now: float,
    expires_at: float,
    executions: Collection[ExecutionId] | None,
) -> list[Lease]:
    """Lease open commands. One whose bytes have changed is set aside, so that it blocks nobody."""
    chosen: dict[str, object] = {"pool": pool, "now": now}
    name = "open_for_claim"
    if executions is not None:
        name = "open_for_claim_of"
        chosen["executions"] = encode_json(list(executions)).decode()
    leases: list[Lease] = []
    while len(leases) < limit:
        chosen["limit"] = limit - len(leases)
        open_rows = db.execute(QUERIES[name], chosen).fetchall()
        leased, corrupted = [], []
        for position, _, command_id, deliveries, body, checksum in open_rows:
            command = _verified_command(body, checksum, deliveries)
            if command is None:
                corrupted.append((position,))
                continue
            token = derive(command_id, deliveries)
            leases.append(Lease(command=command, token=token, expires_at=expires_at))
            leased.append((worker_id, token, expires_at, deliveries, position))
        db.executemany(QUERIES["lease_command"], leased)
        db.executemany(QUERIES["set_aside"], corrupted)
        if not corrupted:
            break
    return leases


def _verified_command(body: bytes, checksum: int, deliveries: int) -> Command | None:
    """The command as it was written, with the number of this delivery; None if it is damaged."""
    if not agrees(body, checksum):
        return None
    try:
        command = _decode_command(body)
    except msgspec.DecodeError:
        return None  # Written by a version of NoETL that has other commands.
    if command.deliveries == deliveries:
        return command
    return msgspec.structs.replace(command, deliveries=deliveries)


def renew(
    db: sqlite3.Connection, tokens: Sequence[str], now: float, expires_at: float
) -> list[str]:
    """Extend the leases that still hold; their tokens in the order given."""
    chosen = {"tokens": encode_json(tokens).decode(), "now": now, "expires_at": expires_at}
    renewed = {token for (token,) in db.execute(QUERIES["renew_leases"], chosen)}
    return [token for token in tokens if token in renewed]


def lapsed(db: sqlite3.Connection, now: float, limit: int) -> list[Lease]:
    """Leases that nobody has taken over yet; those of damaged commands are left out."""
    leases = []
    rows = db.execute(QUERIES["lapsed"], {"now": now, "limit": limit})
    for deliveries, body, checksum, token, expires_at in rows:
        command = _verified_command(body, checksum, deliveries)
        if command is not None:
            leases.append(Lease(command=command, token=token, expires_at=expires_at))
    return leases


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
    for deliveries, body, checksum, worker_id, expires_at in rows:
        command = _verified_command(body, checksum, deliveries)
        if command is not None:
            found.append((command, worker_id, expires_at))
    return found


def verify_commands(db: sqlite3.Connection, execution_id: ExecutionId) -> None:
    """Raise Corrupted if an open command is not what was written."""
    for command_id, body, checksum in db.execute(QUERIES["commands_to_verify"], (execution_id,)):
        if _verified_command(body, checksum, 1) is None:
            raise Corrupted(
                f"Command {command_id} of execution {execution_id} is not what was written, or not"
                " readable for this version of NoETL. This execution is not served, others are not"
                " affected. `noetl db check` names all that is damaged; restore it from a backup"
                " or run it anew."
            )


def void_leases(db: sqlite3.Connection, worker_prefix: str) -> int:
    """How many leases were let go."""
    return db.execute(QUERIES["void_leases"], {"prefix": worker_prefix}).rowcount


def due_timers(
    db: sqlite3.Connection, now: float, limit: int
) -> list[tuple[ExecutionId, str, float]]:
    return db.execute(QUERIES["due_timers"], {"now": now, "limit": limit}).fetchall()


def next_timer(db: sqlite3.Connection) -> float | None:
    (fires_at,) = db.execute(QUERIES["next_timer"]).fetchone()
    return None if fires_at is None else float(fires_at)
