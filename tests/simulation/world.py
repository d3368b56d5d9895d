"""A whole system in one seeded, single-threaded event loop with virtual time.

Real orchestrators, real workers, real SQLite (in memory, inline); only time, the network between
workers and servers and the news channel between servers are ours. The seed decides every fault, so
a failing seed fails again.

A world has one server with a database of its own, or several servers that share one. Servers that
share a database reach it with delays, have clocks that disagree a little, and hear of each other
through a channel that loses, shortens, doubles, delays and reorders what they say.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from noetl.control.admission import LOOK_SECONDS, admit
from noetl.control.leases import Losses
from noetl.control.local import LocalControl
from noetl.control.orchestrator import Orchestrator
from noetl.control.peers import Membership, Peers
from noetl.control.programs import merged
from noetl.control.timers import QUIET_LOOKS, everything, fire_timers
from noetl.dsl import compile_text
from noetl.errors import LeaseLost, NoetlError, StoreError
from noetl.model import net as nets
from noetl.model.commands import Answer, Lease, Report
from noetl.model.events import ExecutionRequested
from noetl.model.net import Net
from noetl.model.outcome import Outcome, failed, ok
from noetl.model.state import ExecutionState
from noetl.store.base import Runtime, Store
from noetl.store.catalog import CatalogEntry
from noetl.store.sqlite.store import SqliteStore
from noetl.templates import Views
from noetl.tools.base import Tool, ToolConfig, ToolContext
from noetl.tools.registry import tool_of, tools
from noetl.tools.resources import ToolResources
from noetl.worker.worker import Worker

T = TypeVar("T")
VIEWS = Views(tool_of)
START = 1_800_000_000.0
LEASE_SECONDS = 10.0
HANGS = 100.0
TURNS_MAX = 100_000
"""A moment with more turns of the loop than this never passes: somebody works without a pause."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when everybody waits, and then at once."""

    def __init__(self) -> None:
        super().__init__(_NeverWaits())
        self._virtual = 0.0
        self._turns = 0

    def time(self) -> float:
        return self._virtual

    def _run_once(self) -> None:
        self._turns += 1
        assert self._turns < TURNS_MAX, "somebody works without a pause, and time stands still"
        if not self._ready and self._scheduled and self._scheduled[0].when() > self._virtual:
            self._virtual = self._scheduled[0].when()
            self._turns = 0
        super()._run_once()


class _NeverWaits(selectors.DefaultSelector):
    """Nothing comes from outside: no thread, no socket."""

    def select(self, timeout: float | None = None) -> Any:
        return []


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


class SharedVirtualClock(VirtualClock):
    """The clock of a server that goes by the database's: off by a little, by another each time."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults
        self._latest = 0.0

    def now(self) -> float:
        self._latest = max(self._latest, super().now())
        return self._latest

    async def follow(self) -> None:
        self.skew = self._faults.dice.uniform(-0.3, 0.3)


class SharedStore:
    """The database, or a part of it, as one of several servers reaches it: the way there and back
    takes time, and an answer may be lost."""

    copies = None

    def __init__(self, store: Any, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not callable(method):
            return SharedStore(method, self._faults)

        async def call(*words: Any, **named: Any) -> Any:
            await self._travel()
            answer = await method(*words, **named)
            await self._travel()
            if self._faults.happens(0.01):
                raise StoreError("the connection broke before the answer came.")
            return answer

        return call

    async def _travel(self) -> None:
        dice = self._faults.dice
        await asyncio.sleep(dice.random() * 0.02 if dice.random() < 0.5 else 0)


class Air:
    """The news channel of all servers of a world."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.loss = faults.dice.choice((0.1, 0.5, 1.0))
        """How much is lost. What is lost stays lost when everything else is calm again."""
        self._heard: dict[str, asyncio.Queue[str]] = {}

    def line(self, name: str) -> Line:
        return Line(self, name)

    def say(self, text: str) -> None:
        for heard in list(self._heard.values()):
            for _ in range(2 if self._faults.happens(0.1) else 1):
                self._carry(text, heard)

    def _carry(self, text: str, heard: asyncio.Queue[str]) -> None:
        dice = self._faults.dice
        if dice.random() < self.loss:
            return
        told = self._shortened(text) if self._faults.happens(0.3) else text
        delay = dice.random() * 3 if self._faults.happens(0.5) else 0.0
        asyncio.get_running_loop().call_later(delay, heard.put_nowait, told)

    def _shortened(self, text: str) -> str:
        """The message without some of the executions that it names."""
        told = msgspec.json.decode(text)
        named = told.get("executions", {})
        told["executions"] = {name: seq for name, seq in named.items() if self._faults.happens(0.5)}
        return msgspec.json.encode(told).decode()

    async def hear(self, name: str) -> AsyncIterator[str]:
        heard = self._heard[name] = asyncio.Queue()
        try:
            while True:
                yield await heard.get()
        finally:
            del self._heard[name]


