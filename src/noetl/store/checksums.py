"""Checksums over what is stored, so that a byte that changed on disk is noticed on the way out.

CRC-32 finds every single changed byte and costs a microsecond per row. It guards against
disks, not against people.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple
from zlib import crc32

import msgspec

from noetl.errors import Conflict, Corrupted
from noetl.model.commands import Command
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.base import CatalogEntry

_decode_command = msgspec.json.Decoder(Command).decode


class Head(NamedTuple):
    """Where a log ends: its last event and the checksum of that."""

    seq: int
    checksum: int


def chain_start(execution_id: ExecutionId) -> int:
    """What the checksum of the first row of an execution's log continues."""
    return crc32(execution_id.encode())


def chain(before: int, seq: int, events: bytes) -> int:
    """The checksum of a row of the log, continuing that of the row before it.

    Every column is covered, and through the chain the order of rows and their completeness.
    """
    return crc32(events, crc32(b"%d" % seq, before))


def continues(before: int, seq: int, events: bytes, checksum: int) -> bool:
    """Whether this row, as read, is what was written after the one with checksum `before`."""
    try:
        return chain(before, seq, events) == checksum
    except TypeError:
        return False  # Damage can also change what type a value is taken for.


def agrees(body: bytes, checksum: int) -> bool:
    """Whether a body, as read, is what was written."""
    return isinstance(body, bytes) and crc32(body) == checksum


def verified_command(body: bytes, checksum: int) -> Command | None:
    """The command as it was written; None if it is damaged."""
    if not agrees(body, checksum):
        return None
    try:
        return _decode_command(body)
    except msgspec.DecodeError:
        return None  # Written by a version of NoETL that has other commands.


def verified_net(body: bytes, digest: str) -> bytes:
    """The bytes of a net; raises Corrupted if they are not those that its digest names."""
    if not isinstance(body, bytes) or sha256(body).hexdigest() != digest:
        raise Corrupted(
            f"The compiled playbook {digest[:12]} is not what was written: its sha256 is not its"
            " digest. Executions of it are not served, others are not affected. Restore it from a"
            " backup, or delete its row and register the playbook again."
        )
    return body


def entry_checksum(entry: CatalogEntry) -> int:
    """Over all columns of a row of the catalog."""
    return crc32(msgspec.json.encode(msgspec.structs.astuple(entry)))


def verified_entry(entry: CatalogEntry, checksum: int | None) -> CatalogEntry:
    """The entry; raises Corrupted if it is not what was written. Old ones have no checksum."""
    if checksum is not None and entry_checksum(entry) != checksum:
        raise Corrupted(
            f'Version {entry.version} of "{entry.path}" in the catalog is not what was written.'
            " It is not started any more, other versions are not affected. Restore it from a"
            " backup, or register the playbook again."
        )
    return entry


def refuse_other_kind(entry: CatalogEntry, newest: CatalogEntry | None) -> None:
    """Raise Conflict if the path of the entry belongs to a document of another kind."""
    if newest is not None and newest.kind != entry.kind:
        raise Conflict(
            f'"{entry.path}" is a {newest.kind} in the catalog, so no {entry.kind} can stand there.'
            " Give this one another `metadata.path`."
        )


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


def first_sentence(error: Corrupted) -> str:
    """What, without the remedy."""
    return str(error).split(". ")[0]
