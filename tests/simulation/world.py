"""A whole system in one seeded, single-threaded event loop with virtual time.

Real orchestrator, real workers, real SQLite (in memory, inline); only time and the network between
workers and control plane are ours. The seed decides every fault, so a failing seed fails again.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from noetl.control.jobs import merged
from noetl.control.local import LocalControl
from noetl.control.orchestrator import Orchestrator
from noetl.control.timekeeping import fire_timers, requeue_lapsed
from noetl.dsl import compile_text
from noetl.errors import LeaseLost, NoetlError
from noetl.model.commands import Answer, Lease, Report
from noetl.model.events import ExecutionRequested
from noetl.model.outcome import Outcome, failed, ok
from noetl.model.state import ExecutionState
from noetl.store.sqlite.store import SqliteStore
from noetl.tools.base import Tool, ToolConfig, ToolContext
from noetl.tools.registry import tools
from noetl.tools.running.resources import ToolResources
from noetl.worker.sandbox import SandboxPool
from noetl.worker.worker import Worker

T = TypeVar("T")
START = 1_800_000_000.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when everybody waits, and then at once."""

    def __init__(self) -> None:
        super().__init__(_NeverWaits())
        self._virtual = 0.0

    def time(self) -> float:
        return self._virtual

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            heapq.heapify(self._scheduled)
            self._virtual = max(self._virtual, self._scheduled[0].when())
        super()._run_once()


