"""Checksums over stored commands and results, so that a byte that changed on disk is noticed when
it is read. The rows of a log are chained by theirs (`noetl.store.log`).

CRC-32 detects every single changed byte and costs a microsecond per row. It guards against disks,
not against people.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from zlib import crc32

import msgspec

from noetl.errors import Corrupted, StoreError
from noetl.model.commands import Command
from noetl.model.ids import CommandId, ExecutionId


@cache
def _commands() -> msgspec.json.Decoder[Command]:
    return msgspec.json.Decoder(Command)


def agrees(body: bytes, checksum: int) -> bool:
    """Whether a body, as read, is what was written."""
    return isinstance(body, bytes) and crc32(body) == checksum


def verified_command(body: bytes, checksum: int) -> Command | None:
    """The command as it was written; None if it is damaged."""
    if not agrees(body, checksum):
        return None
    try:
        return _commands().decode(body)
    except msgspec.DecodeError:
        return None  # Written by a version of NoETL with other commands.


def damaged_command(command_id: CommandId, execution_id: ExecutionId) -> Corrupted:
    return Corrupted(
        f"Command {command_id} of execution {execution_id} is not what was written, or not"
        " readable for this version of NoETL. This execution is not served, others are not"
        " affected. `noetl db check` names all that is damaged; restore it from a backup"
        " or run it anew."
    )


def damaged_log(execution_id: ExecutionId, what: str) -> Corrupted:
    return Corrupted(
        f"What is stored of execution {execution_id} is not what was written: {what}."
        " This execution is not served, others are not affected. `noetl db check` names all that"
        " is damaged; restore it from a backup or run it anew."
    )


def damaged_result(execution_id: ExecutionId, key: str, digest: str) -> Corrupted:
    return Corrupted(
        f"Result {key!r} of execution {execution_id} is not what was written: its sha256 is"
        f" not {digest}. Restore it from a backup, or run the execution anew."
    )


def verified_result(body: bytes, digest: str, execution_id: ExecutionId, key: str) -> bytes:
    """The body of a result, if it is what was written."""
    if sha256(body).hexdigest() != digest:
        raise damaged_result(execution_id, key, digest)
    return body


def first_sentence(error: StoreError) -> str:
    """The fault, without the remedy."""
    return str(error).split(". ")[0]
