"""What servers on one database tell each other, so that nobody waits for the next look.

News only make things sooner. Whoever misses all of them looks once a second and finds the same,
and nothing is decided on a state that is not the stored one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from noetl.errors import StoreError
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.base import Channel, Write

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.005
"""Between two messages at least: what happens meanwhile travels together."""
RECONNECT_SECONDS = 1.0
FLUSH_SECONDS = 1.0
EXECUTIONS_MAX = 120
STOPS_MAX = 50
"""A message of PostgreSQL holds 8 000 bytes. Executions that do not fit are not named, and the
message says so. Commands to stop that do not fit are found by looking, or when leases are renewed.
"""


class News(msgspec.Struct, omit_defaults=True):
    """What was written."""

    sender: str = ""
    executions: dict[ExecutionId, int] = {}
    """Where their logs end now."""
    dropped: bool = False
    """More executions were written than are named."""
    pools: set[str] = set()
    """Where commands wait for a worker."""
    turns: dict[str, int] = {}
    """How far the sender has come in serving pools."""
    timers: bool = False
    """Some were set."""
    triggers: bool = False
    """A schedule has changed."""
    stops: dict[str, set[CommandId]] = {}
    """By worker, commands that it should stop: it may ask another server than ours for them."""
    pauses: dict[str, set[CommandId]] = {}
    """Likewise, commands under which it should begin nothing more."""

    def add(self, writes: Iterable[Write]) -> None:
        for write in writes:
            if write.execution_id in self.executions or len(self.executions) < EXECUTIONS_MAX:
                self.executions[write.execution_id] = write.seq_after
            else:
                self.dropped = True
            self.timers = self.timers or bool(write.timers)


Hear = Callable[[News], Awaitable[None]]


class Wakeup:
    """The line to the others. `name` tells our own words from theirs."""

    def __init__(self, channel: Channel, name: str, hear: Hear) -> None:
        self._channel = channel
        self._name = name
        self._hear = hear
        self._untold = News(sender=name)
        self._something = asyncio.Event()

    def tell(self, writes: Iterable[Write]) -> None:
        """Let the others know soon."""
        self._untold.add(writes)
        self._something.set()

    def tell_open(self, pool: str, turn: int) -> None:
        """Let the others know soon that commands wait in a pool, and which turn we serve."""
        self._untold.pools.add(pool)
        self._untold.turns[pool] = turn
        self._something.set()

    def tell_triggers(self) -> None:
        """Let the others know soon that a schedule has changed."""
        self._untold.triggers = True
        self._something.set()

    def tell_stop(self, worker_id: str, command_id: CommandId) -> None:
        """Let the others know soon what a worker should stop."""
        if sum(map(len, self._untold.stops.values())) < STOPS_MAX:
            self._untold.stops.setdefault(worker_id, set()).add(command_id)
            self._something.set()

    def tell_pause(self, worker_id: str, command_id: CommandId) -> None:
        """Let the others know soon what a worker should pause; it is told again until it does."""
        if sum(map(len, self._untold.pauses.values())) < STOPS_MAX:
            self._untold.pauses.setdefault(worker_id, set()).add(command_id)
            self._something.set()

    async def send(self) -> None:
        """Pass on what was told, for ever; what cannot be passed on is dropped."""
        reached = True
        while True:
            await self._something.wait()
            self._something.clear()
            news, self._untold = self._untold, News(sender=self._name)
            try:
                await self._channel.send(msgspec.json.encode(news).decode())
                reached = True
            except StoreError as error:
                if reached:  # once: it may take long
                    logger.warning("other servers are not told just now: %s", error)
                reached = False
            await asyncio.sleep(PAUSE_SECONDS)

    async def flush(self) -> None:
        """Pass on at once what was told and not passed on yet; if it takes long, leave it."""
        if not self._something.is_set():
            return
        self._something.clear()
        news, self._untold = self._untold, News(sender=self._name)
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._channel.send(msgspec.json.encode(news).decode())
        except (StoreError, TimeoutError) as error:
            logger.warning("other servers are not told: %s", error or "no answer")

    async def listen(self) -> None:
        """Hear what the others say, for ever."""
        heard = True
        while True:
            try:
                async for text in self._channel.messages():
                    heard = True
                    news = _read(text)
                    if news is not None and news.sender != self._name:
                        await self._hear(news)
            except StoreError as error:
                if heard:  # once: it may take long
                    logger.warning("other servers cannot be heard just now: %s", error)
                heard = False
                await self._hear(News(dropped=True))
            await asyncio.sleep(RECONNECT_SECONDS)


def _read(text: str) -> News | None:
    """None: not in our words. Servers of another release may be on the same database."""
    try:
        return msgspec.json.decode(text, type=News)
    except msgspec.DecodeError as error:
        logger.warning("a message of another server is not understood: %s", error)
        return None
