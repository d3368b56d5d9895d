"""One test: a whole system on virtual time, the test in it, and what came of it.

Store, orchestrator and worker are the usual ones. A test that does not end by itself is stopped.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from noetl.configured import tool_resources
from noetl.control.catalog import Catalog
from noetl.control.clock import heard
from noetl.control.executions import Executions
from noetl.control.local import LocalControl
from noetl.control.orchestrator import Orchestrator
from noetl.dsl import Compiled
from noetl.errors import NoetlError
from noetl.model.commands import Lease
from noetl.model.duration import seconds
from noetl.model.events import Event, decode
from noetl.model.net import Limits, Net, digest
from noetl.model.outcome import TaskError
from noetl.model.signals import ADMIN
from noetl.settings import Settings
from noetl.store.base import Store
from noetl.store.log import EventRow
from noetl.store.sqlite.store import SqliteStore
from noetl.templates import Views
from noetl.tools.base import Tool
from noetl.tools.registry import tools
from noetl.tools.resources import ToolResources
from noetl.trials.clock import START, TICK, VirtualClock, VirtualLoop, VirtualSelector
from noetl.trials.files import Signal, Trial
from noetl.trials.playbooks import Playbooks, Target, adapted, path_of, target
from noetl.trials.stand_ins import StandIns, standing_in
from noetl.wiring import in_background
from noetl.worker.worker import Worker

BATCH = 1000


class _Patient(LocalControl):
    """Waits for commands without a time limit: a limit would make virtual time jump."""

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        return await super().lease(worker_id, pool=pool, want=want, wait=math.inf)


class World:
    """A whole system for one test, in a VirtualLoop."""

    def __init__(self, store: Store, start: float, around: Surroundings) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.store = store
        self.clock = VirtualClock(loop.virtual, start)
        self.stop = Stop(loop)
        self._resources = around.resources
        self.orchestrator = Orchestrator(
            store, self.clock, Views(around.tools.get), limits=around.limits, is_shared=False
        )
        self.executions = Executions(self.orchestrator, store, self.clock, _nothing_is_missing)

    @classmethod
    @asynccontextmanager
    async def opened(cls, around: Surroundings, start: float = START) -> AsyncIterator[World]:
        store = await SqliteStore.open(":memory:", threads=False)
        try:
            yield cls(store, start, around)
        finally:
            await store.close()

    @asynccontextmanager
    async def played(
        self, tools: Mapping[str, Tool], start: Callable[[], Awaitable[str]], signals: list[Signal]
    ) -> AsyncIterator[str]:
        """The id of the execution that `start` starts, when it has ended or was stopped."""
        worker = Worker(
            _Patient(self.orchestrator, self.store.bodies, self.store.credentials, _no_credential),
            tools,
            self._resources,
            worker_id="test",
            renew_every=math.inf,
            now=self.clock.now,
        )
        commits = self.orchestrator.commits
        async with in_background(commits.run(), self._fire_timers(), worker.run()):
            execution_id = await start()
            async with in_background(self._send(execution_id, signals)):
                await self.stop.or_end(self.orchestrator.wait_for_end(execution_id))
            yield execution_id

    async def start(self, playbooks: Playbooks, workload: dict[str, Any]) -> str:
        net = playbooks.net
        await self.orchestrator.programs.keep(net, digest(net))
        for text, child in playbooks.children.items():
            compiled = Compiled(net=child, digest=digest(child))
            await Catalog(self.store.catalog, lambda _, it=compiled: it, self.clock).register(text)
        return await self.executions.start(
            digest(net), net.path, None, workload, source=playbooks.source
        )

    async def below(self, document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The executions that errors of this one come from, and those of theirs, by id."""
        found: dict[str, Mapping[str, Any]] = {}
        ahead = [document]
        while ahead:
            one = ahead.pop()
            for error in (one["error"], *(step["error"] for step in one["steps"])):
                details = (error or {}).get("details")
                child = details.get("execution_id") if isinstance(details, dict) else None
                if isinstance(child, str) and child not in found:
                    found[child] = await self.executions.document(child)
                    ahead.append(found[child])
        return found

    async def _send(self, execution_id: str, signals: list[Signal]) -> None:
        """Send each signal when its time has come."""
        for signal in sorted(signals, key=_moment):
            await self.clock.sleep(_moment(signal) - self.clock.elapsed)
            try:
                await self.executions.signal(
                    execution_id, signal.name, signal.data, step=signal.step, roles=(ADMIN,)
                )
            except NoetlError as error:
                self.stop.complain(signal.name, f"the signal {signal.name} was refused: {error}")

    async def events(self, execution_id: str) -> list[EventRow]:
        """Everything that happened."""
        found: list[EventRow] = []
        while rows := await self.store.log.events(execution_id, after=len(found), limit=BATCH):
            found += rows
        return found

    async def _fire_timers(self) -> None:
        """As the control plane does, but without polling: no other server sets timers."""
        orchestrator, store, clock = self.orchestrator, self.store, self.clock
        while True:
            orchestrator.timer_changed.clear()
            due = await store.queue.due_timers(now=clock.now(), limit=BATCH)
            for execution_id, timer_id, _ in due:
                await orchestrator.fire(execution_id, timer_id)
            if due:
                continue
            following = await store.queue.next_timer()
            pause = math.inf if following is None else max(TICK, following - clock.now())
            await heard(orchestrator.timer_changed, pause)


