"""Server-sent events: the events of an execution, as they happen.

An event is encoded once for all readers. Each execution that is read has one feed, which keeps the
newest events in encoded form. The feed begins where its first reader begins, unless that is far
behind, so readers that arrive together also share earlier events. Events that this server stores
from then on are handed to the feed; the store is read only for events that other servers stored. A
reader that is behind the feed reads pages of the store by itself, until it has caught up. The
reader sets the pace and nothing is queued for it, so a slow reader costs no more memory than a fast
one.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from noetl.api.metrics import Metrics
from noetl.control import documents
from noetl.control.records import no_execution
from noetl.control.watchers import Tail, Watchers
from noetl.model.events import LAST_EVENT
from noetl.model.ids import ExecutionId
from noetl.model.state import TERMINAL
from noetl.store.log import EventRow, Log
from noetl.store.records import Records

PAGE = 2000
PAGE_BYTES = 256 * 1024
"""The most that is read ahead of a reader, except for a single larger event."""
ENCODED_AT_ONCE = 50
"""After this many events, other tasks of this process get a turn. A reporting worker then waits for
a quarter of a millisecond, and most is encoded while it works or its report is being stored."""
KEPT_BYTES = 512 * 1024
SHARED_EVENTS = 500
"""A first reader that is further behind reads earlier events by itself."""
UNREAD_SECONDS = 0.01
"""How long something stays without readers: between `look` and the reading that follows."""
PAUSE_SECONDS = 0.1
"""Pause between two pieces of a feed: events stored meanwhile are sent together."""
HEARTBEAT_SECONDS = 15.0
"""How often something is sent, so that proxies do not take the stream for dead."""
HEARTBEAT = b": still here\n\n"
RETRY = b"retry: 1000\n"
"""The milliseconds after which a browser reconnects. It is in the block of the first event, because
some clients take a separate block for an event without data."""


class Piece:
    """Consecutive events, encoded once; their frames are built once, too."""

    def __init__(self, before: int, events: Sequence[tuple[bytes, bytes]]) -> None:
        self.before = before
        """The seq of the event before the first."""
        self._events = events
        """Type and JSON of each."""
        self.size = sum([len(body) for _, body in events])

    @property
    def last(self) -> int:
        return self.before + len(self._events)

    def after(self, seq: int) -> bytes:
        """The frames of those with a greater seq, each with its own id and type."""
        skipped = seq - self.before
        frames, ends = self._frames
        return frames if skipped <= 0 else frames[ends[skipped - 1] :]

    def named_after(self, seq: int) -> bytes:
        """The same without ids, all of the type `event`."""
        skipped = seq - self.before
        frames, ends = self._named
        return frames if skipped <= 0 else frames[ends[skipped - 1] :]

    @cached_property
    def _frames(self) -> tuple[bytes, list[int]]:
        return _joined(
            [
                b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, kind, body)
                for seq, (kind, body) in enumerate(self._events, self.before + 1)
            ]
        )

    @cached_property
    def _named(self) -> tuple[bytes, list[int]]:
        return _joined([b"event: event\ndata: %b\n\n" % body for _, body in self._events])


def _joined(frames: list[bytes]) -> tuple[bytes, list[int]]:
    """All frames joined, and where each ends."""
    return b"".join(frames), list(accumulate(map(len, frames)))


def piece(execution_id: ExecutionId, rows: Sequence[EventRow]) -> Piece:
    """Events that were read, as they are sent."""
    return Piece(rows[0].seq - 1, _encoded(execution_id, rows))


def _encoded(execution_id: ExecutionId, rows: Sequence[EventRow]) -> list[tuple[bytes, bytes]]:
    return [
        (row.type.encode(), msgspec.json.encode(documents.event(execution_id, row))) for row in rows
    ]


class Shared:
    """What is read once for several readers, while there are any."""

    task: asyncio.Task[None]
    """Reads it."""

    def __init__(self) -> None:
        self.readers = 0
        self.failure: Exception | None = None
        """Why it cannot be read: its readers raise it."""
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is more, and when nothing more comes."""

    @property
    def is_stale(self) -> bool:
        """The next reader needs another one."""
        return self.failure is not None

    def tell(self) -> None:
        """Readers look again."""
        told, self.changed = self.changed, asyncio.get_running_loop().create_future()
        told.set_result(None)


S = TypeVar("S", bound=Shared)


