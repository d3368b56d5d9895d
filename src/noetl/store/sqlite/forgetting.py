"""Executions that are not kept any more, and the files of their bodies."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.base import Ended, Forgotten, Hold, Member
from noetl.store.sqlite.queries import QUERIES


def ended(
    db: sqlite3.Connection,
    before: float,
    prefix: str,
    after: tuple[float, ExecutionId],
    limit: int,
) -> list[Ended]:
    chosen = {
        "before": before,
        "prefix": prefix,
        "after_at": after[0],
        "after_id": after[1],
        "limit": limit,
    }
    return [Ended(*row) for row in db.execute(QUERIES["ended"], chosen)]


def tree(db: sqlite3.Connection, execution_id: ExecutionId) -> list[Member]:
    return [
        Member(one, bool(has_ended), bool(is_held), bool(is_reused), seq)
        for one, has_ended, is_held, is_reused, seq in db.execute(
            QUERIES["tree"], {"execution_id": execution_id}
        )
    ]


def forget(db: sqlite3.Connection, execution_ids: Collection[ExecutionId]) -> int:
    """In one transaction: that of the lane this runs on."""
    listed = msgspec.json.encode(list(execution_ids)).decode()
    going = [one for (one,) in db.execute(QUERIES["forgettable"], (listed,))]
    if going:
        listed = msgspec.json.encode(going).decode()
        for name in ("tally", "forget_results", "forget_reuse", "forget_executions"):
            db.execute(QUERIES[name], (listed,))
    return len(going)


def is_filed(db: sqlite3.Connection, digest: str) -> bool:
    """Whether the body in this file is somebody's."""
    return db.execute(QUERIES["is_filed"], (digest,)).fetchone() is not None


def forgotten(db: sqlite3.Connection, since_day: int) -> list[Forgotten]:
    return [Forgotten(*row) for row in db.execute(QUERIES["forgotten"], (since_day,))]


def hold(db: sqlite3.Connection, wanted: Hold) -> bool:
    row = (wanted.note, wanted.who, wanted.at, wanted.execution_id)
    return db.execute(QUERIES["hold"], row).rowcount > 0


def holds(db: sqlite3.Connection) -> list[Hold]:
    return [Hold(*row) for row in db.execute(QUERIES["holds"])]
