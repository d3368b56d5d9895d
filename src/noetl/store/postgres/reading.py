"""Executions as they were written, verified on the way out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from psycopg.rows import DictRow

from noetl.model.ids import ExecutionId
from noetl.store import log
from noetl.store.base import EventRow, Loaded
from noetl.store.checksums import (
    Head,
    agrees,
    chain_start,
    damaged_command,
    damaged_log,
    verified_command,
)
from noetl.store.postgres.connections import BODY_SECONDS, Database

ROWS_AT_ONCE = 100


class Log(NamedTuple):
    """An execution as loaded, and where its log ended then."""

    loaded: Loaded
    end: Head


async def load(database: Database, execution_id: ExecutionId) -> Log | None:
    """Snapshot and events after it, checked against each other and the end of the log."""
    rows = await database.all("load", {"execution_id": execution_id}, BODY_SECONDS)
    found = next((row for row in rows if row["part"] == "end"), None)
    if found is None:
        return None
    start = Head(0, chain_start(execution_id))
    if found["body"] is not None:
        if not agrees(found["body"], found["body_checksum"]):
            raise damaged_log(execution_id, "its snapshot has changed")
        start = Head(found["snapshot_seq"], found["event_checksum"])
    end = Head(found["seq"], found["checksum"])
    written = [
        log.LogRow(row["seq"], row["body"], row["checksum"]) for row in rows if row["part"] == "log"
    ]
    events = list(log.whole(sorted(written), execution_id, start, end))
    verify_commands([row for row in rows if row["part"] == "command"], execution_id)
    return Log(Loaded(start.seq, found["body"], events), end)


async def events_between(
    database: Database, execution_id: ExecutionId, start: Head, end: Head
) -> list[bytes]:
    """The events of a part of the log, in arrays; raises Corrupted where the chain breaks."""
    chosen = {"execution_id": execution_id, "after": start.seq, "until": end.seq}
    rows = [log.LogRow(**row) for row in await database.all("log_between", chosen, BODY_SECONDS)]
    return list(log.whole(rows, execution_id, start, end))


def verify_commands(rows: Iterable[DictRow], execution_id: ExecutionId) -> None:
    """Raise Corrupted if one of these open commands is not what was written."""
    for row in rows:
        if row["is_corrupted"] or verified_command(row["body"], row["checksum"]) is None:
            raise damaged_command(row["command_id"], execution_id)


async def events(
    database: Database, execution_id: ExecutionId, wanted: log.Selection
) -> list[EventRow]:
    """A selection of events, verified together with what is before them."""
    chosen = {"execution_id": execution_id, "after": wanted.after, "rows": ROWS_AT_ONCE}
    before = await database.one("log_before", chosen) if wanted.after else None
    last = Head(**before) if before else Head(0, chain_start(execution_id))
    found: list[EventRow] = []
    size = 0
    while len(found) < wanted.limit and (wanted.size is None or size < wanted.size):
        page = await database.all("log_page", chosen | {"after": last.seq})
        rows = log.follow((log.LogRow(**row) for row in page), execution_id, last)
        left = None if wanted.size is None else wanted.size - size
        more = log.selected(rows, wanted._replace(limit=wanted.limit - len(found), size=left))
        found += more
        size += sum(len(event.body) for event in more)
        if len(page) < ROWS_AT_ONCE:
            break
        last = Head(page[-1]["seq"], page[-1]["checksum"])
    return found
