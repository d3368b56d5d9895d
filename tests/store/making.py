"""Writes and their parts, with everything filled in that a test does not talk about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from noetl.model.commands import Command
from noetl.model.ids import ExecutionId
from noetl.store.catalog import CatalogEntry
from noetl.store.credentials import StoredCredential
from noetl.store.log import EventRow, Facts, Write
from noetl.store.queue import NewCommand
from noetl.store.records import Summary

NOON = 1_760_000_000.0
MINUTE = 60.0
ONE, TWO, THREE = "7000000000000000001", "7000000000000000002", "7000000000000000003"


def event(seq: int, **fields: Any) -> EventRow:
    """An event as it is read; fields that choose nothing are only in its body."""
    shown = {"type": "task.done", "at": NOON + seq, "step": "fetch", "step_run_id": "run-1"}
    body = shown | {"seq": seq} | fields
    chosen = {name: body[name] for name in shown}
    return EventRow(seq, **chosen, body=msgspec.json.encode(body))


def facts(rows: Iterable[EventRow]) -> list[Facts]:
    """The same as it is written."""
    bodies = [row.body for row in rows]
    return [Facts(len(bodies), b",".join(bodies))] if bodies else []


def array(rows: Iterable[EventRow]) -> bytes:
    """What is loaded of events that were written together."""
    return b"[" + b",".join(row.body for row in rows) + b"]"


def events(first: int, last: int) -> list[EventRow]:
    return [event(seq) for seq in range(first, last + 1)]


def summary(execution_id: ExecutionId = ONE, **fields: Any) -> Summary:
    given = {
        "path": "orders/sync",
        "version": 1,
        "digest": "d1",
        "status": "RUNNING",
        "requested_at": NOON,
    }
    return Summary(execution_id=execution_id, **given | fields)


def start(execution_id: ExecutionId = ONE, *, count: int = 1, **fields: Any) -> Write:
    """The first write of an execution: so many events."""
    given = {"events": events(1, count), "summary": summary(execution_id)} | fields
    given["events"] = facts(given["events"])
    return Write(execution_id=execution_id, seq_before=0, **given)


def more(seq_before: int, execution_id: ExecutionId = ONE, **fields: Any) -> Write:
    """A later write: by default of one event."""
    given = {"events": [event(seq_before + 1)]} | fields
    given["events"] = facts(given["events"])
    return Write(execution_id=execution_id, seq_before=seq_before, **given)


def command(name: str, execution_id: ExecutionId = ONE, **fields: Any) -> Command:
    given = {"digest": "d1", "step": "fetch", "step_run_id": "run-1"}
    return Command(command_id=name, execution_id=execution_id, **given | fields)


class _Later(Command, frozen=True, kw_only=True):
    """A command of a version to come: as written, and not for us to read."""

    step: Any


def unreadable(name: str, **fields: Any) -> Command:
    """A command that is as good as damaged."""
    known = command(name, **fields)
    given = {name: getattr(known, name) for name in Command.__struct_fields__}
    return _Later(**given | {"step": {"name": "fetch"}})


def free(*names: str, execution_id: ExecutionId = ONE, **fields: Any) -> list[NewCommand]:
    """Commands that nobody holds yet."""
    return [NewCommand(command(name, execution_id, **fields)) for name in names]


def born_leased(name: str, worker_id: str, expires_at: float) -> NewCommand:
    return NewCommand(command(name), worker_id, expires_at)


def entry(content: str, **fields: Any) -> CatalogEntry:
    given = {
        "catalog_id": f"id of {content}",
        "path": "orders/sync",
        "version": 1,
        "kind": "Playbook",
        "digest": f"digest of {content}",
        "created_at": NOON,
    }
    return CatalogEntry(content=content, **given | fields)


def credential(name: str, **fields: Any) -> StoredCredential:
    given = {"type": "postgres", "data": b"\x00\xff sealed", "created_at": NOON, "updated_at": NOON}
    return StoredCredential(name=name, **given | fields)
