"""Checksums over what is stored, so that a byte that changed on disk is noticed on the way out.

CRC-32 finds every single changed byte and costs half a microsecond per event. It guards against
disks, not against people.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from noetl.model.ids import ExecutionId
from noetl.store.base import EventRow


class Head(NamedTuple):
    """Where a log ends: its last event and the checksum of that."""

    seq: int
    checksum: int


_numbers = struct.Struct("<qd").pack


def chain_start(execution_id: ExecutionId) -> int:
    """What the checksum of an execution's first event continues."""
    return crc32(execution_id.encode())


def chain(before: int, event: EventRow) -> int:
    """The checksum of an event, continuing that of the event before it.

    Every column is covered, and through the chain their order and completeness.
    """
    seq, event_id, type_, at, step, step_run_id, body = event
    texts = f"{event_id}\x1f{type_}\x1f{step}\x1f{step_run_id}\x1f".encode()
    return crc32(b"".join((_numbers(seq, at), texts, body)), before)


def continues(before: int, event: EventRow, checksum: int) -> bool:
    """Whether this event, as read, is what was written after the one with checksum `before`."""
    try:
        return chain(before, event) == checksum
    except (TypeError, struct.error):
        return False  # Damage can also change what type SQLite takes a value for.


def agrees(body: bytes, checksum: int) -> bool:
    """Whether a body, as read, is what was written."""
    return isinstance(body, bytes) and crc32(body) == checksum