class _NeverWaits(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        return super().select(0)


class VirtualClock:
    """The loop's time as seconds since 1970; `skew` is what a bad clock is off by."""

    def __init__(self, skew: float = 0.0) -> None:
        self.skew = skew

    def now(self) -> float:
        return START + asyncio.get_running_loop().time() + self.skew

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Faults:
    """What goes wrong, by chance; nothing once `calm`."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.calm = False

    def happens(self, chance: float) -> bool:
        return not self.calm and self.dice.random() < chance


class ConnectionBroken(NoetlError):
    """The network lost a message; the sender does not know whether it arrived."""

    code = "connection_broken"


class Network(LocalControl):
    """The control plane as a worker reaches it: messages are lost, doubled and late."""

    def __init__(self, world: World) -> None:
        super().__init__(world.orchestrator, world.store, world.credential)
        self._world = world

    async def _carry(self, send: Callable[[], Awaitable[T]]) -> T:
        faults = self._world.faults
        if faults.happens(0.3):
            await asyncio.sleep(faults.dice.random() * 2)
        if faults.happens(0.05):
            raise ConnectionBroken("lost on the way there")
        answer = await self._ask(send)
        if faults.happens(0.05):
            answer = await self._ask(send)
        if faults.happens(0.05):
            raise ConnectionBroken("lost on the way back")
        return answer

    async def _ask(self, send: Callable[[], Awaitable[T]]) -> T:
        """Whoever dies while it is asked never answers, and whoever is dead is not there."""
        death = self._world.death
        if death.done():
            raise ConnectionBroken("nobody is there")
        self._orchestrator = self._world.orchestrator
        call = asyncio.ensure_future(send())
        try:
            await asyncio.wait((call, death), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise ConnectionBroken("the far side died")
            return call.result()
        finally:
            call.cancel()

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        base = super().lease
        return await self._carry(lambda: base(worker_id, pool=pool, want=want, wait=wait))

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        base = super().report
        for _ in range(200):
            try:
                return await self._carry(lambda: base(report, want=want, pool=pool))
            except ConnectionBroken:
                await asyncio.sleep(0.5)
        raise LeaseLost("the network never came back")

    async def renew(self, tokens: dict[str, str]) -> set[str]:
        base = super().renew
        try:
            return await self._carry(lambda: base(tokens))
        except ConnectionBroken:
            return set()


class Effect(ToolConfig, frozen=True, kw_only=True):
    """What the simulated tool is told."""

    value: Any = None
    takes: float = 0.0
    fails: int = 0


class World:
    """Everything there is, and the hand that breaks it."""

    def __init__(self, seed: int, workers: int = 3) -> None:
        self.faults = Faults(seed)
        self.clock = VirtualClock()
        self.effects: Counter[str] = Counter()
        """action id → how often the tool ran to its end for it."""
        self._workers = workers
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._control_tasks: list[asyncio.Task[None]] = []
        self._born = 0
        self.tools = tools() | {
            "effect": Tool(kind="effect", summary="", config=Effect, run=self.run)
        }

    async def credential(self, name: str) -> None:
        return None

    async def run(self, config: Effect, context: ToolContext) -> Outcome:
        await asyncio.sleep(config.takes)
        self.effects[context.action_id] += 1
        if context.attempt <= config.fails:
            return failed("server_error", "not yet", retryable=True)
        return ok(config.value)

    async def open(self) -> None:
        self.store = await SqliteStore.open(":memory:", threads=False)
        self._start_control()
        for _ in range(self._workers):
            self._start_worker()

    def _start_control(self) -> None:
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.orchestrator = Orchestrator(self.store, self.clock, lease_seconds=10)
        self._control_tasks = [
            asyncio.create_task(job)
            for job in (
                self.orchestrator.run(),
                fire_timers(self.orchestrator, self.store, self.clock),
                requeue_lapsed(self.orchestrator, self.store, self.clock),
            )
        ]

    def _start_worker(self) -> None:
        self._born += 1
        name = f"worker-{self._born}"
        worker = Worker(
            Network(self),
            self.tools,
            ToolResources(SandboxPool),
            worker_id=name,
            slots=4,
            renew_every=3.0,
            now=VirtualClock(self.faults.dice.uniform(-3600, 3600)).now,
        )
        self._tasks[name] = asyncio.create_task(worker.run())

    async def torment(self, seconds: float) -> None:
        """Break things for so long, then stop."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            await asyncio.sleep(self.faults.dice.random() * 4)
            if self.faults.happens(0.5):
                await self._kill_worker()
            if self.faults.happens(0.2):
                await self._restart_control()
        self.faults.calm = True

    async def _kill_worker(self) -> None:
        name = self.faults.dice.choice(sorted(self._tasks))
        await _killed(self._tasks.pop(name))
        self._start_worker()

    async def _restart_control(self) -> None:
        self.death.set_result(None)
        for task in self._control_tasks:
            await _killed(task)
        self._start_control()

    async def execute(self, text: str, execution_id: str, workload: dict[str, Any]) -> None:
        compiled = compile_text(text, tools=self.tools)
        assert compiled.net is not None, [str(problem) for problem in compiled.problems]
        for _ in range(100):
            orchestrator = self.orchestrator
            await orchestrator.programs.keep(compiled.net, compiled.digest)
            request = ExecutionRequested(
                at=self.clock.now(),
                path=compiled.net.path,
                digest=compiled.digest,
                seal="sealed",
            )
            start = asyncio.create_task(
                orchestrator.start(
                    execution_id, request, workload=merged(compiled.net.workload, workload)
                )
            )
            # A control plane that dies never answers; the caller asks its successor.
            await asyncio.wait([start], timeout=5)
            if start.done():
                start.result()
                return
            start.cancel()

    async def ended(self, execution_id: str, within: float = 20_000) -> ExecutionState:
        """The final state; fails if the execution is still not over after that long."""
        end = self.clock.now() + within
        while self.clock.now() < end:
            state = await self.orchestrator.state(execution_id)
            if state.is_finished:
                return state
            await asyncio.sleep(5)
        raise AssertionError(f"execution {execution_id} is stuck: {state.status} {state.runs}")

    async def close(self) -> None:
        for task in [*self._tasks.values(), *self._control_tasks]:
            await _killed(task)
        await self.store.close()


async def _killed(task: asyncio.Task[None]) -> None:
    """End a task the way a crash would: nobody listens to its last words."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


def simulate(story: Callable[[World], Awaitable[T]], seed: int) -> T:
    """Run a story in a world of its own."""

    async def whole() -> T:
        world = World(seed)
        await world.open()
        try:
            return await story(world)
        finally:
            await world.close()

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(whole())
    finally:
        loop.close()