@asynccontextmanager
async def shared(kept: dict[str, S], key: str, made: Callable[[], S]) -> AsyncIterator[S]:
    """The one under that key, for another reader; it is `made` for the first of them."""
    one = kept.get(key)
    if one is None or one.is_stale:
        one = kept[key] = made()
    one.readers += 1
    try:
        yield one
    finally:
        one.readers -= 1
        if not one.readers:
            asyncio.get_running_loop().call_later(UNREAD_SECONDS, _let_go, kept, key, one)


def _let_go(kept: dict[str, S], key: str, one: S) -> None:
    if not one.readers:
        one.task.cancel()
        if kept.get(key) is one:
            del kept[key]


class Feed(Shared):
    """The newest events of one execution. Its readers are also woken now and then while nothing
    happens: one clock for all of them.
    """

    def __init__(self, streams: Streams, execution_id: ExecutionId, after: int | None) -> None:
        """`after` is where its first reader begins; None: with the next event."""
        super().__init__()
        self._streams = streams
        self.execution_id = execution_id
        self._first = after
        self.is_known = False
        """The execution exists."""
        self.was_over = False
        """It had ended before the feed began."""
        self.head = 0
        """The last event when the feed began."""
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self._end = 0
        self.start: float = math.inf
        """Older events are read from the store."""
        self.begun = asyncio.Event()
        """Set when its start is known."""
        self.has_ended = False
        """Nothing will be added: the execution is over, or the store cannot be read."""
        self._turns = asyncio.Lock()
        self.task = asyncio.create_task(self._fill())

    @property
    def is_stale(self) -> bool:
        return self.has_ended and not self.was_over

    @property
    def end(self) -> int:
        """The last event that it knows of."""
        return max(self._end, self.head)

    def after(self, seq: int) -> Piece | None:
        """The oldest piece that continues after that event."""
        return next((one for one in self._pieces if one.last > seq), None)

    async def _fill(self) -> None:
        draining = asyncio.ensure_future(self._streams.draining.wait())
        try:
            with self._streams.watchers.follow(self.execution_id, KEPT_BYTES) as tail:
                rows = await self._begin(tail)
                while True:
                    if rows:
                        await self._send(rows)
                    if self.has_ended:
                        break
                    rows = await self._next(tail)
                    if not rows:
                        await self._news(tail.signal, draining)
        except Exception as error:  # noqa: BLE001  its readers raise it
            self.failure, self.has_ended = error, True
        finally:
            draining.cancel()
            self.begun.set()
            self.tell()

    async def _begin(self, tail: Tail) -> list[EventRow]:
        """Begin where the first reader begins and return those events, or begin at the end of the
        log.
        """
        rows: list[EventRow] = []
        is_all = False
        if self._first is not None:
            tail.take(self._first)
            rows, is_all = await self._rest(self._first, SHARED_EVENTS)
        if rows and is_all:
            assert self._first is not None
            self.is_known, self.was_over = True, rows[-1].type == LAST_EVENT
            self.head, self._end = rows[-1].seq, self._first
        else:
            rows = []
            tail.miss()
            await self._ask()
        self.start = self._end
        self.begun.set()
        return rows

    async def _ask(self) -> None:
        """Read the state of the execution if its events do not show it: they are too many, or there
        are none.
        """
        summary = await self._streams.records.summary(self.execution_id)
        heads = await self._streams.log.heads([self.execution_id])
        self.is_known = summary is not None
        self.was_over = summary is not None and summary.status in TERMINAL
        self.has_ended = self.was_over or not self.is_known
        self.head = heads.get(self.execution_id, 0)
        first = self.head if self._first is None or self.has_ended else self._first
        self._end = first if self.head - SHARED_EVENTS <= first <= self.head else self.head

    async def _next(self, tail: Tail) -> list[EventRow]:
        """The stored events that were not sent yet."""
        rows = tail.take(self._end)
        if rows is None:
            rows, is_all = await self._rest(self._end, PAGE)
            if not is_all:
                tail.miss()
        return rows

    async def page(self, after: int, limit: int = PAGE) -> list[EventRow]:
        """The next events in the store, for a reader that is behind the feed."""
        return await self._streams.log.events(
            self.execution_id, after=after, limit=limit, size=PAGE_BYTES
        )

    async def _rest(self, after: int, limit: int) -> tuple[list[EventRow], bool]:
        """The next events in the store, and whether these are all."""
        rows = await self.page(after, limit)
        return rows, len(rows) < limit and sum([len(row.body) for row in rows]) < PAGE_BYTES

    async def _send(self, rows: list[EventRow]) -> None:
        """Hand these to the readers, and wait until there may be as many more."""
        encoded: list[tuple[bytes, bytes]] = []
        for first in range(0, len(rows), ENCODED_AT_ONCE):
            encoded += _encoded(self.execution_id, rows[first : first + ENCODED_AT_ONCE])
            await asyncio.sleep(0)
        self._add(Piece(rows[0].seq - 1, encoded))
        self.has_ended = rows[-1].type == LAST_EVENT
        self.tell()
        if not self.has_ended:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _news(self, signal: asyncio.Event, draining: asyncio.Future[Any]) -> None:
        """Wait for it. Readers are told that there is none every so often, and when this server
        is about to end."""
        coming = asyncio.ensure_future(signal.wait())
        try:
            while not coming.done():
                waits = {coming} if draining.done() else {coming, draining}
                await asyncio.wait(
                    waits, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not coming.done():
                    self.tell()
        finally:
            coming.cancel()

    def _add(self, new: Piece) -> None:
        self._pieces.append(new)
        self._size += new.size
        self._end = new.last
        while self._size > KEPT_BYTES and len(self._pieces) > 1:
            old = self._pieces.popleft()
            self._size -= old.size
            self.start = old.last

    async def turn(self) -> None:
        """Return when it is this reader's turn. All are woken at once, and sending a piece to each
        takes a while: in between, other tasks of this process get a turn.
        """
        async with self._turns:
            await asyncio.sleep(0)


class Streams:
    """The event streams of a server."""

    def __init__(
        self,
        log: Log,
        records: Records,
        watchers: Watchers,
        metrics: Metrics,
        draining: asyncio.Event,
    ) -> None:
        self.log = log
        self.records = records
        self.watchers = watchers
        self._metrics = metrics
        self.draining = draining
        self._feeds: dict[ExecutionId, Feed] = {}

    async def look(self, execution_id: ExecutionId, after: int) -> bool:
        """Whether events will follow that number. Raises NotFound if there is no execution."""
        async with self.fed(execution_id, after) as feed:
            await feed.begun.wait()
            if feed.failure is not None:
                raise feed.failure
            if not feed.is_known:
                raise no_execution(execution_id)
            return not feed.was_over or after < feed.head

    async def frames(self, execution_id: ExecutionId, after: int) -> AsyncGenerator[bytes, None]:
        """The frames of the events after that number, until the execution has ended."""
        first = RETRY
        with self.counted():
            async with (
                self.fed(execution_id, after) as feed,
                aclosing(self._read(feed, after)) as found,
            ):
                async for frames in found:
                    if frames is HEARTBEAT:
                        yield frames
                    else:
                        yield first + frames
                        first = b""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts an open stream while it is entered."""
        self._metrics.streams.inc()
        try:
            yield
        finally:
            self._metrics.streams.dec()

    async def _read(self, feed: Feed, after: int) -> AsyncGenerator[bytes, None]:
        await feed.begun.wait()
        waited = False
        while not self.draining.is_set():
            changed = feed.changed
            if after < feed.start:
                rows = await feed.page(after)
                for first in range(0, len(rows), ENCODED_AT_ONCE):
                    part = piece(feed.execution_id, rows[first : first + ENCODED_AT_ONCE])
                    yield part.after(0)
                    await asyncio.sleep(0)
                if rows:
                    after = rows[-1].seq
                    if any(row.type == LAST_EVENT for row in rows):
                        return
                    waited = False
                    continue
            elif (found := feed.after(after)) is not None:
                await feed.turn()
                yield found.after(after)
                after = found.last
                waited = False
                continue
            elif feed.failure is not None:
                raise feed.failure
            elif feed.has_ended:
                return
            if waited:
                yield HEARTBEAT
            # Others wait for the same future: a reader that leaves must not cancel it.
            await asyncio.shield(changed)
            waited = True

    def fed(
        self, execution_id: ExecutionId, after: int | None = None
    ) -> AbstractAsyncContextManager[Feed]:
        """The feed of an execution, while it is read; see `Feed`."""
        return shared(self._feeds, execution_id, lambda: Feed(self, execution_id, after))
