"""Reads everything and reports damage, for `noetl db check`."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator

from noetl.errors import Corrupted
from noetl.store.catalog import entry_of, verified_entry, verified_net
from noetl.store.checksums import Head, agrees, chain_start, first_sentence
from noetl.store.sqlite.database import QUERIES, rows
from noetl.store.sqlite.log import follow_log


def structure_problems(db: sqlite3.Connection) -> Iterator[str]:
    """What SQLite itself reports about its file."""
    for (finding,) in db.execute(QUERIES["check_structure"]):
        if finding != "ok":
            yield f"The file itself: {finding}"
    for table, _, parent, _ in db.execute(QUERIES["check_references"]):
        yield f"A row of {table} belongs to a row of {parent} that is not there"


def log_problems(db: sqlite3.Connection) -> Iterator[str]:
    """Logs with events that are missing, changed or out of order, with or without snapshots."""
    for execution_id, *end in db.execute(QUERIES["check_heads"]):
        start = Head(0, chain_start(execution_id))
        try:
            deque(follow_log(db, execution_id, start, Head(*end)), maxlen=0)
        except Corrupted as error:
            yield first_sentence(error)
        except sqlite3.DatabaseError as error:
            yield f"The log of execution {execution_id} cannot be read: {error}"


def snapshot_problems(db: sqlite3.Connection) -> Iterator[str]:
    for execution_id, body, checksum in db.execute(QUERIES["check_snapshots"]):
        if not agrees(body, checksum):
            yield f"The snapshot of execution {execution_id} is not what was written"


def command_problems(db: sqlite3.Connection) -> Iterator[str]:
    for execution_id, command_id, body, checksum in db.execute(QUERIES["check_commands"]):
        if not agrees(body, checksum):
            yield f"Command {command_id} of execution {execution_id} is not what was written"


def net_problems(db: sqlite3.Connection) -> Iterator[str]:
    for digest, body in db.execute(QUERIES["check_nets"]):
        try:
            verified_net(body, digest)
        except Corrupted as error:
            yield first_sentence(error)


def catalog_problems(db: sqlite3.Connection) -> Iterator[str]:
    for entry in rows(db, "check_catalog", entry_of, {}):
        try:
            verified_entry(*entry)
        except Corrupted as error:
            yield first_sentence(error)


def row_problems(db: sqlite3.Connection) -> list[str]:
    """All findings; a part that cannot be read is itself a finding."""
    found: list[str] = []
    for part in (
        structure_problems,
        log_problems,
        snapshot_problems,
        command_problems,
        net_problems,
        catalog_problems,
    ):
        try:
            found += part(db)
        except sqlite3.DatabaseError as error:
            what = part.__name__.removesuffix("_problems")
            found.append(f"The {what} cannot be read to its end: {error}")
    return found
