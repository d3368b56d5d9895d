"""Reads everything and reports damage, for `noetl db check`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from noetl.errors import Corrupted, StoreError
from noetl.store.catalog import entry_of, verified_entry, verified_net
from noetl.store.checksums import (
    Head,
    agrees,
    chain_start,
    first_sentence,
    verified_command,
    verified_result,
)
from noetl.store.postgres.database import PostgresDatabase
from noetl.store.postgres.log import events_between


async def problems(database: PostgresDatabase) -> list[str]:
    """All findings; a part that cannot be read is itself a finding."""
    found: list[str] = []
    for part in (logs, snapshots, commands, results, nets, catalog):
        try:
            found += [problem async for problem in part(database)]
        except StoreError as error:
            found.append(f"The {part.__name__} cannot be read to their end: {error}")
    return found


async def logs(database: PostgresDatabase) -> AsyncIterator[str]:
    """Events that are missing, changed, out of order or of no execution, with or without
    snapshots.
    """
    for row in await database.all("check_heads"):
        execution_id = row["execution_id"]
        try:
            await _verify_log(database, execution_id)
        except Corrupted as error:
            yield first_sentence(error)
    for row in await database.all("check_strays"):
        yield f"Events belong to execution {row['execution_id']}, which is not there"


async def _verify_log(database: PostgresDatabase, execution_id: str) -> None:
    end = await database.one("heads", executions=[execution_id])
    if end is None:
        return
    start = Head(0, chain_start(execution_id))
    await events_between(database, execution_id, start, Head(end["seq"], end["checksum"]))


async def snapshots(database: PostgresDatabase) -> AsyncIterator[str]:
    for row in await database.all("check_snapshots"):
        if not agrees(row["body"], row["checksum"]):
            yield f"The snapshot of execution {row['execution_id']} is not what was written"


async def commands(database: PostgresDatabase) -> AsyncIterator[str]:
    for row in await database.all("check_commands"):
        if verified_command(row["body"], row["checksum"]) is None:
            where = f"Command {row['command_id']} of execution {row['execution_id']}"
            yield f"{where} is not what was written"


async def results(database: PostgresDatabase) -> AsyncIterator[str]:
    for key in await database.all("check_results"):
        row = await database.one("result", **key)
        if row is not None:
            try:
                verified_result(row["body"], row["sha256"], **key)
            except Corrupted as error:
                yield first_sentence(error)


async def nets(database: PostgresDatabase) -> AsyncIterator[str]:
    for row in await database.all("check_nets"):
        try:
            verified_net(row["body"], row["digest"])
        except Corrupted as error:
            yield first_sentence(error)


async def catalog(database: PostgresDatabase) -> AsyncIterator[str]:
    for entry in await database.rows("check_catalog", entry_of):
        try:
            verified_entry(*entry)
        except Corrupted as error:
            yield first_sentence(error)
