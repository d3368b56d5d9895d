"""The one thread that writes. What waits together is committed together.

A commit costs a flush of the disk, whatever it holds. So all calls that arrived while the last
flush was under way share the next one: nobody waits for more than they would alone.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from queue import Empty
from typing import Any

from noetl.store.sqlite.connections import grow_log
from noetl.store.sqlite.lanes import Answer, Call, Threads, attempt, deliver, writing

GROUP_MAX = 256
IDLE_SECONDS = 0.1
"""So long without a call, the writer has time to tidy up."""
CHANGES_WORTH_A_CHECKPOINT = 500
ROUNDS_BEFORE_GROWING = 50
"""A process that has written so often goes on writing: the log is made ready for it."""


class Writer(Threads):
    """Runs jobs in the order they came, as many as are waiting in one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._checkpointed_at = 0
        self._rounds = 0
        super().__init__("noetl-store-writer", [connection])

    def _work(self, db: sqlite3.Connection) -> None:
        while (call := self._next(db)) is not None:
            group = [call]
            while len(group) < GROUP_MAX and not self._queue.empty():
                another = self._queue.get()
                if another is None:
                    self._queue.put(None)  # Closing comes last: leave it for the next round.
                    break
                group.append(another)
            deliver(_perform(db, group))
            self._rounds += 1
            if self._rounds == ROUNDS_BEFORE_GROWING:
                grow_log(db)

    def _next(self, db: sqlite3.Connection) -> Call | None:
        """The next call; while there is none, the log is written back into the database."""
        if db.total_changes - self._checkpointed_at < CHANGES_WORTH_A_CHECKPOINT:
            return self._queue.get()
        try:
            return self._queue.get(timeout=IDLE_SECONDS)
        except Empty:
            _checkpoint(db)
            self._checkpointed_at = db.total_changes
            return self._queue.get()


def _perform(db: sqlite3.Connection, group: list[Call]) -> list[Answer]:
    if len(group) > 1:

        def everything(db: sqlite3.Connection) -> list[Any]:
            return [call.job(db) for call in group]

        # One of them may be at fault: then nothing was kept, and each goes by itself below.
        with suppress(Exception):
            results = writing(db, everything)
            return [Answer(call, result) for call, result in zip(group, results, strict=True)]
    return [attempt(writing, db, call) for call in group]


def _checkpoint(db: sqlite3.Connection) -> None:
    # A checkpoint that fails loses nothing: all is still in the log. If the disk is at fault, the
    # next commit says so to someone who can act on it.
    with suppress(sqlite3.Error):
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
