"""Executions as they were written, verified on the way out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from psycopg.rows import DictRow

from noetl.model.ids import ExecutionId
from noetl.store.base import EventRow, Loaded, Summary
from noetl.store.checksums import (
    Head,
    agrees,
    chain_start,
    continues,
    damaged_command,
    damaged_log,
    verified_command,
)
from noetl.store.postgres.connections import Database

_decode_steps = msgspec.json.Decoder(tuple[str, ...]).decode


class Log(NamedTuple):
    """An execution as loaded, and where its log ended then."""

    loaded: Loaded
    end: Head


async def load(database: Database, execution_id: ExecutionId) -> Log | None:
    """Snapshot and events after it, checked against each other and the end of the log.

    A log only grows, so reading it in two steps up to the end that the first one saw is as good as
    reading it at one moment.
    """
    chosen = {"execution_id": execution_id}
    found = await database.one("end_of_log", chosen)
    if found is None:
        return None
    start = Head(0, chain_start(execution_id))
    if found["snapshot"] is not None:
        if not agrees(found["snapshot"], found["snapshot_checksum"]):
            raise damaged_log(execution_id, "its snapshot has changed")
        start = Head(found["snapshot_seq"], found["event_checksum"])
    end = Head(found["seq"], found["checksum"])
    rows = await database.all("events_between", chosen | {"after": start.seq, "until": end.seq})
    bodies = list(follow_log(rows, execution_id, start, end))
    await verify_commands(database, execution_id)
    return Log(Loaded(start.seq, found["snapshot"], bodies), end)


def follow_log(
    rows: Iterable[DictRow], execution_id: ExecutionId, start: Head, end: Head
) -> Iterator[bytes]:
    """Bodies of the events from `start` to `end`; raises Corrupted where the chain breaks."""
    seq, checksum = start
    for row in rows:
        event = _event(row)
        seq += 1
        if event.seq != seq or not continues(checksum, event, row["checksum"]):
            raise damaged_log(execution_id, f"event {seq} is missing or changed")
        checksum = row["checksum"]
        yield event.body
    if (seq, checksum) != end:
        raise damaged_log(execution_id, f"its log ends at event {seq} instead of {end.seq}")


async def verify_commands(database: Database, execution_id: ExecutionId) -> None:
    """Raise Corrupted if an open command is not what was written."""
    for row in await database.all("open_commands_of", {"execution_id": execution_id}):
        if row["is_corrupted"] or verified_command(row["body"], row["checksum"]) is None:
            raise damaged_command(row["command_id"], execution_id)


def _event(row: DictRow) -> EventRow:
    return EventRow(
        row["seq"],
        row["event_id"],
        row["type"],
        row["at"],
        row["step"],
        row["step_run_id"],
        row["body"],
    )


async def events(
    database: Database,
    execution_id: ExecutionId,
    after: int,
    limit: int,
    types: Sequence[str],
    step: str | None,
) -> list[EventRow]:
    """A selection of events, each verified together with the one before it."""
    chosen = {"execution_id": execution_id, "after": after, "limit": limit, "step": step}
    found = []
    for row in await database.all("events_page", chosen | {"types": list(types) or None}):
        event = _event(row)
        before = chain_start(execution_id) if event.seq == 1 else row["checksum_before"]
        if before is None or not continues(before, event, row["checksum"]):
            raise damaged_log(execution_id, f"event {event.seq} or the one before it has changed")
        found.append(event)
    return found


async def summaries(
    database: Database,
    status: str | None,
    path: str | None,
    parent: ExecutionId | None,
    since: float | None,
    before: tuple[float, ExecutionId] | None,
    limit: int,
) -> list[Summary]:
    """Each way to ask has a query that walks the index made for it."""
    if parent is not None:
        name = "summaries_of_parent"
    elif path is not None:
        name = "summaries_of_path"
    elif status is not None:
        name = "summaries_of_status"
    else:
        name = "summaries"
    before_at, before_id = before or (math.inf, "")
    chosen: dict[str, Any] = {
        "status": status,
        "path": path,
        "parent": parent,
        "since": -math.inf if since is None else since,
        "before_at": before_at,
        "before_id": before_id,
        "limit": limit,
    }
    return [summary_of(row) for row in await database.all(name, chosen)]


def summary_of(row: DictRow) -> Summary:
    try:
        steps = _decode_steps(row["current_steps"])
    except msgspec.DecodeError:
        # Damaged. A list shows it as it is, for the sake of the other rows.
        steps = (row["current_steps"],)
    return Summary(**row | {"current_steps": steps})
