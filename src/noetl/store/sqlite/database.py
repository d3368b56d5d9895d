"""Where statements run: on threads of their own, or on the caller's thread in simulations, where
the order must not vary.

The parts of the store share one database: a lane that writes and a lane that reads. A job is a
function of the connection. It runs inside one transaction, sees one state of the database, and may
run again if that transaction failed.

There is one writer, and jobs that wait together are committed together: a commit costs one flush of
the disk, whatever its size. So all calls that arrived during the last flush share the next one, and
no call waits longer than it would alone. On a fast disk, handing a call to the thread and its
answer back takes longer than the flush. Then a single call that finds the writer free runs on the
caller's thread.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from traceback import clear_frames
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from noetl.errors import StoreError
from noetl.store.database import Database, Rows, Transaction, Undo, fields_of, read_queries
from noetl.store.sqlite.connections import grow_log
from noetl.store.sqlite.faults import FORESEEN, fault

QUERIES = {
    name: re.sub(r"= ANY\((:\w+)\)", r"IN (SELECT value FROM json_each(\1))", statement).replace(
        " ILIKE ", " LIKE "
    )
    for name, statement in read_queries(__package__, tables="noetl_").items()
}
"""The statements of this store by name."""

GROUP_MAX = 256
IDLE_SECONDS = 0.1
"""After this long without a call, the writer tidies up."""
MANY_CHANGES = 200
"""After this many changes, an idle moment is used for a checkpoint. And a process that has made
this many will make more, so the WAL is given its final size."""

SHORT_SECONDS = 0.002
"""How long an event loop may be blocked."""
APART_SECONDS = 0.0001
"""A call that follows another this closely is probably one of many, which should share a flush."""

encode_json = msgspec.json.Encoder().encode

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]


class Lane(Protocol):
    """Runs jobs and returns their results, or raises their errors."""

    async def run(self, job: Job[T]) -> T: ...

    async def close(self) -> None: ...


def writing(db: sqlite3.Connection, job: Job[T]) -> T:
    """Run the job in a transaction, atomically."""
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
    """Run the job on one state of the database, unaffected by concurrent writes."""
    db.execute("BEGIN")
    try:
        return job(db)
    except BaseException as error:
        # An error that is kept keeps the frames it passed, and with them a cursor half-way, which
        # would hold this connection at the state of now.
        clear_frames(error.__traceback__)
        raise
    finally:
        # Nothing to commit; and after damaged pages SQLite refuses to.
        if db.in_transaction:
            db.execute("ROLLBACK")


class Call(NamedTuple):
    """A job on its way to a thread, and the future of its caller."""

    job: Job[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Answer(NamedTuple):
    """The result of a call."""

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
            # The loop was closed while its calls were under way: no one waits for them any more.
            continue


def _settle(answers: list[Answer]) -> None:
    for call, result, error in answers:
        if call.future.done():
            continue  # The caller was cancelled. Its job was done nevertheless.
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)


class Threads:
    """Threads that take calls from one queue. `_work` decides what a thread does with them."""

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


class Writer(Threads):
    """Runs jobs in order of arrival, all waiting ones in one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._turn = Lock()
        """Held by the thread that uses the connection."""
        self._last_seconds = SHORT_SECONDS
        self._ended_at = 0.0
        self._checkpointed_at = 0
        self._looks_out = False
        """The thread waits for an idle moment to write a checkpoint."""
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
        """Whether to write on the caller's thread: the last write was fast and not just now, no
        call is waiting, and the thread need not be woken to look out for an idle moment.
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
        """The next call; an idle moment is used for a checkpoint."""
        self._looks_out = True
        while self._has_many_changes():
            changes = db.total_changes
            with suppress(Empty):
                return self._queue.get(timeout=IDLE_SECONDS)
            if db.total_changes == changes:
                # A failed checkpoint loses nothing: everything is still in the WAL. If the disk is
                # at fault, the next commit reports that to someone who can act on it.
                with self._turn:
                    with suppress(sqlite3.Error):
                        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    self._checkpointed_at = db.total_changes
        self._looks_out = False
        return self._queue.get()


def _perform(db: sqlite3.Connection, group: list[Call]) -> list[Answer]:
    if len(group) > 1:

        def everything(db: sqlite3.Connection) -> list[Any]:
            return [call.job(db) for call in group]

        # One of them may be at fault: then nothing was written, and each runs by itself below.
        with suppress(Exception):
            results = writing(db, everything)
            return [Answer(call, result) for call, result in zip(group, results, strict=True)]
    return [attempt(writing, db, call) for call in group]


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


class ReadOnly:
    """For a process that only reads: refuses every job."""

    def __init__(self, place: str) -> None:
        self._place = place

    async def run(self, job: Job[T]) -> T:
        raise StoreError(f"{self._place} was opened for reading only.")

    async def close(self) -> None:
        """It has nothing to close."""


class SqliteDatabase(Database):
    """A database file, or one in memory: how calls reach it, and how its errors are reported."""

    queries = QUERIES

    def __init__(
        self, place: str, *, writer: Lane | None, reader: Lane, threads: bool = True
    ) -> None:
        self.place = place
        self.writer: Lane = writer or ReadOnly(place)
        """The lane that writes."""
        self._reader = reader
        self._threads = threads

    async def close(self) -> None:
        await self._reader.close()
        await self.writer.close()

    async def require_writer(self) -> None:
        """Raises StoreError if this process only reads."""
        if type(self.writer) is ReadOnly:
            await self.writer.run(lambda _: None)

    async def read(self, job: Job[T]) -> T:
        try:
            return await self._reader.run(job)
        except FORESEEN as error:
            raise fault(error, self.place) from error

    async def write(self, job: Job[T]) -> T:
        try:
            return await self.writer.run(job)
        except FORESEEN as error:
            raise fault(error, self.place) from error

    async def on_disk(self, task: Callable[[], T]) -> T:
        """Work on files, outside the event loop."""
        try:
            return await asyncio.to_thread(task) if self._threads else task()
        except OSError as error:
            raise fault(error, self.place) from error

    async def tuples(self, query: str, /, **values: Any) -> list[Any]:
        return await self.read(lambda db: tuples(db, query, values))

    async def rows(self, query: str, kind: Callable[..., T], /, **values: Any) -> list[T]:
        return await self.read(lambda db: rows(db, query, kind, values))

    async def change(self, query: str, /, **values: Any) -> int:
        return await self.write(lambda db: change(db, query, values))

    async def returned(self, query: str, /, **values: Any) -> list[Any]:
        return await self.write(lambda db: tuples(db, query, values))

    async def composed(self, statement: str, values: dict[str, Any]) -> list[Any]:
        return await self.read(lambda db: db.execute(statement, sent(values)).fetchall())

    async def scan(
        self, query: str, job: Callable[[Rows], Coroutine[Any, Any, T]], /, **values: Any
    ) -> T:
        def whole(db: sqlite3.Connection) -> T:
            # A job may end early: left open, the cursor would keep the connection at its state.
            with closing(db.execute(QUERIES[query], sent(values))) as cursor:
                return finished(job(_streamed(cursor)))

        return await self.read(whole)

    async def together(
        self, job: Callable[[Transaction], Coroutine[Any, Any, T]], *, is_long: bool = False
    ) -> T:
        try:
            return await self.write(lambda db: finished(job(SqliteTransaction(db))))
        except Undo as undo:
            result: T = undo.result
            return result


class SqliteTransaction(Transaction):
    """Runs statements at once, on the thread of the lane, so nothing here waits."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    async def tuples(self, query: str, /, **values: Any) -> list[Any]:
        return tuples(self._db, query, values)

    async def rows(self, query: str, kind: Callable[..., T], /, **values: Any) -> list[T]:
        return rows(self._db, query, kind, values)

    async def change(self, query: str, /, **values: Any) -> int:
        return change(self._db, query, values)

    async def change_all(self, query: str, rows: Sequence[msgspec.Struct], /) -> int:
        return self._db.executemany(QUERIES[query], map(msgspec.structs.asdict, rows)).rowcount

    async def lock(self, query: str, /, **values: Any) -> None:
        """Nobody else writes meanwhile."""


def finished(job: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing: it ends with its first step."""
    try:
        job.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    job.close()
    raise RuntimeError("within a transaction, a job waits for nothing but its statements")


def tuples(db: sqlite3.Connection, query: str, values: dict[str, Any]) -> list[Any]:
    return db.execute(QUERIES[query], sent(values)).fetchall()


def rows(
    db: sqlite3.Connection, query: str, kind: Callable[..., T], values: dict[str, Any]
) -> list[T]:
    cursor = db.execute(QUERIES[query], sent(values))
    names = [column[0] for column in cursor.description]
    return [kind(**fields_of(dict(zip(names, row, strict=True)))) for row in cursor]


async def _streamed(cursor: sqlite3.Cursor) -> Rows:
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def change(db: sqlite3.Connection, query: str, values: dict[str, Any]) -> int:
    return db.execute(QUERIES[query], sent(values)).rowcount


def sent(values: dict[str, Any]) -> dict[str, Any]:
    """The values as parameters: a list as `json_each` takes it."""
    return {
        name: encode_json(value).decode() if type(value) is list else value
        for name, value in values.items()
    }
