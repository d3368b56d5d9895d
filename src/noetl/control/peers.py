"""Peers: other servers on the same database.

*Membership.* Every server says every two seconds that it runs. Of those that do, exactly one looks
after an execution: it fires its timers and notices its lapsed leases. Any server may do that at any
time, because deciding twice changes nothing; sharing it out only saves each the work of all
(`Membership`).

*News.* A write of one server makes the memory of another old, ends executions that a caller waits
for there, opens commands for its workers, and closes commands that they run. News tell of it at
once. Open commands are told of only if the sender's own workers have not taken them after a moment,
because another server would have to load the state.

*Looks.* News only make things sooner, and may be lost. A look once a second finds what they did not
bring; if news say that they are incomplete, the look comes at once. Nothing is decided on a state
that is not the stored one: the commit refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from noetl.control.clock import Clock, SharedClock, heard
from noetl.control.leases import Order
from noetl.control.orchestrator import Orchestrator
from noetl.errors import NoetlError, StoreError
from noetl.model.ids import CommandId, ExecutionId, derive
from noetl.store.base import Channel, Runtime, Runtimes
from noetl.store.log import Log, Write
from noetl.store.queue import Queue

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
GONE_SECONDS = 7.0
"""A server that has been silent for this long counts as gone."""
LEAVE_SECONDS = 2.0
MESSAGE_PAUSE_SECONDS = 0.005
"""Between two messages at least: what happens meanwhile travels together."""
RECONNECT_SECONDS = 1.0
FLUSH_SECONDS = 1.0
EXECUTIONS_MAX = 120
ORDERS_MAX = 50
"""A message of PostgreSQL holds 8 000 bytes. Executions that do not fit are not named, and the
message says so. Commands to stop that do not fit are found by looking, or when leases are renewed;
what is to pause is told again until it does.
"""
LOOK_SECONDS = 0.9
"""Polling takes over within a second."""
OWN_SECONDS = 0.05
"""For this long, commands opened here are left to our own workers: another server would have to
load the execution first."""
PAUSE_SECONDS = 0.1
"""Shortest pause between two looks, however often news are incomplete."""
VERIFIED_AT_ONCE = 500
"""Busy executions in memory that a look compares with the store: with the others it goes on the
next time."""
LOOKS_REMEMBERED = 30


class Membership:
    """The servers on one database, as far as this process knows. `me` is None for a visitor."""

    def __init__(self, runtimes: Runtimes, clock: Clock, me: Runtime | None) -> None:
        self._runtimes = runtimes
        self._clock = clock
        self._me = me
        self._servers: list[str] = [me.name] if me is not None else []

    @property
    def is_alone(self) -> bool:
        """No other server is known."""
        return not set(self._servers) - ({self._me.name} if self._me is not None else set())

    def owns(self, execution_id: ExecutionId) -> bool:
        """Whether it is for this server to look after; for each one exactly one server says so.

        The server with the highest number: when one comes or goes, only its own share moves.
        """
        if self._me is None or len(self._servers) < 2:
            return True
        return self._me.name == max(self._servers, key=lambda name: derive(name, execution_id))

    async def beat(self) -> None:
        """Say that we are there, and see who else is."""
        now = self._clock.now()
        if self._me is not None:
            await self._runtimes.beat(msgspec.structs.replace(self._me, seen_at=now))
        servers = await self._runtimes.all(kind="server", since=now - GONE_SECONDS)
        self._servers = [server.name for server in servers]

    async def leave(self) -> None:
        """Say that we are gone. If that cannot be said, others notice it by our silence."""
        if self._me is None:
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._runtimes.leave(self._me.name)
        except (StoreError, TimeoutError) as error:
            logger.warning("this server ends, and could not say so: %s", error or "no answer")


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
    """How far the sender has come in serving queues."""
    timers: bool = False
    """Some were set."""
    triggers: bool = False
    """A schedule has changed."""
    documents: bool = False
    """One was registered."""
    stops: dict[str, set[CommandId]] = {}
    """By worker, commands that it should stop: it may ask another server than ours for them."""
    pauses: dict[str, set[CommandId]] = {}
    """Likewise, commands under which it should begin nothing more."""

    @property
    def orders(self) -> dict[Order, dict[str, set[CommandId]]]:
        return {"stop": self.stops, "pause": self.pauses}

    def add(self, writes: Iterable[Write]) -> None:
        for write in writes:
            if write.execution_id in self.executions or len(self.executions) < EXECUTIONS_MAX:
                self.executions[write.execution_id] = write.seq_after
            else:
                self.dropped = True
            self.timers = self.timers or bool(write.timers)


class Peers:
    """The other servers, as this process sees them."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        log: Log,
        queue: Queue,
        channel: Channel,
        clock: SharedClock,
        membership: Membership,
        name: str,
        *,
        on_triggers: Callable[[], None] = lambda: None,
        on_document: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` tells our own news from theirs. The last two are called when another server has
        changed a trigger, or registered a document or stored a credential.
        """
        self._orchestrator = orchestrator
        self._log = log
        self._queue = queue
        self._channel = channel
        self._clock = clock
        self._membership = membership
        self._name = name
        self._untold = News(sender=name)
        self._has_news = asyncio.Event()
        self._opened: set[str] = set()
        """Pools in which we opened commands a moment ago."""
        self._looks = 0
        self._missed = asyncio.Event()
        """Others wrote something and did not say what."""
        self._seen: dict[ExecutionId, int] = {}
        """What we took notice of, so that waiting executions are not read every second."""
        self._on_triggers = on_triggers
        self._on_document = on_document
        orchestrator.commits.on_stored = self._tell
        orchestrator.dispatch.on_order = self._tell_order

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_sending())
            group.create_task(self._keep_listening())
            group.create_task(self._keep_looking())
            group.create_task(self._keep_beating())

    # --- What we tell ---

    def _tell(self, writes: list[Write]) -> None:
        """This was stored."""
        if self._membership.is_alone:
            return
        self._untold.add(writes)
        self._has_news.set()
        for queue in {
            new.command.pool for write in writes for new in write.commands if new.worker_id is None
        }:
            if not self._orchestrator.dispatch.has_workers(queue, self._clock.now()):
                self._tell_open(queue)
            elif queue not in self._opened:
                self._opened.add(queue)
                asyncio.get_running_loop().call_later(OWN_SECONDS, self._tell_left, queue)

    def _tell_left(self, queue: str) -> None:
        """Our own workers have had their time: what they have left is for everybody."""
        self._opened.discard(queue)
        if self._orchestrator.dispatch.backlog.get(queue, 0):
            self._tell_open(queue)

    def _tell_open(self, queue: str) -> None:
        """Commands wait in a queue, and this is the turn that we serve."""
        self._untold.pools.add(queue)
        self._untold.turns[queue] = self._orchestrator.dispatch.turns.served(queue)
        self._has_news.set()

    def _tell_order(self, worker_id: str, order: Order, command_id: CommandId) -> None:
        orders = self._untold.orders[order]
        if not self._membership.is_alone and sum(map(len, orders.values())) < ORDERS_MAX:
            orders.setdefault(worker_id, set()).add(command_id)
            self._has_news.set()

    def tell_triggers(self) -> None:
        """A trigger has changed here. Also a server that began a moment ago should hear of it."""
        self._untold.triggers = True
        self._has_news.set()

    def tell_document(self) -> None:
        """A document was registered here, or a credential stored."""
        self._untold.documents = True
        self._has_news.set()

    async def _keep_sending(self) -> None:
        """Send news as they come; what cannot be sent is dropped."""
        reached = True
        while True:
            await self._has_news.wait()
            try:
                await self._send()
                reached = True
            except StoreError as error:
                if reached:  # once: it may take long
                    logger.warning("other servers are not told just now: %s", error)
                reached = False
            await asyncio.sleep(MESSAGE_PAUSE_SECONDS)

    async def _send(self) -> None:
        self._has_news.clear()
        news, self._untold = self._untold, News(sender=self._name)
        await self._channel.send(msgspec.json.encode(news).decode())

    async def flush(self) -> None:
        """Send at once what has not been sent yet; if it takes long, leave it."""
        if not self._has_news.is_set():
            return
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._send()
        except (StoreError, TimeoutError) as error:
            logger.warning("other servers are not told: %s", error or "no answer")

    # --- What we hear ---

    async def _keep_listening(self) -> None:
        heard = True
        while True:
            try:
                async for text in self._channel.messages():
                    heard = True
                    try:
                        news = msgspec.json.decode(text, type=News)
                    except msgspec.DecodeError as error:
                        # Servers of another release may be on the same database.
                        logger.warning("a message of another server is not understood: %s", error)
                        continue
                    if news.sender != self._name:
                        await self.hear(news)
            except StoreError as error:
                if heard:  # once: it may take long
                    logger.warning("other servers cannot be heard just now: %s", error)
                heard = False
                await self.hear(News(dropped=True, triggers=True, documents=True))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def hear(self, news: News) -> None:
        """Take notice of what others wrote."""
        orchestrator = self._orchestrator
        moved = {
            execution_id
            for execution_id, seq in news.executions.items()
            if orchestrator.moved_elsewhere(execution_id, seq)
        }
        for queue, turn in news.turns.items():
            orchestrator.dispatch.turns.serve(queue, turn)
        for queue in news.pools:
            orchestrator.dispatch.wake(queue)
        if news.timers:
            orchestrator.timer_changed.set()
        if news.triggers:
            self._on_triggers()
        if news.documents:
            self._on_document()
        for order, told in news.orders.items():
            for worker_id, commands in told.items():
                if orchestrator.dispatch.has_asked(worker_id):
                    orchestrator.dispatch.order(worker_id, order, commands)
        self._seen.update({execution_id: news.executions[execution_id] for execution_id in moved})
        if news.dropped:
            self._missed.set()
        held = orchestrator.dispatch.held
        try:
            await self._stop_closed([one for one in held if held[one].execution_id in moved])
        except StoreError as error:
            self._missed.set()
            logger.warning("closed commands are not found just now: %s", error)

    async def _stop_closed(self, commands: Iterable[CommandId]) -> None:
        """Others may have closed these, which workers of ours run: tell them to stop."""
        ours = list(commands)
        if not ours:
            return
        still_open = await self._queue.holders(ours)
        for command_id in ours:
            if command_id not in still_open:
                self._orchestrator.dispatch.close(command_id, tell=True)

    # --- What we find by looking ---

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep(PAUSE_SECONDS)
            has_missed = await heard(self._missed, LOOK_SECONDS - PAUSE_SECONDS)
            self._missed.clear()
            try:
                await self.look(None if has_missed else VERIFIED_AT_ONCE)
            except NoetlError as error:
                logger.warning("the database could not be read: %s", error)
                await self._clock.sleep(LOOK_SECONDS)
                self._missed.set()

    async def look(self, verified: int | None = VERIFIED_AT_ONCE) -> None:
        """Find what news should have brought: of executions that somebody waits for here, of
        commands that our workers run and that are closed, and of executions that are in memory as
        busy: so many of these are `verified`, or all (None).
        """
        orchestrator, memory = self._orchestrator, self._orchestrator.memory
        awaited = orchestrator.watchers.executions()
        doubtful = memory.busy(verified)
        heads = await self._log.heads(awaited.union(doubtful)) if awaited or doubtful else {}
        if self._looks % LOOKS_REMEMBERED == 0:
            self._seen.clear()
        self._looks += 1
        changed = {
            one: seq
            for one, seq in heads.items()
            if (one in awaited and self._seen.get(one) != seq)
            or ((live := memory.find(one)) is not None and live.stored < seq)
        }
        waiting = orchestrator.dispatch.waiting_queues()
        turns: dict[str, int] = {}
        if waiting or not self._membership.is_alone:
            turns = await self._queue.free_pools()
        pools = {queue for queue in turns if orchestrator.dispatch.is_awaited(queue)}
        await self.hear(News(executions=changed, pools=pools, turns=turns))
        await self._stop_closed(orchestrator.dispatch.held)

    async def _keep_beating(self) -> None:
        while True:
            try:
                await self._clock.follow()
                await self._membership.beat()
            except NoetlError as error:
                logger.warning("we cannot say that we are there: %s", error)
            await self._clock.sleep(BEAT_SECONDS)
