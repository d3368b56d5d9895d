"""How decisions become one statement: each table's rows travel as one JSON parameter.

Bodies are base64 in there, because they are bytes. Measured against arrays of each column, JSON
takes half the time on this side and as long on the other (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import asdict

from noetl.errors import StoreError, TooLarge
from noetl.model.ids import ExecutionId
from noetl.store.access import AuditEntry
from noetl.store.base import NewCommand, Write
from noetl.store.checksums import Head, chain_start
from noetl.store.listing import encode_labels
from noetl.store.log import row_of
from noetl.store.postgres.line import Value

BODY_MAX = 256 << 20
"""Larger results would take several times their size of memory on both sides."""

_encoder = msgspec.json.Encoder()


class ExecutionLine(msgspec.Struct, omit_defaults=True):
    """The row of an execution as it will be, and as it must be for that."""

    execution_id: str
    seq_before: int
    checksum_before: int
    seq: int
    checksum: int
    path: str | None = None
    version: int | None = None
    digest: str | None = None
    status: str | None = None
    requested_at: float | None = None
    ended_at: float | None = None
    parent_execution_id: str | None = None
    idempotency_key: str | None = None
    current_steps: str | None = None
    error: str | None = None
    labels: str | None = None
    failed_step: str | None = None
    waits: str | None = None


class LogLine(msgspec.Struct):
    execution_id: str
    seq: int
    events: bytes
    checksum: int


class CommandLine(msgspec.Struct, omit_defaults=True):
    number: int
    execution_id: str
    command_id: str
    pool: str
    priority: int
    turn: int
    body: bytes
    checksum: int
    worker_id: str | None = None
    lease_expires_at: float | None = None


COMMAND_FIELDS = CommandLine.__struct_fields__


class TimerLine(msgspec.Struct):
    execution_id: str
    timer_id: str
    fires_at: float


class ClosedLine(msgspec.Struct):
    """A command or timer that is over."""

    execution_id: str
    id: str


class Rows(NamedTuple):
    """All that a commit writes."""

    executions: list[ExecutionLine]
    log: list[LogLine]
    commands: list[CommandLine]
    closed: list[ClosedLine]
    timers: list[TimerLine]
    timers_cleared: list[ClosedLine]
    audit: list[AuditEntry]

    def statement(self, home: str) -> tuple[str, dict[str, Value]]:
        """The statement that writes these rows as a process of this name, and its parameters."""
        execution, *others = self.executions
        more = others or self.timers or self.timers_cleared or self.audit
        is_one = not (more or execution.seq_before == 0)
        if is_one and len(self.commands) <= 1 and len(self.closed) <= 1:
            return "commit_one", self._of_one(execution) | {"home": home}
        values: dict[str, Value] = {name: as_json(rows) for name, rows in self._asdict().items()}
        values["ids"] = array_of([line.execution_id for line in self.executions])
        values["home"] = home
        return "commit", values

    def _of_one(self, execution: ExecutionLine) -> dict[str, Value]:
        command = asdict(self.commands[0]) if self.commands else dict.fromkeys(COMMAND_FIELDS)
        return {
            **command,
            "body_checksum": command["checksum"],
            **asdict(execution),
            "events": self.log[0].events if self.log else None,
            "closed": self.closed[0].id if self.closed else None,
        }


def array_of(texts: Iterable[str]) -> str:
    """Texts as PostgreSQL reads an array of them."""
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in texts]
    return "{" + ",".join([f'"{text}"' for text in quoted]) + "}"


def as_json(rows: Iterable[Any]) -> str:
    return _encoder.encode(rows).decode()


def rounds(writes: Sequence[Write]) -> list[list[Write]]:
    """Writes in the order given, each execution at most once per round.

    Within a round by execution: two servers then lock what they share in the same order.
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
    """All but a proper beginning continue something."""
    return write.seq_before > 0 or write.summary is None


def rows_of(writes: Sequence[Write], heads: Mapping[ExecutionId, Head]) -> Rows:
    """The rows of writes that continue these heads, or begin."""
    rows = Rows([], [], [], [], [], [], [])
    for write in writes:
        execution_id = write.execution_id
        before = heads.get(execution_id) or Head(0, chain_start(execution_id))
        end = _add_events(rows.log, write, before) if write.events else before
        rows.executions.append(_execution_line(write, before, end))
        # Setting before clearing: what one write both sets and clears is gone afterwards.
        over, cleared = set(write.closed), set(write.timers_cleared)
        for new in write.commands:
            if new.command.command_id not in over:
                rows.commands.append(_command_line(len(rows.commands), execution_id, new))
        rows.closed.extend(ClosedLine(execution_id, command) for command in over)
        rows.timers.extend(
            TimerLine(execution_id, timer, at)
            for timer, at in dict(write.timers).items()
            if timer not in cleared
        )
        rows.timers_cleared.extend(ClosedLine(execution_id, timer) for timer in cleared)
        rows.audit.extend(write.audit)
    return rows


def _add_events(lines: list[LogLine], write: Write, before: Head) -> Head:
    """Chain the events to the log; where it ends then."""
    row = row_of(write, before.checksum)
    lines.append(LogLine(write.execution_id, *row))
    return Head(row.seq, row.checksum)


def _execution_line(write: Write, before: Head, end: Head) -> ExecutionLine:
    summary = write.summary
    if summary is None:
        return ExecutionLine(write.execution_id, *before, *end)
    if summary.execution_id != write.execution_id:
        raise StoreError(
            f"A write of execution {write.execution_id} carries the summary of"
            f" {summary.execution_id}. Nothing was kept."
        )
    return ExecutionLine(
        write.execution_id,
        *before,
        *end,
        path=summary.path,
        version=summary.version,
        digest=summary.digest,
        status=summary.status,
        requested_at=summary.requested_at,
        ended_at=summary.ended_at,
        parent_execution_id=summary.parent_execution_id,
        idempotency_key=summary.idempotency_key,
        current_steps=as_json(summary.current_steps),
        # A text of PostgreSQL cannot hold NUL. This one is for lists; the event has it whole.
        error=summary.error.replace("\0", "\ufffd") if summary.error is not None else None,
        labels=encode_labels(summary.labels) if write.seq_before == 0 else None,
        failed_step=summary.failed_step,
        waits=summary.waits,
    )


def _command_line(number: int, execution_id: ExecutionId, new: NewCommand) -> CommandLine:
    command, worker_id, expires_at = new
    body = _encoder.encode(command)
    return CommandLine(
        number,
        execution_id,
        command.command_id,
        command.pool,
        command.priority,
        command.turn,
        body,
        crc32(body),
        worker_id,
        expires_at,
    )


def allow_size(execution_id: ExecutionId, key: str, size: int) -> None:
    if size > BODY_MAX:
        raise TooLarge(
            f"Result {key!r} of execution {execution_id} has {size:,} bytes or more, and PostgreSQL"
            f" keeps up to {BODY_MAX:,} here. Nothing was kept. Write it to a file or an object"
            " store in the task, and return where it is."
        )


def result_row(execution_id: ExecutionId, key: str, body: bytes) -> dict[str, Any]:
    allow_size(execution_id, key, len(body))
    digest = sha256(body).hexdigest()
    values = {"execution_id": execution_id, "key": key}
    return values | {"sha256": digest, "size": len(body), "body": body}


def written_name(name: str) -> str:
    """The name of a variable as a text that PostgreSQL can hold."""
    return name.replace("\\", "\\\\").replace("\0", "\\0")


def read_name(written: str) -> str:
    parts = written.split("\\\\")
    return "\\".join(part.replace("\\0", "\0") for part in parts)
