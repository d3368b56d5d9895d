"""One test from its start to its end, which may never come: then it is stopped."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from noetl.model.net import Limits
from noetl.settings import Settings
from noetl.store.base import EventRow
from noetl.store.sqlite.store import SqliteStore
from noetl.tools.base import Tool
from noetl.tools.registry import tools
from noetl.tools.resources import ToolResources
from noetl.trials.model import Trial
from noetl.trials.playbooks import Playbooks, adapted
from noetl.trials.standing import StandIns
from noetl.trials.targets import Target, path_of, target
from noetl.trials.virtual import VirtualClock, VirtualLoop, VirtualSelector
from noetl.trials.world import World
from noetl.wiring import in_background, tool_resources

REAL_SECONDS_MAX = 120.0
"""How long a test may really take; only one that goes round for ever takes longer."""


class Surroundings(NamedTuple):
    """What all tests of a run share."""

    tools: Mapping[str, Tool]
    resources: ToolResources
    limits: Limits


@asynccontextmanager
async def surroundings(settings: Settings) -> AsyncIterator[Surroundings]:
    """To be entered in a VirtualLoop, once for all tests."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    resources = tool_resources(settings, settings.slots)
    try:
        yield Surroundings(tools(), resources, settings.limits)
    finally:
        with VirtualClock(loop.virtual).real_work():
            await resources.close()


class Story(NamedTuple):
    """What happened in a test."""

    execution: Mapping[str, Any]
    """The document of the execution."""
    events: Sequence[EventRow]
    calls: Counter[Target]
    elapsed: float
    complaints: Sequence[str]
    """Why the test itself could not be carried out."""


async def run_trial(trial: Trial, playbooks: Playbooks, around: Surroundings) -> Story:
    """Run one test in a world of its own. To be called in a VirtualLoop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    nets, clock, stop = playbooks.nets, VirtualClock(loop.virtual), _Stop(loop)
    answers = {target(name, nets): answer for name, answer in (trial.stand_ins or {}).items()}
    tested = adapted(playbooks, answers.keys(), trial.keychain or {})
    store = await SqliteStore.open(":memory:", threads=False)
    try:
        world = World(store, clock, around.limits)

        async def called_in(execution_id: str) -> str:
            return path_of((await world.orchestrator.state(execution_id)).path, nets)

        stand_ins = StandIns(answers, clock, called_in, stop.complain)
        async with world.at_work(stand_ins.tools(around.tools), around.resources):
            execution_id = await world.start(tested, trial.workload or {})
            async with in_background(world.send(execution_id, trial.signals or [], stop.complain)):
                await stop.or_end(world.orchestrator.wait_for_end(execution_id))
            return Story(
                execution=await world.executions.document(execution_id),
                events=await world.events(execution_id),
                calls=stand_ins.calls,
                elapsed=clock.elapsed,
                complaints=list(stop.complaints.values()),
            )
    finally:
        await store.close()


class _Stop:
    """Ends a test that does not end by itself: at rest, out of real time, or not carried out."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._virtual: VirtualSelector = loop.virtual
        self._stopped: asyncio.Future[None] = loop.create_future()
        self.complaints: dict[object, str] = {}
        """By what they are about: calls that go on at the same time would all say the same."""

    def complain(self, about: object, complaint: str) -> None:
        self.complaints.setdefault(about, complaint)
        self._stop()

    async def or_end(self, end: Coroutine[Any, Any, object]) -> None:
        """Until the end comes, or will not come."""
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
            f"it has not ended after {REAL_SECONDS_MAX:.0f} s of real time, so it may go round for"
            " ever. Let its stand-ins say something that ends it.",
        )