class Line:
    """The channel as one server has it."""

    def __init__(self, air: Air, name: str) -> None:
        self._air = air
        self._name = name

    async def send(self, text: str) -> None:
        self._air.say(text)

    def messages(self) -> AsyncIterator[str]:
        return self._air.hear(self._name)


class Accidents(Losses):
    """Here workers die by chance: what they ran is not to blame, however often it happens."""

    def note(self, worker: str, runs: set[str], now: float) -> bool:
        return False


class Server:
    """A server process without HTTP: control plane, timers, lapsed leases, and its peers."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        jobs: list[Any]
        if world.air is None:
            self.store, clock = cast(Store, world.store), world.clock
            self.orchestrator = Orchestrator(
                self.store, clock, VIEWS, lease_seconds=LEASE_SECONDS, is_shared=False
            )
            owned: tuple[Any, ...] = (everything, QUIET_LOOKS)
            jobs, patience = [], None
        else:
            self.store = cast(Store, SharedStore(world.store, world.faults))
            clock = shared = SharedVirtualClock(world.faults)
            now = shared.now()
            me = Runtime(name=name, kind="server", started_at=now, seen_at=now)
            self.orchestrator = Orchestrator(self.store, shared, VIEWS, lease_seconds=LEASE_SECONDS)
            membership = Membership(self.store.runtimes, shared, me)
            line = world.air.line(name)
            self.peers = Peers(
                self.orchestrator,
                self.store.log,
                self.store.queue,
                line,
                cast(Any, shared),
                membership,
                name,
            )
            owned = (membership.owns,)
            jobs, patience = [self.peers.run()], LOOK_SECONDS
        self.orchestrator.leases.losses = Accidents()
        lapses = self.orchestrator.leases.requeue_lapsed(*owned)
        timers = fire_timers(self.orchestrator, self.store.queue, clock, *owned)
        jobs += [self.orchestrator.commits.run(), timers, lapses]
        if world.admits:
            jobs.append(admit(self.orchestrator, self.store.limits, clock, patience))
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def kill(self) -> None:
        """As the power plug would."""
        if not self.death.done():
            self.death.set_result(None)
        for task in self._tasks:
            await _killed(task)


class Network(LocalControl):
    """The control plane as a worker reaches it: messages are lost, doubled and late, and go to any
    server that is there.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._server = world.server()
        store = self._server.store
        control = self._server.orchestrator
        super().__init__(control, store.bodies, store.credentials, world.credential)

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
        death = self._chosen().death
        if death.done():
            raise ConnectionBroken("nobody is there")
        call = asyncio.ensure_future(send())
        try:
            await asyncio.wait((call, death), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise ConnectionBroken("the far side died")
            return call.result()
        finally:
            call.cancel()

    def _chosen(self) -> Server:
        """The server that was asked before; another one if it is gone, and at times anyway."""
        if self._server not in self._world.servers or self._world.roams():
            self._server = self._world.server()
            store = self._server.store
            self._orchestrator = self._server.orchestrator
            self._bodies, self._credentials = store.bodies, store.credentials
        return self._server

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        base = super().lease
        return await self._carry(lambda: base(worker_id, pool=pool, want=want, wait=wait))

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        base = super().report
        for _ in range(200):
            try:
                return await self._carry(lambda: base(report, want=want, pool=pool))
            except (ConnectionBroken, StoreError):
                await asyncio.sleep(0.5)
        raise LeaseLost("the network never came back")

    async def renew(self, tokens: dict[str, str]) -> set[str]:
        base = super().renew
        try:
            return await self._carry(lambda: base(tokens))
        except (ConnectionBroken, StoreError):
            return set()


class Effect(ToolConfig, frozen=True, kw_only=True):
    """What the simulated tool is told."""

    value: Any = None
    takes: float = 0.0
    fails: int = 0
    """Tries that fail, and are worth another."""
    hangs: int = 0
    """Tries that take far longer than anybody waits."""
    breaks: bool = False
    """It fails for good."""


@lru_cache
def _compiled(text: str) -> tuple[Net, str]:
    """A playbook as a net, and its digest."""
    effect = Tool(kind="effect", summary="", config=Effect, run=cast(Any, None))
    compiled = compile_text(text, tools={**tools(), "effect": effect})
    assert compiled.net is not None, [str(problem) for problem in compiled.problems]
    return compiled.net, compiled.digest


class World:
    """Everything there is, and the hand that breaks it."""

    def __init__(
        self, seed: int, workers: int = 3, servers: int = 1, *, admits: bool = False
    ) -> None:
        self.faults = Faults(seed)
        self.clock = VirtualClock()
        self.effects: Counter[str] = Counter()
        """action id → how often the tool ran to its end for it."""
        self.admits = admits
        """Whether servers look after executions that wait for their turn. They throw the dice for
        it, so it is only done where some wait: elsewhere seeds mean what they meant."""
        self.air = Air(self.faults) if servers > 1 else None
        self.servers: list[Server] = []
        self.roaming = 0.5
        """How often a worker asks another server than before, though that one is well."""
        self._workers = workers
        self._wanted = servers
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._born = 0
        self.tools = {
            **tools(),
            "effect": Tool(kind="effect", summary="", config=Effect, run=self.run),
        }

    async def credential(self, name: str) -> None:
        return None

    async def run(self, config: Effect, context: ToolContext) -> Outcome:
        await asyncio.sleep(config.takes + (HANGS if context.attempt <= config.hangs else 0.0))
        self.effects[context.action_id] += 1
        if config.breaks:
            return failed("client_error", "never")
        if context.attempt <= config.fails:
            return failed("server_error", "not yet", retryable=True)
        return ok(config.value)

    async def open(self) -> None:
        self.store = await SqliteStore.open(":memory:", threads=False)
        for _ in range(self._wanted):
            self._start_server()
        for _ in range(self._workers):
            self._start_worker()

    @property
    def orchestrator(self) -> Orchestrator:
        """That of some server."""
        return self.server().orchestrator

    def server(self) -> Server:
        """Any that is there."""
        return self.servers[0] if len(self.servers) == 1 else self.faults.dice.choice(self.servers)

    def roams(self) -> bool:
        return len(self.servers) > 1 and self.faults.dice.random() < self.roaming

    def _start_server(self) -> None:
        self._born += 1
        self.servers.append(Server(self, f"server-{self._born}"))

    def _start_worker(self) -> None:
        self._born += 1
        name = f"worker-{self._born}"
        worker = Worker(
            Network(self),
            self.tools,
            ToolResources(),
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
                await self.kill_worker()
            # One of several lives longer: what it remembers has time to become old.
            if self.faults.happens(0.2 if self.air is None else 0.05):
                await self.restart_server()
            if len(self.servers) > 1 and self.faults.happens(0.05):
                await self.kill_server(self.server())
        self.faults.calm = True

    async def kill_worker(self) -> None:
        """Some worker; another takes its place."""
        name = self.faults.dice.choice(sorted(self._tasks))
        await _killed(self._tasks.pop(name))
        self._start_worker()

    async def restart_server(self) -> None:
        """Some server; what it knew is read from the store."""
        await self.kill_server(self.server())
        self._start_server()

    async def kill_server(self, server: Server) -> None:
        """For good."""
        await server.kill()
        self.servers.remove(server)

    async def register(self, text: str) -> None:
        """Put a playbook into the catalog."""
        net, digest = _compiled(text)
        entry = CatalogEntry(
            catalog_id=net.path,
            path=net.path,
            version=1,
            kind="Playbook",
            digest=digest,
            content=text,
        )
        await self.store.catalog.register(entry, nets.encode(net))

    async def execute(
        self, text: str, execution_id: str, workload: dict[str, Any], at: Server | None = None
    ) -> None:
        """Start it, at this server first."""
        net, digest = _compiled(text)
        for _ in range(100):
            orchestrator = (at or self.server()).orchestrator
            at = None
            request = ExecutionRequested(
                at=self.clock.now(), path=net.path, digest=digest, seal="sealed"
            )

            async def start(
                orchestrator: Orchestrator = orchestrator, request: ExecutionRequested = request
            ) -> None:
                await orchestrator.programs.keep(net, digest)
                await orchestrator.start(
                    execution_id, request, workload=merged(net.workload, workload)
                )

            starting = asyncio.create_task(start())
            # A server that dies never answers; the caller asks another.
            await asyncio.wait([starting], timeout=5)
            if starting.done():
                with suppress(StoreError):
                    starting.result()
                    return
            starting.cancel()

    async def ended(self, execution_id: str, within: float = 20_000) -> ExecutionState:
        """The final state; fails if the execution is still not over after that long."""
        end = self.clock.now() + within
        while self.clock.now() < end:
            # Past the servers: to be asked would make them look.
            summary = await self.store.records.summary(execution_id)
            if summary is not None and summary.ended_at is not None:
                return await self.orchestrator.state(execution_id)
            await asyncio.sleep(5)
        raise AssertionError(f"execution {execution_id} is stuck: {summary}")

    async def close(self) -> None:
        for task in self._tasks.values():
            await _killed(task)
        for server in self.servers:
            await server.kill()
        await self.store.close()


async def _killed(task: asyncio.Task[None]) -> None:
    """End a task the way a crash would: nobody listens to its last words."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


BLOCK = 100


def check_block(check: Callable[[int], object], first: int) -> None:
    """A hundred seeds in one test; the one that fails is named."""
    for seed in range(first, first + BLOCK):
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def simulate(story: Callable[[World], Awaitable[T]], seed: int, **options: int) -> T:
    """Run a story in a world of its own."""

    async def whole() -> T:
        world = World(seed, **options)
        await world.open()
        try:
            return await story(world)
        finally:
            await world.close()

    random.seed(seed)  # Whoever asks again waits by chance.
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(whole())
    finally:
        loop.close()
