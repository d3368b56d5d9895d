"""Reads everything and reports damage, for `noetl db check`.

What a database has to say about itself comes from its own store. All else is here, over rows that
the database hands out a few at a time: memory does not grow with what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from noetl.errors import Corrupted, StoreError
from noetl.model.ids import ExecutionId
from noetl.store.bodies import Bodies
from noetl.store.catalog import entry_of, verified_entry, verified_net
from noetl.store.checksums import (
    agrees,
    damaged_log,
    first_sentence,
    verified_command,
)
from noetl.store.database import Database, Rows, fields_of
from noetl.store.log import Head, chain_start, continues

PAGE = 1000
"""Keys that are read together."""


async def problems(database: Database, bodies: Bodies) -> list[str]:
    """All findings; a part that cannot be read is itself a finding."""
    parts: dict[str, Callable[[], Coroutine[Any, Any, list[str]]]] = {
        "logs": lambda: _logs(database),
        "snapshots": lambda: database.scan("check_snapshots", _snapshots),
        "commands": lambda: database.scan("check_commands", _commands),
        "results": lambda: _results(database, bodies),
        "compiled playbooks": lambda: database.scan("check_nets", _nets),
        "entries of the catalog": lambda: database.scan("check_catalog", _catalog),
    }
    found: list[str] = []
    for what, part in parts.items():
        try:
            found += await part()
        except StoreError as error:
            found.append(f"The {what} cannot be read to their end: {first_sentence(error)}")
    return found


async def _logs(database: Database) -> list[str]:
    """Logs with events that are missing, changed or out of order, with or without snapshots."""
    found: list[str] = []
    async for execution_id, *end in _keys(database, "check_heads", execution_id=""):
        found += await _log_problems(database, execution_id, Head(*end))
    return found


async def _log_problems(database: Database, execution_id: ExecutionId, end: Head) -> list[str]:
    """A log may grow while it is read, or be deleted; what is damaged is damaged all the same."""
    try:
        broken, last, is_longer = await _followed(database, execution_id, end)
    except StoreError as error:
        return [f"The log of execution {execution_id} cannot be read: {first_sentence(error)}"]
    if broken is not None:
        return [broken]
    if last == end:
        return []
    heads = await database.tuples("heads", executions=[execution_id])
    if not heads or (is_longer and end != Head(*heads[0][1:])):
        return []
    told = f"its log ends at event {last.seq} instead of {end.seq}"
    return [first_sentence(damaged_log(execution_id, told))]


async def _followed(
    database: Database, execution_id: ExecutionId, end: Head
) -> tuple[str | None, Head, bool]:
    """What is broken in a log, where it ends, and whether that is after the end it should have."""

    async def follow(rows: Rows) -> tuple[str | None, Head, bool]:
        last, is_longer = Head(0, chain_start(execution_id)), False
        async for row in rows:
            if not continues(last.checksum, **row):
                broken = damaged_log(execution_id, f"event {row['seq']}, or one before it")
                return first_sentence(broken), last, is_longer
            is_longer = is_longer or last == end
            last = Head(row["seq"], row["checksum"])
        return None, last, is_longer

    return await database.scan("check_log", follow, execution_id=execution_id)


async def _snapshots(rows: Rows) -> list[str]:
    return [
        f"The snapshot of execution {row['execution_id']} is not what was written"
        async for row in rows
        if not agrees(row["body"], row["checksum"])
    ]


COMMAND_COLUMNS = ("execution_id", "command_id", "pool", "priority", "turn")
"""Columns by which a command is found, and what it says of itself. A lease has not all of them."""


async def _commands(rows: Rows) -> list[str]:
    found: list[str] = []
    async for row in rows:
        name = f"Command {row['command_id']} of execution {row['execution_id']}"
        command = verified_command(row["body"], row["checksum"])
        if command is None:
            found.append(
                f"{name} is not what was written, or not readable for this version of NoETL"
            )
            continue
        if row["is_corrupted"]:
            found.append(f"{name} was set aside as damaged, and no worker gets it")
        found += [
            f"{name}: the column {column} says {row[column]!r} and the command {written!r}"
            for column in COMMAND_COLUMNS
            if row[column] not in (None, written := getattr(command, column))
        ]
    return found


async def _results(database: Database, bodies: Bodies) -> list[str]:
    found: list[str] = []
    async for execution_id, key in _keys(database, "check_results", execution_id="", key=""):
        try:
            await bodies.verify(execution_id, key)
        except Corrupted as error:
            found.append(first_sentence(error))
    return found


def _each(
    verify: Callable[[dict[str, Any]], object],
) -> Callable[[Rows], Coroutine[Any, Any, list[str]]]:
    """Finds the rows that are not what was written; `verify` raises Corrupted for one."""

    async def find(rows: Rows) -> list[str]:
        found: list[str] = []
        async for row in rows:
            try:
                verify(row)
            except Corrupted as error:
                found.append(first_sentence(error))
        return found

    return find


_nets = _each(lambda row: verified_net(row["body"], row["digest"]))
_catalog = _each(lambda row: verified_entry(*entry_of(**fields_of(row))))


async def _keys(database: Database, query: str, **after: str) -> AsyncIterator[Any]:
    """The rows of a statement that answers in pages, each after the key that ended the last."""
    while page := await database.tuples(query, **after, rows=PAGE):
        for row in page:
            yield row
        after = dict(zip(after, page[-1], strict=False))
