"""Turns decisions into one statement: each table's rows travel as one JSON parameter.

Bodies are base64 in it, because they are bytes. Compared with one array per column, JSON takes half
the time on this side and as long on the other (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.access import AuditEntry
from noetl.store.log import Head, Write, chain_start, others_summary, row_of
from noetl.store.postgres.commit_connection import Value
from noetl.store.queue import NewCommand
from noetl.store.records import Summary, columns_of_summary

as_json = msgspec.json.Encoder().encode


Line = dict[str, Any]
"""A row to write, or to look for: columns by name."""


class Rows(NamedTuple):
    """Everything that a commit writes."""

    executions: list[Line]
    log: list[Line]
    commands: list[Line]
    closed: list[Line]
    timers: list[Line]
    timers_cleared: list[Line]
    audit: list[AuditEntry]

    def values(self, home: str) -> list[Value]:
        """The parameters of `commit`, which writes these rows for the process of this name."""
        ids = array_of([line["execution_id"] for line in self.executions])
        return [*map(as_json, self), ids.encode(), home.encode()]


def is_one(write: Write) -> bool:
    """Whether `commit_one` can write it: a step of an execution that continues."""
    return not (
        write.seq_before == 0
        or len(write.commands) > 1
        or len(write.closed) > 1
        or write.timers
        or write.timers_cleared
        or write.audit
        or (write.commands and write.commands[0].command.command_id in write.closed)
    )


def one(write: Write, before: Head, home: str) -> tuple[Head, list[Value]]:
    """The new end of the log, and the parameters of `commit_one`, in their order."""
    end, events, summary = before, None, _own_summary(write)
    if write.events:
        row = row_of(write, before.checksum)
        end, events = Head(row.seq, row.checksum), row.events
    values: list[Value] = [
        write.execution_id.encode(),
        b"%d" % before.seq,
        b"%d" % before.checksum,
        b"%d" % end.seq,
        b"%d" % end.checksum,
        events,
    ]
    if summary is None:
        values += (None, None, None, None, None, None)
    else:
        values += (
            summary.status.encode(),
            _float(summary.ended_at),
            as_json(summary.current_steps),
            _text(_without_nul(summary.error)),
            _text(summary.failed_step),
            _text(summary.waits),
        )
    values.append(write.closed[0].encode() if write.closed else None)
    if write.commands:
        command, worker_id, expires_at = write.commands[0]
        body = as_json(command)
        values += (
            command.command_id.encode(),
            command.pool.encode(),
            b"%d" % command.priority,
            b"%d" % command.turn,
            body,
            b"%d" % crc32(body),
            _text(worker_id),
            _float(expires_at),
        )
    else:
        values += (None, None, None, None, None, None, None, None)
    values.append(home.encode())
    return end, values


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _float(value: float | None) -> bytes | None:
    return None if value is None else repr(value).encode()


def _without_nul(error: str | None) -> str | None:
    """PostgreSQL text cannot contain NUL. This text is for lists; the event has it unchanged."""
    return None if error is None else error.replace("\0", "\ufffd")


def _own_summary(write: Write) -> Summary | None:
    """Raises StoreError if it belongs to another execution."""
    summary = write.summary
    if summary is not None and summary.execution_id != write.execution_id:
        raise others_summary(write, summary)
    return summary


def array_of(texts: Iterable[str]) -> str:
    """Texts as a PostgreSQL array literal."""
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in texts]
    return "{" + ",".join([f'"{text}"' for text in quoted]) + "}"


def rounds(writes: Sequence[Write]) -> list[list[Write]]:
    """Writes in the order given, each execution at most once per round.

    Within a round they are sorted by execution, so that two servers lock what they share in the
    same order.
    """
    found: list[dict[ExecutionId, Write]] = []
    past: dict[ExecutionId, int] = {}
    for write in writes:
        number = past.get(write.execution_id, 0)
        past[write.execution_id] = number + 1
        if number == len(found):
            found.append({})
        found[number][write.execution_id] = write
    return [[round_[key] for key in sorted(round_)] for round_ in found]


def has_more(write: Write) -> bool:
    """Whether it changes something that few decisions change."""
    return bool(write.vars or write.results or write.snapshot is not None or write.slots)


def needs_head(write: Write) -> bool:
    """Every write but the first of an execution continues a log."""
    return write.seq_before > 0 or write.summary is None


def rows_of(writes: Sequence[Write], heads: Mapping[ExecutionId, Head]) -> Rows:
    """The rows of writes that continue these heads, or begin a log."""
    rows = Rows([], [], [], [], [], [], [])
    for write in writes:
        execution_id = write.execution_id
        before = heads.get(execution_id) or Head(0, chain_start(execution_id))
        end = before
        if write.events:
            row = row_of(write, before.checksum)
            rows.log.append({"execution_id": execution_id, **row._asdict()})
            end = Head(row.seq, row.checksum)
        rows.executions.append(_execution_line(write, before, end))
        # Set before clear: what one write both sets and clears is gone afterwards.
        over, cleared = set(write.closed), set(write.timers_cleared)
        for new in write.commands:
            if new.command.command_id not in over:
                rows.commands.append(_command_line(len(rows.commands), execution_id, new))
        rows.closed.extend({"execution_id": execution_id, "id": command} for command in over)
        rows.timers.extend(
            {"execution_id": execution_id, "timer_id": timer, "fires_at": at}
            for timer, at in dict(write.timers).items()
            if timer not in cleared
        )
        rows.timers_cleared.extend({"execution_id": execution_id, "id": timer} for timer in cleared)
        rows.audit.extend(write.audit)
    return rows


def _execution_line(write: Write, before: Head, end: Head) -> Line:
    """The execution row to write, and the version it must still have."""
    summary = _own_summary(write)
    row: Line = {"execution_id": write.execution_id}
    if summary is not None:
        row = columns_of_summary(summary)
        row["error"] = _without_nul(summary.error)
    row["seq_before"], row["checksum_before"] = before
    row["seq"], row["checksum"] = end
    return row


def _command_line(number: int, execution_id: ExecutionId, new: NewCommand) -> Line:
    command, worker_id, expires_at = new
    body = as_json(command)
    return {
        "number": number,
        "execution_id": execution_id,
        "command_id": command.command_id,
        "pool": command.pool,
        "priority": command.priority,
        "turn": command.turn,
        "body": body,
        "checksum": crc32(body),
        "worker_id": worker_id,
        "lease_expires_at": expires_at,
    }
