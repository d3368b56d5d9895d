"""Living with other servers on the same database: hearing of what they did, telling what we did.

What they write makes what we have in memory old, ends executions that somebody waits for here,
opens commands for our workers and closes commands that our workers run. News tell of it at once;
a look once a second finds whatever the news did not bring.
"""

from __future__ import annotations

import asyncio
import logging

from noetl.control.clock import SharedClock
from noetl.control.membership import BEAT_SECONDS, Membership
from noetl.control.orchestrator import Orchestrator
from noetl.control.wakeup import News, Wakeup
from noetl.errors import NoetlError
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.base import Channel, Store, Write

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.9
"""Polling takes over within a second."""
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
        self._seen: dict[ExecutionId, int] = {}
        """What we took notice of, so that waiting executions are not read every second."""
        orchestrator.on_stored = self._tell
        orchestrator.dispatch.on_stop = self._tell_stop
        orchestrator.dispatch.on_pause = self._tell_pause

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wakeup.send())
            group.create_task(self._wakeup.listen())
            group.create_task(self._keep_looking())
            group.create_task(self._keep_beating())

    def _tell(self, writes: list[Write]) -> None:
        if not self._membership.is_alone:
            self._wakeup.tell(writes)

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
        for pool in news.pools:
            orchestrator.dispatch.wake(pool)
        if news.timers:
            orchestrator.timer_changed.set()
        for worker_id, commands in news.stops.items():
            if orchestrator.dispatch.has_asked(worker_id):
                orchestrator.dispatch.stop(worker_id, commands)
        for worker_id, commands in news.pauses.items():
            if orchestrator.dispatch.has_asked(worker_id):
                orchestrator.dispatch.pause(worker_id, commands)
        await self._stop_closed(moved)
        self._seen.update({execution_id: news.executions[execution_id] for execution_id in moved})

    def _worked_on(self) -> set[ExecutionId]:
        """Executions that workers of ours work on."""
        return {held.execution_id for held in self._orchestrator.dispatch.held.values()}

    async def _stop_closed(self, moved: set[ExecutionId]) -> None:
        """Others may have closed commands that workers of ours run: tell them to stop."""
        dispatch = self._orchestrator.dispatch
        ours: dict[ExecutionId, list[CommandId]] = {}
        for command_id, held in dispatch.held.items():
            if held.execution_id in moved:
                ours.setdefault(held.execution_id, []).append(command_id)
        for execution_id, commands in ours.items():
            try:
                state = await self._orchestrator.state(execution_id)
            except NoetlError as error:
                # One that cannot be read must not keep us from hearing of the others.
                logger.warning("an execution cannot be read: %s", error)
                continue
            for command_id in commands:
                if command_id not in state.holders:
                    dispatch.close(command_id, tell=True)

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except NoetlError as error:
                logger.warning("the database cannot be looked at just now: %s", error)

    async def look(self) -> None:
        """Find what news should have brought, for those who wait for something here."""
        awaited = self._orchestrator.audience.executions() | self._worked_on()
        heads = await self._store.heads(awaited) if awaited else {}
        if self._looks % LOOKS_REMEMBERED == 0:
            self._seen.clear()
        self._looks += 1
        changed = {
            one: seq
            for one, seq in heads.items()
            if self._seen.get(one) != seq or self._orchestrator.is_behind(one, seq)
        }
        waiting = self._orchestrator.dispatch.waiting_pools()
        pools = await self._store.free_pools() & waiting if waiting else set()
        await self.hear(News(executions=changed, pools=pools))

    async def _keep_beating(self) -> None:
        while True:
            try:
                await self._clock.follow(self._store.time)
                await self._membership.beat()
            except NoetlError as error:
                logger.warning("we cannot say that we are there: %s", error)
            await self._clock.sleep(BEAT_SECONDS)
