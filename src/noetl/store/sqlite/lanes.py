"""Where statements run: on threads of their own, or at once where a simulation wants order.

A job is a function of the connection. It runs inside one transaction, sees one state of the
database, and may be run again if that transaction could not be kept.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol, TypeVar

from noetl.errors import StoreError

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]


class Lane(Protocol):
    """Runs jobs and gives back what they return or raise."""

    async def run(self, job: Job[T]) -> T: ...

    async def close(self) -> None: ...


def writing(db: sqlite3.Connection, job: Job[T]) -> T:
    """Run the job in a transaction that is kept whole or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        result = job(db)
        db.execute("COMMIT")
    finally:
        # SQLite itself rolls back after some errors, such as a full disk.
        if db.in_transaction:
            db.execute("ROLLBACK")
    return result


def reading(db: sqlite3.Connection, job: Job[T]) -> T:
    """Run the job on one state of the database, whatever is written meanwhile."""
    db.execute("BEGIN")
    try:
        return job(db)
    finally:
        # Nothing to commit; and after damaged pages SQLite refuses to.
        if db.in_transaction:
            db.execute("ROLLBACK")


class Call(NamedTuple):
    """A job on its way to a thread, and where its caller waits."""

    job: Job[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Answer(NamedTuple):
    """What became of a call."""

    call: Call
    result: Any = None
    error: Exception | None = None


def deliver(answers: Iterable[Answer]) -> None:
    """Hand answers to the loops that wait for them, with one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer.call.loop, []).append(answer)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:
            # The loop was closed while its calls were under way: nobody waits for them any more.
            continue


def _settle(answers: list[Answer]) -> None:
    for call, result, error in answers:
        if call.future.done():
            continue  # The caller was cancelled. What it asked for has happened all the same.
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)


class Threads:
    """Threads that take calls from one queue. What a thread does with them is up to `_work`."""

    def __init__(self, name: str, connections: list[sqlite3.Connection]) -> None:
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._closed = False
        self._threads = [
            # Daemons: a process that ends in a hurry loses nothing that was acknowledged.
            Thread(target=self._serve, args=(db,), name=f"{name}-{number}", daemon=True)
            for number, db in enumerate(connections)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, job: Job[T]) -> T:
        if self._closed:
            raise StoreError("The store is closed. Open it again to use it.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(Call(job, loop, future))
        return await future

    async def close(self) -> None:
        """Finish what is queued, then stop."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _serve(self, db: sqlite3.Connection) -> None:
        try:
            self._work(db)
        finally:
            db.close()

    def _work(self, db: sqlite3.Connection) -> None:
        raise NotImplementedError


class Readers(Threads):
    """Connections that only read, so that a long answer delays no other and no write."""

    def __init__(self, connections: list[sqlite3.Connection]) -> None:
        super().__init__("noetl-store-reader", connections)

    def _work(self, db: sqlite3.Connection) -> None:
        while (call := self._queue.get()) is not None:
            deliver([attempt(reading, db, call)])


def attempt(
    transaction: Callable[[sqlite3.Connection, Job[Any]], Any], db: sqlite3.Connection, call: Call
) -> Answer:
    """Run one call in a transaction of its own."""
    try:
        return Answer(call, transaction(db, call.job))
    except Exception as error:  # noqa: BLE001  (it is the caller's, who waits for it)
        return Answer(call, error=error)


class Inline:
    """Runs every job at once on the caller's thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db: sqlite3.Connection | None = connection

    async def run(self, job: Job[T]) -> T:
        if self._db is None:
            raise StoreError("The store is closed. Open it again to use it.")
        return writing(self._db, job)

    async def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
