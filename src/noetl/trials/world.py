"""A whole system for one test: store, orchestrator and worker as always, by virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from noetl.control.catalog import Catalog
from noetl.control.executions import Executions
from noetl.control.local import LocalControl
from noetl.control.orchestrator import Orchestrator
from noetl.dsl import Compiled
from noetl.errors import NoetlError
from noetl.model.commands import Lease
from noetl.model.duration import seconds
from noetl.model.net import Limits, Net, digest
from noetl.model.outcome import TaskError
from noetl.store.base import EventRow, Store
from noetl.tools.base import Tool
from noetl.tools.resources import ToolResources
from noetl.trials.model import Signal
from noetl.trials.playbooks import Playbooks
from noetl.trials.virtual import TICK, VirtualClock
from noetl.wiring import in_background
from noetl.worker.worker import Worker

BATCH = 1000


class _Patient(LocalControl):
    """Waits for commands without ever looking at the clock, which would have to move for it."""

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        return await super().lease(worker_id, pool=pool, want=want, wait=math.inf)


class World:
    """A whole system for one test."""

    def __init__(self, store: Store, clock: VirtualClock, limits: Limits) -> None:
        self._store = store
        self._clock = clock
        self.orchestrator = Orchestrator(store, clock, limits=limits)
        self.executions = Executions(self.orchestrator, store, clock, _nothing_is_missing)

    @asynccontextmanager
    async def at_work(
        self, tools: Mapping[str, Tool], resources: ToolResources
    ) -> AsyncIterator[None]:
        worker = Worker(
            _Patient(self.orchestrator, self._store, _no_credential),
            tools,
            resources,
            worker_id="test",
            renew_every=math.inf,
            now=self._clock.now,
        )
        async with in_background(self.orchestrator.run(), self._fire_timers(), worker.run()):
            yield

    async def start(self, playbooks: Playbooks, workload: dict[str, Any]) -> str:
        net = playbooks.net
        await self.orchestrator.programs.keep(net, digest(net))
        for text, child in playbooks.children.items():
            await Catalog(self._store, _compiles_to(child), self._clock).register(text)
        return await self.executions.start(digest(net), net.path, None, workload)

    async def send(
        self, execution_id: str, signals: list[Signal], complain: Callable[[object, str], None]
    ) -> None:
        """Say each when its time has come."""
        for signal in sorted(signals, key=_moment):
            await self._clock.sleep(_moment(signal) - self._clock.elapsed)
            try:
                await self.executions.signal(
                    execution_id, signal.name, signal.data, step=signal.step
                )
            except NoetlError as error:
                complain(signal.name, f"the signal {signal.name} was refused: {error}")

    async def events(self, execution_id: str) -> list[EventRow]:
        """Everything that happened."""
        found: list[EventRow] = []
        while rows := await self._store.events(execution_id, after=len(found), limit=BATCH):
            found += rows
        return found

    async def _fire_timers(self) -> None:
        """As the control plane does it, but without a look now and then: nobody else sets any."""
        orchestrator, store, clock = self.orchestrator, self._store, self._clock
        while True:
            orchestrator.timer_changed.clear()
            due = await store.due_timers(now=clock.now(), limit=BATCH)
            for execution_id, timer_id, _ in due:
                await orchestrator.fire(execution_id, timer_id)
            if due:
                continue
            following = await store.next_timer()
            pause = math.inf if following is None else max(TICK, following - clock.now())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await orchestrator.timer_changed.wait()


def _moment(signal: Signal) -> float:
    return seconds(signal.after) or 0.0


def _compiles_to(net: Net) -> Callable[[str], Compiled]:
    return lambda _: Compiled(net=net, digest=digest(net))


async def _nothing_is_missing(net: Net) -> TaskError | None:
    return None


async def _no_credential(name: str) -> dict[str, Any] | None:
    return None
