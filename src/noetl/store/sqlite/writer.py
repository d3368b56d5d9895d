"""The one that writes at a time. What waits together is committed together.

A commit costs a flush of the disk, whatever it holds. So all calls that arrived while the last
flush was under way share the next one: nobody waits for more than they would alone.

Where the disk is quick, handing a call to the thread and its answer back takes longer than the
flush. Then a call that comes by itself and finds the writer free is done on the spot.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from queue import Empty
from threading import Lock
from time import perf_counter
from typing import Any, TypeVar

from noetl.store.sqlite.connections import grow_log
from noetl.store.sqlite.database import Answer, Call, Job, Threads, attempt, deliver, writing

GROUP_MAX = 256
IDLE_SECONDS = 0.1
"""So long without a call, the writer has time to tidy up."""
MANY_CHANGES = 200
"""After so many, an idle moment is used for a checkpoint. And a process that has made so many goes
on making them: the log is made ready for it."""

SHORT_SECONDS = 0.002
"""An event loop may well stand still for so long."""
APART_SECONDS = 0.0001
"""Whoever comes so soon behind another is probably one of many, who should share a flush."""

T = TypeVar("T")


class Writer(Threads):
    """Runs jobs in the order they came, as many as are waiting in one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._turn = Lock()
        """Whoever has it uses the connection."""
        self._last_seconds = SHORT_SECONDS
        self._ended_at = 0.0
        self._checkpointed_at = 0
        self._looks_out = False
        """The thread waits for an idle moment, to write the log back."""
        self._log_is_grown = False
        super().__init__("noetl-store-writer", [connection])

    async def run(self, job: Job[T]) -> T:
        if self._may_write_here() and self._turn.acquire(blocking=False):
            try:
                return self._timed(job)
            finally:
                self._turn.release()
        return await super().run(job)

    def _may_write_here(self) -> bool:
        """Whether the last write was quick and not just now, nobody is in front, and the thread
        need not be woken: after many changes it looks out for an idle moment.
        """
        return (
            self._last_seconds < SHORT_SECONDS
            and perf_counter() - self._ended_at > APART_SECONDS
            and self._queue.empty()
            and not self._closed
            and (self._looks_out or not self._has_many_changes())
        )

    def _timed(self, job: Job[T]) -> T:
        begin = perf_counter()
        try:
            return writing(self._db, job)
        finally:
            self._ended_at = perf_counter()
            self._last_seconds = self._ended_at - begin

    def _work(self, db: sqlite3.Connection) -> None:
        while (call := self._next(db)) is not None:
            group = [call]
            while len(group) < GROUP_MAX and not self._queue.empty():
                another = self._queue.get()
                if another is None:
                    self._queue.put(None)  # Closing comes last: leave it for the next round.
                    break
                group.append(another)
            with self._turn:
                begin = perf_counter()
                answers = _perform(db, group)
                self._last_seconds = perf_counter() - begin
                if not self._log_is_grown and db.total_changes >= MANY_CHANGES:
                    self._log_is_grown = True
                    grow_log(db)
            deliver(answers)

    def _has_many_changes(self) -> bool:
        return self._db.total_changes - self._checkpointed_at >= MANY_CHANGES

    def _next(self, db: sqlite3.Connection) -> Call | None:
        """The next call; in an idle moment, the log is written back into the database."""
        self._looks_out = True
        while self._has_many_changes():
            changes = db.total_changes
            with suppress(Empty):
                return self._queue.get(timeout=IDLE_SECONDS)
            if db.total_changes == changes:
                with self._turn:
                    _checkpoint(db)
                    self._checkpointed_at = db.total_changes
        self._looks_out = False
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
