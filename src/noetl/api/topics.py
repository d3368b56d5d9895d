"""One event stream for a whole browser: several topics over one connection.

    executions          rows of the list that have changed
    execution:ID        the events of one execution, as in its own stream
    inbox               how many forms wait
    workers             pools, their workers and queues

Messages are `event: TOPIC` with JSON data. A message is read and encoded once for all readers.
After each batch comes `event: position`, whose id holds the position in each execution; sent back
as `Last-Event-ID`, it resumes the stream there. A reader that falls too far behind is not sent what
it missed: `event: reset` names the topic, and the reader loads it again. Changed rows are not kept
for a broken stream, so a resumed stream begins with such a `reset`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.api.stream import (
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    PAGE_BYTES,
    RETRY,
    Feed,
    Shared,
    Streams,
    piece,
    shared,
)
from noetl.control import documents
from noetl.control.records import no_execution
from noetl.errors import BadRequest
from noetl.model.execution_query import Condition, Term, Wanted
from noetl.model.ids import ExecutionId
from noetl.model.spelling import did_you_mean

if TYPE_CHECKING:
    from noetl.control.clock import Clock
    from noetl.control.desk import Desk
    from noetl.control.watchers import Watchers
    from noetl.store.records import Records

TOPICS = ("executions", "inbox", "workers")
OF_EXECUTION = "execution:"
TOPICS_MAX = 50
PAUSE_SECONDS = 0.25
"""Pause between two batches: changes in the meantime are sent together."""
INBOX_SECONDS = 1.0
WORKERS_SECONDS = 2.0
ROWS_MAX = 100
"""Rows in one message; if there are more, `more` is true and the reader loads the list again."""
RESUMED_MAX = 5000
"""How many missed events are still sent; beyond that the reader starts over."""
KEPT = 40
"""Messages of a topic kept for readers that are slightly behind."""


def frame(topic: str, body: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (topic.encode(), msgspec.json.encode(body))


class Board(Shared):
    """The last messages of one topic."""

    def __init__(self, topic: str, next_message: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self._topic = topic
        self._next = next_message
        self.is_state = topic != "executions"
        """Each message replaces the one before; otherwise every message counts."""
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=1 if self.is_state else KEPT)
        self.version = 0
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                said = await self._next()
                self.version += 1
                self._kept.append((self.version, frame(self._topic, said)))
                self.tell()
        except Exception as error:  # noqa: BLE001  its readers raise it
            self.failure = error
            self.tell()

    def after(self, version: int) -> bytes:
        """The messages since then; a `reset` if they are no longer kept."""
        if version == self.version:
            return b""
        oldest = self._kept[0][0]
        if version + 1 < oldest and not self.is_state:
            return frame("reset", {"topic": self._topic})
        return b"".join(said for number, said in self._kept if number > version)


NOWHERE = "-"
"""The position of a stream that reads no execution."""


def position_of(last: str | None) -> dict[ExecutionId, int] | None:
    """The parsed `Last-Event-ID`; None if there is none. Raises BadRequest."""
    if not last:
        return None
    found: dict[ExecutionId, int] = {}
    for part in last.split(",") if last != NOWHERE else ():
        execution_id, sign, seq = part.partition("=")
        if not (sign and seq.isascii() and seq.isdecimal() and len(seq) < 19):
            raise BadRequest("`Last-Event-ID` is the `id` of the last `position` that was read.")
        found[execution_id] = int(seq)
    return found


class Topics:
    """The event streams of browsers."""

    def __init__(
        self, records: Records, streams: Streams, watchers: Watchers, desk: Desk, clock: Clock
    ) -> None:
        self._records = records
        self._streams = streams
        self._watchers = watchers
        self._desk = desk
        self._clock = clock
        self._boards: dict[str, Board] = {}

    async def chosen(self, written: Sequence[str]) -> list[str]:
        """Parse and check the topics. Raises BadRequest and NotFound."""
        topics = list(dict.fromkeys(one for text in written for one in text.split(",") if one))
        if not topics or len(topics) > TOPICS_MAX:
            raise BadRequest(f"`topics` names 1 to {TOPICS_MAX} topics, e.g. executions,inbox.")
        for topic in topics:
            if topic.startswith(OF_EXECUTION):
                execution_id = topic.removeprefix(OF_EXECUTION)
                if await self._records.summary(execution_id) is None:
                    raise no_execution(execution_id)
            elif topic not in TOPICS:
                hint = did_you_mean(topic, TOPICS)
                known = f" The topics are {', '.join(TOPICS)} and execution:ID."
                raise BadRequest(f'there is no topic "{topic[:80]}".{hint or known}')
        return topics

    async def frames(
        self, topics: Sequence[str], place: dict[ExecutionId, int] | None
    ) -> AsyncGenerator[bytes, None]:
        """The messages of these topics, until the server drains or the reader leaves. `place` is
        where a resumed stream continues.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self._streams.counted())
            readers: list[_EventReader | _BoardReader] = []
            for topic in topics:
                if topic.startswith(OF_EXECUTION):
                    execution_id = topic.removeprefix(OF_EXECUTION)
                    feed = await stack.enter_async_context(self._streams.fed(execution_id))
                    await feed.begun.wait()
                    seq = (place or {}).get(execution_id, feed.end)
                    readers.append(_EventReader(topic, feed, seq))
                else:
                    board = await stack.enter_async_context(self._board(topic))
                    readers.append(_BoardReader(board))
            followed = [one for one in readers if isinstance(one, _EventReader)]
            yield RETRY + _position(followed)
            if place is not None and "executions" in topics:
                yield frame("reset", {"topic": "executions"})
            draining = asyncio.ensure_future(self._streams.draining.wait())
            stack.callback(draining.cancel)
            waited = False
            while not draining.done():
                # Set up before reading, so that later changes wake us.
                waits: list[asyncio.Future[Any]] = [draining]
                waits += [one.changed for one in readers if one.changed is not None]
                said, has_said = b"", False
                for one in readers:
                    said += await one.next()
                    if len(said) > PAGE_BYTES:
                        # A slow reader holds one page, however many topics have one for it.
                        yield said
                        said, has_said = b"", True
                if said or has_said:
                    yield said + _position(followed)
                    await asyncio.wait([draining], timeout=PAUSE_SECONDS)
                    waited = False
                    continue
                if waited:
                    yield HEARTBEAT
                await asyncio.wait(
                    waits, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                waited = True

    # --- Messages of the boards ---

    def _board(self, topic: str) -> AbstractAsyncContextManager[Board]:
        said = {"executions": self._rows, "inbox": self._inbox, "workers": self._workers}
        return shared(self._boards, topic, lambda: Board(topic, said[topic]().__anext__))

    async def _rows(self) -> AsyncGenerator[dict[str, Any], None]:
        """Rows of executions that have changed."""
        with self._watchers.all() as changed:
            while True:
                await changed.signal.wait()
                await asyncio.sleep(PAUSE_SECONDS)
                ids = changed.take()
                named: Wanted = (
                    Term(tuple(Condition("exact_id", one) for one in sorted(ids)[:ROWS_MAX])),
                )
                rows = await self._records.summaries(named, limit=ROWS_MAX)
                yield {
                    "executions": [documents.summary(row) for row in rows],
                    "more": len(ids) > ROWS_MAX,
                }

    async def _inbox(self) -> AsyncGenerator[dict[str, Any], None]:
        """In how many executions a form waits, whenever other forms may wait than before.

        The number alone would not tell: one form may have come where another one went.
        """
        last = -1
        ids: set[ExecutionId] = set()
        with self._watchers.all() as changed:
            while True:
                total = await self._desk.asking()
                if total != last or await self._desk.asks_any(ids):
                    last = total
                    yield {"total": total}
                await changed.signal.wait()
                await asyncio.sleep(INBOX_SECONDS)
                ids = changed.take()

    async def _workers(self) -> AsyncGenerator[dict[str, Any], None]:
        """Pools and queues, whenever they change."""
        last: Any = None
        while True:
            found = (await self._desk.queues(self._clock.now())).queues
            # A waiting time grows by itself; that is no change.
            now = [msgspec.structs.replace(one, oldest_seconds=None) for one in found]
            if now != last:
                last = now
                yield {"queues": found}
            await asyncio.sleep(WORKERS_SECONDS)


class _BoardReader:
    def __init__(self, board: Board) -> None:
        self._board = board
        # A topic with only a current value is sent at once.
        self._version = 0 if board.is_state else board.version

    @property
    def changed(self) -> asyncio.Future[None]:
        """Resolved when there is more."""
        return self._board.changed

    async def next(self) -> bytes:
        """The messages available now."""
        if self._board.failure is not None:
            raise self._board.failure
        said = self._board.after(self._version)
        self._version = self._board.version
        return said


class _EventReader:
    def __init__(self, topic: str, feed: Feed, seq: int) -> None:
        self._topic = topic
        self._feed = feed
        self.execution_id = feed.execution_id
        self.seq = seq

    @property
    def changed(self) -> asyncio.Future[None] | None:
        """Resolved when there is more; None if nothing more can come."""
        return None if self._feed.has_ended else self._feed.changed

    async def next(self) -> bytes:
        """The messages available now."""
        feed = self._feed
        if feed.failure is not None:
            raise feed.failure
        if self.seq < feed.start:
            if feed.end - self.seq > RESUMED_MAX:
                self.seq = feed.end
                return frame("reset", {"topic": self._topic, "seq": self.seq})
            rows = await feed.page(self.seq, RESUMED_MAX)
            if not rows:
                return b""
            self.seq = rows[-1].seq
            return piece(self.execution_id, rows).named_after(0)
        said = []
        while (found := feed.after(self.seq)) is not None:
            said.append(found.named_after(self.seq))
            self.seq = found.last
        return b"".join(said)


def _position(readers: Sequence[_EventReader]) -> bytes:
    """A reader's position in each execution that it reads."""
    seqs = {one.execution_id: one.seq for one in readers}
    text = ",".join(f"{execution_id}={seq}" for execution_id, seq in seqs.items()) or NOWHERE
    return b"id: %b\n" % text.encode() + frame("position", seqs)
