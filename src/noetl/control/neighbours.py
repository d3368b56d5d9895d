"""Living with other servers on the same database: hearing of what they did, telling what we did.

What they write makes what we have in memory old, ends executions that somebody waits for here,
opens commands for our workers and closes commands that our workers run. News tell of it at once,
but of open commands only when our own workers have not taken them after a moment. A look once a
second finds whatever the news did not bring. If news say that they do not say all, we look at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from noetl.control.clock import SharedClock
from noetl.control.membership import BEAT_SECONDS, Membership
from noetl.control.orchestrator import Orchestrator
from noetl.control.wakeup import News, Wakeup
from noetl.errors import NoetlError, StoreError
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.base import Channel, Store, Write

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.9
"""Polling takes over within a second."""
OWN_SECONDS = 0.05
"""So long what is opened here is left to our own workers: with others it would cost a load."""
PAUSE_SECONDS = 0.1
"""Between two looks at least, however often news say that they do not say all."""
VERIFIED_AT_ONCE = 500
"""Busy executions in memory that a look compares with the store: with the others it goes on the
next time."""
LOOKS_REMEMBERED = 30


class Neighbours:
    """The others, as this process sees them."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        store: Store,
        channel: Channel,
        clock: SharedClock,
        membership: Membership,
        name: str,
    ) -> None:
        self._orchestrator = orchestrator
        self._store = store
        self._clock = clock
        self._membership = membership
        self._wakeup = Wakeup(channel, name, self.hear)
        self._looks = 0
        self._missed = asyncio.Event()
        """Others wrote something and did not say what."""
        self._opened: set[str] = set()
        """Pools in which we opened commands a moment ago."""
        self._seen: dict[ExecutionId, int] = {}
        """What we took notice of, so that waiting executions are not read every second."""
        self.on_triggers: Callable[[], None] | None = None
        """Who wants to know that others have changed schedules."""
        orchestrator.commits.on_stored = self._tell
        orchestrator.dispatch.on_stop = self._tell_stop
        orchestrator.dispatch.on_pause = self._tell_pause

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wakeup.send())
            group.create_task(self._wakeup.listen())
            group.create_task(self._keep_looking())
            group.create_task(self._keep_beating())

    async def flush(self) -> None:
        """Say what has not been said yet."""
        await self._wakeup.flush()

    def _tell(self, writes: list[Write]) -> None:
        if self._membership.is_alone:
            return
        self._wakeup.tell(writes)
        for pool in {
            new.command.pool for write in writes for new in write.commands if new.worker_id is None
        }:
            if not self._orchestrator.dispatch.has_workers(pool, self._clock.now()):
                self._tell_open(pool)
            elif pool not in self._opened:
                self._opened.add(pool)
                asyncio.get_running_loop().call_later(OWN_SECONDS, self._tell_left, pool)

    def _tell_left(self, pool: str) -> None:
        """Our own workers have had their time: what they have left is for everybody."""
        self._opened.discard(pool)
        if self._orchestrator.dispatch.backlog.get(pool, 0):
            self._tell_open(pool)

    def _tell_open(self, pool: str) -> None:
        self._wakeup.tell_open(pool, self._orchestrator.dispatch.turns.served(pool))

    def tell_triggers(self) -> None:
        """A schedule has changed here."""
        if not self._membership.is_alone:
            self._wakeup.tell_triggers()

    def _tell_stop(self, worker_id: str, command_id: CommandId) -> None:
        if not self._membership.is_alone:
            self._wakeup.tell_stop(worker_id, command_id)

    def _tell_pause(self, worker_id: str, command_id: CommandId) -> None:
        if not self._membership.is_alone:
            self._wakeup.tell_pause(worker_id, command_id)

    async def hear(self, news: News) -> None:
        """Take notice of what others wrote."""
        orchestrator = self._orchestrator
        moved = {
            execution_id
            for execution_id, seq in news.executions.items()
            if orchestrator.moved_elsewhere(execution_id, seq)
        }
        for pool, turn in news.turns.items():
            orchestrator.dispatch.turns.serve(pool, turn)
        for pool in news.pools:
            orchestrator.dispatch.wake(pool)
        if news.timers:
            orchestrator.timer_changed.set()
        if (news.triggers or news.dropped) and self.on_triggers is not None:
            self.on_triggers()
        for worker_id, commands in news.stops.items():
            if orchestrator.dispatch.has_asked(worker_id):
                orchestrator.dispatch.stop(worker_id, commands)
        for worker_id, commands in news.pauses.items():
            if orchestrator.dispatch.has_asked(worker_id):
                orchestrator.dispatch.pause(worker_id, commands)
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
        still_open = await self._store.holders(ours)
        for command_id in ours:
            if command_id not in still_open:
                self._orchestrator.dispatch.close(command_id, tell=True)

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep(PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS - PAUSE_SECONDS):
                    await self._missed.wait()
            has_missed = self._missed.is_set()
            self._missed.clear()
            try:
                await self.look(None if has_missed else VERIFIED_AT_ONCE)
            except NoetlError as error:
                logger.warning("the database cannot be looked at just now: %s", error)
                await self._clock.sleep(LOOK_SECONDS)
                self._missed.set()

    async def look(self, verified: int | None = VERIFIED_AT_ONCE) -> None:
        """Find what news should have brought: for those who wait for something here, for workers
        that run what is closed, and for what is in memory as if work on it went on here.

        Of the latter for so many, or for all.
        """
        orchestrator = self._orchestrator
        awaited = orchestrator.audience.executions()
        doubtful = orchestrator.busy(verified)
        heads = await self._store.heads(awaited.union(doubtful)) if awaited or doubtful else {}
        if self._looks % LOOKS_REMEMBERED == 0:
            self._seen.clear()
        self._looks += 1
        changed = {
            one: seq
            for one, seq in heads.items()
            if (one in awaited and self._seen.get(one) != seq) or orchestrator.is_behind(one, seq)
        }
        waiting = orchestrator.dispatch.waiting_pools()
        turns: dict[str, int] = {}
        if waiting or not self._membership.is_alone:
            turns = await self._store.free_pools()
        await self.hear(News(executions=changed, pools=turns.keys() & waiting, turns=turns))
        await self._stop_closed(orchestrator.dispatch.held)

    async def _keep_beating(self) -> None:
        while True:
            try:
                await self._clock.follow(self._store.time)
                await self._membership.beat()
            except NoetlError as error:
                logger.warning("we cannot say that we are there: %s", error)
            await self._clock.sleep(BEAT_SECONDS)