def _moment(signal: Signal) -> float:
    return seconds(signal.after) or 0.0


async def _nothing_is_missing(net: Net) -> TaskError | None:
    return None


async def _no_credential(name: str) -> dict[str, Any] | None:
    return None


REAL_SECONDS_MAX = 120.0
"""Real time that a test may take; only one that loops for ever takes longer."""


class Surroundings(NamedTuple):
    """What all tests of a run share."""

    tools: Mapping[str, Tool]
    resources: ToolResources
    limits: Limits


@asynccontextmanager
async def surroundings(settings: Settings) -> AsyncIterator[Surroundings]:
    """Enter it once for all tests, in a VirtualLoop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    resources = tool_resources(settings, settings.slots)
    try:
        yield Surroundings(tools(), resources, settings.limits)
    finally:
        with loop.virtual.real_work():
            await resources.close()


class Story(NamedTuple):
    """What happened in a test."""

    execution: Mapping[str, Any]
    """The document of the execution."""
    below: Mapping[str, Mapping[str, Any]]
    """The documents of executions that it started and that failed, by id."""
    events: Sequence[EventRow]
    calls: Counter[Target]
    elapsed: float
    complaints: Sequence[str]
    """Why the test itself could not be carried out."""

    @property
    def facts(self) -> list[Event]:
        return [decode(row.body) for row in self.events]


async def run_trial(trial: Trial, playbooks: Playbooks, around: Surroundings) -> Story:
    """Run one test in a system of its own, in a VirtualLoop."""
    nets = playbooks.nets
    answers = {target(name, nets): answer for name, answer in (trial.stand_ins or {}).items()}
    tested = adapted(playbooks, answers.keys(), trial.keychain or {})
    async with World.opened(around) as world:

        async def called_in(execution_id: str) -> str:
            return path_of((await world.orchestrator.state(execution_id)).path, nets)

        stand_ins = StandIns(answers, world.clock, called_in, world.stop.complain)
        tools = standing_in(around.tools, stand_ins.call)
        start = partial(world.start, tested, trial.workload or {})
        async with world.played(tools, start, trial.signals or []) as execution_id:
            execution = await world.executions.document(execution_id)
            return Story(
                execution=execution,
                below=await world.below(execution),
                events=await world.events(execution_id),
                calls=stand_ins.calls,
                elapsed=world.clock.elapsed,
                complaints=list(world.stop.complaints.values()),
            )


class Stop:
    """Stops a test that does not end by itself: nothing is due, real time is up, or a complaint."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._virtual: VirtualSelector = loop.virtual
        self._stopped: asyncio.Future[None] = loop.create_future()
        self.complaints: dict[object, str] = {}
        """By subject: concurrent calls would all complain of the same thing."""

    def complain(self, about: object, complaint: str) -> None:
        self.complaints.setdefault(about, complaint)
        self._stop()

    async def or_end(self, end: Coroutine[Any, Any, object]) -> None:
        """Wait until the execution ends, or the test is stopped."""
        virtual = self._virtual
        virtual.on_rest, virtual.on_deadline = self._stop, self._out_of_time
        virtual.deadline = time.monotonic() + REAL_SECONDS_MAX
        waiting = asyncio.ensure_future(end)
        try:
            await asyncio.wait((waiting, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            virtual.deadline = math.inf
            waiting.cancel()

    def _stop(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _out_of_time(self) -> None:
        self.complain(
            "time",
            f"it has not ended after {REAL_SECONDS_MAX:.0f} s of real time, so it may loop for"
            " ever. Let its stand-ins give an answer that ends it.",
        )
