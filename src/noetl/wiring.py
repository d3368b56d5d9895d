"""The composition root: the one place that knows which parts make up the system.

Each function imports what it joins when it is called, so that a command pays only for the parts
it uses.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from noetl import configured
from noetl.control.clock import SharedClock, SystemClock, WallClock
from noetl.errors import BadSetting, NoetlError, StoreBusy, Unanswered, Unreachable
from noetl.model.labels import of_worker
from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.api.protocol import App
    from noetl.api.services import Services
    from noetl.control.clock import Clock
    from noetl.control.own_work import OwnWork
    from noetl.model.commands import Presence
    from noetl.model.ids import ExecutionId
    from noetl.secrets.keychain import Sources
    from noetl.settings import Settings
    from noetl.store.base import Store
    from noetl.store.nats import Nats
    from noetl.tools.base import Tool
    from noetl.tools.resources import ToolResources
    from noetl.worker.control import Control
    from noetl.worker.spans import Spans
    from noetl.worker.worker import Worker


logger = logging.getLogger(__name__)

BUSY_PAUSE = 0.05
HOLDER_SECONDS, HOLDER_PATIENCE = 1.5, 4.0
"""How long the process that holds a database may take to answer, and how long to keep asking: it
may be about to begin or to end."""
VISITOR_PATIENCE = 30.0
"""How long to wait for commands that hold a database and run nothing: each takes a moment, but
many may stand in line."""


@asynccontextmanager
async def embedded(
    settings: Settings,
    *,
    work: bool = True,
    patience: float = 1.0,
    serves: bool = False,
    tools: Sequence[Tool] = (),
) -> AsyncIterator[Services]:
    """A whole system in this process: store, orchestrator and worker, joined by plain calls.

    Without `work` nothing runs: for commands that act on executions which have stopped. If another
    process has the database for longer than `patience` seconds, StoreBusy is raised. A process that
    `serves` looks after all executions of a shared database, together with its peers. `tools`
    are kinds of the program itself.

    A process that neither works nor serves is a visitor: if it begins to work, then on what is
    started or continued in it. Until then no other process can call it, because what it would
    start would not run.
    """
    from noetl.api import local_socket

    look_rarely_for_cycles()
    async with AsyncExitStack() as stack:
        store = await _opened(settings, patience)
        stack.push_async_callback(store.close)
        own = None
        if not (work or serves):
            from noetl.control.own_work import OwnWork

            own = OwnWork(store.queue, store.limits, store.records)
        system = await _joined(settings, stack, store, serves=serves, tools=tools, own=own)
        if own is not None:
            system.orchestrator.on_begin = lambda one: _go_on_here(system, own, [one])
        system.nats = await stack.enter_async_context(_nats(system))
        async with (
            in_background(system.orchestrator.commits.run()),
            _peers(system),
            AsyncExitStack() as running,
        ):
            if work:
                await running.enter_async_context(working(system))
            elif serves:
                await running.enter_async_context(_reachable(system))
            elif (path := socket_path(settings)) is not None:
                # Others would take it for that of a process that does not answer.
                local_socket.remove_stale(path)
            yield system


async def _joined(
    settings: Settings,
    stack: AsyncExitStack,
    store: Store,
    *,
    serves: bool = False,
    tools: Sequence[Tool] = (),
    own: OwnWork | None = None,
) -> Services:
    """The services round a store. All processes that share one go by its clock."""
    from noetl.api.services import Services

    clock: Clock = SystemClock()
    wall: Clock = WallClock()
    if not store.exclusive:
        clock = wall = shared = SharedClock(store.time)
        await shared.follow()
    return Services(
        settings,
        stack,
        store,
        clock,
        wall,
        is_shared=not store.exclusive,
        serves=serves,
        tools=tools,
        own=own,
    )


async def _go_on_here(
    system: Services, own: OwnWork, execution_ids: Collection[ExecutionId]
) -> None:
    """Let a visitor run these executions. If this process holds the database alone, every other
    process that ran a part of them is gone.
    """
    own.take(execution_ids)
    if system.store.exclusive:
        ours = _worker_name(system)
        await system.orchestrator.leases.take_over(lambda worker: worker != ours)
    system.orchestrator.timer_changed.set()
    system.orchestrator.commits.slots_changed.set()


@asynccontextmanager
async def reading(settings: Settings) -> AsyncIterator[Services]:
    """A system on a database that others may write meanwhile: it reads, and changes nothing."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(configured.open_for_reading(settings))
        yield await _joined(settings, stack, store)


def look_rarely_for_cycles() -> None:
    """Objects of executions are freed by reference counting: searching everything for cycles, every
    few hundred objects, takes time and finds next to nothing.
    """
    gc.set_threshold(10_000, 20, 20)


@asynccontextmanager
async def _nats(system: Services) -> AsyncIterator[Nats | None]:
    """NATS beside the database, if it is configured and there is anything to share."""
    store, url = system.store, system.settings.nats_url
    if url is None or (store.exclusive and not system.serves):
        yield None
        return
    from importlib.util import find_spec

    if find_spec("nats") is None:
        raise BadSetting(
            "NOETL_NATS_URL is set, but the library for NATS is not installed here."
            ' Install it with `pip install "noetl[nats]"`, or unset NOETL_NATS_URL.'
        )
    from noetl.store.nats import Nats

    keys = system.keys
    await keys.prepare()
    installation = await store.installation()
    nats = Nats(url.split(","), installation, keys.derived_from, store.access.user)
    if not store.exclusive:
        store.channel, store.bodies.copies = nats.channel, nats.bodies
    async with in_background(nats.run()):
        yield nats


@asynccontextmanager
async def _peers(system: Services) -> AsyncIterator[None]:
    """Exchange news with other processes on the same database, if there can be any."""
    from noetl.control.peers import Peers

    store, clock = system.store, system.clock
    if store.channel is None or not isinstance(clock, SharedClock):
        yield
        return

    def changed() -> None:
        system.triggers.wake()
        system.notifications.stale()

    peers = Peers(
        system.orchestrator,
        store.log,
        store.queue,
        store.channel,
        clock,
        system.membership,
        system.process,
        on_triggers=changed,
        on_document=system.triggers.retry,
    )
    system.triggers.on_changed = peers.tell_triggers
    system.catalog.on_kept.append(peers.tell_document)
    system.keys.on_put.append(peers.tell_document)
    await system.membership.beat()
    try:
        async with in_background(peers.run()):
            yield
            # A command that ends at once has news, too.
            await peers.flush()
    finally:
        await system.membership.leave()


@asynccontextmanager
async def working(system: Services, visited: Collection[ExecutionId] = ()) -> AsyncIterator[None]:
    """Continue executions: all that have not ended, or, in the process of a visitor, these and
    those begun here before.
    """
    if system.own is not None:
        await _go_on_here(system, system.own, visited)
    elif system.store.exclusive:
        await system.orchestrator.leases.take_over(lambda worker: True)
    async with (
        tracing_ends(system) as spans,
        keeping_time(system),
        local_worker(system, spans),
        _reachable(system),
    ):
        yield


@asynccontextmanager
async def keeping_time(system: Services, *, grace: float = 0.0) -> AsyncIterator[None]:
    """Fire timers, and let leases lapse; the latter not before `grace` seconds."""
    from noetl.control.admission import LOOK_SECONDS, admit
    from noetl.control.timers import QUIET_LOOKS, fire_timers

    orchestrator, store, clock = system.orchestrator, system.store, system.clock
    owns = system.membership.owns
    # If no other process writes, this one knows of everything, and hardly needs to look.
    rests, patience = (QUIET_LOOKS, None) if store.exclusive else (1, LOOK_SECONDS)
    firing = fire_timers(orchestrator, system.own or store.queue, clock, owns, rests)
    lapsing = orchestrator.leases.requeue_lapsed(owns, rests, after=grace)
    admitting = admit(orchestrator, system.own or store.limits, clock, patience)
    async with in_background(firing, lapsing, admitting):
        yield


@asynccontextmanager
async def keeping_triggers(system: Services) -> AsyncIterator[None]:
    """Documents that start executions by themselves."""
    commits, notifications = system.orchestrator.commits, system.notifications
    commits.on_ended += [system.schedules.note_end, system.consumers.note_end]
    commits.notifications = notifications
    system.catalog.on_kept.append(system.triggers.retry)
    system.keys.on_put.append(system.triggers.retry)
    await notifications.refresh()
    if system.store.exclusive:
        await system.consumers.take_over()
    try:
        async with in_background(system.triggers.run(), notifications.run()):
            yield
    finally:
        await system.consumers.close()


def _worker_name(system: Services) -> str:
    from noetl.model.commands import EMBEDDED

    return f"{EMBEDDED}{system.process}"


@asynccontextmanager
async def local_worker(system: Services, spans: Spans | None) -> AsyncIterator[Worker]:
    """A worker in this process, which also knows the tools of the embedding program."""
    from noetl.model.commands import placed

    settings = system.settings
    pool = placed("default", of_worker(settings.labels))
    me = presence(settings, _worker_name(system), pool, settings.slots)
    made = worker_of(
        system.control, settings, me, now=system.clock.now, spans=spans, added=system.tools
    )
    async with made as worker, in_background(worker.run()):
        yield worker


def presence(settings: Settings, worker_id: str, pool: str, slots: int) -> Presence:
    """A worker in this process, as others see it."""
    from noetl.model.commands import Presence

    return Presence(
        worker_id=worker_id,
        pool=pool,
        slots=slots,
        host=socket.gethostname(),
        version=__version__,
        sandbox=settings.sandbox,
    )


@asynccontextmanager
async def worker_of(
    control: Control,
    settings: Settings,
    me: Presence,
    *,
    now: Callable[[], float],
    spans: Spans | None,
    added: Sequence[Tool] = (),
) -> AsyncIterator[Worker]:
    """A worker for a control plane, here or elsewhere, with what its tools share."""
    from noetl.tools.registry import tools
    from noetl.worker.worker import Worker

    resources, sources = for_worker(settings, me.slots)
    try:
        yield Worker(
            control,
            tools(added),
            resources,
            worker_id=me.worker_id,
            pool=me.pool,
            slots=me.slots,
            now=now,
            sources=sources,
            spans=spans,
        )
    finally:
        await resources.close()


@asynccontextmanager
async def tracing_ends(system: Services) -> AsyncIterator[Spans | None]:
    """Where the spans of a control plane and of its worker go; None if they are not collected. It
    sends those of executions whose end it stores.
    """
    name, orchestrator = system.process, system.orchestrator
    async with tracing(name) as spans:
        if spans is None:
            yield None
            return
        from noetl.control.traces import GONE_SECONDS, Traces

        store, programs = system.store, orchestrator.programs
        # Where one process at a time uses the database, no other can be alive.
        gone = -math.inf if store.exclusive else GONE_SECONDS
        parts = store.log, store.records, store.triggers, programs
        traces = Traces(*parts, system.clock, spans, name, gone)
        await traces.renew()
        orchestrator.commits.on_ended.append(traces.tell)
        async with in_background(traces.run()):
            yield spans
    await traces.leave()


@asynccontextmanager
async def tracing(instance: str) -> AsyncIterator[Spans | None]:
    """The same for one process."""
    from noetl.worker.spans import Spans, is_wanted, sample_of

    if not is_wanted(os.environ):
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        # A platform may set the variable for everything that runs on it.
        logger.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the libraries for tracing are not installed"
            ' here: nothing is traced. Install them with `pip install "noetl[otel]"`, or unset it.'
        )
        yield None
        return
    about = {"service.version": __version__, "service.instance.id": instance}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        about["service.name"] = "noetl"
    spans = Spans(OTLPSpanExporter(), about, sample_of(os.environ))
    try:
        yield spans
    finally:
        await spans.close()


@asynccontextmanager
async def in_background(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these beside the body, and cancel them at its end; an error of one of them ends it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as several:
        if len(several.exceptions) > 1:
            raise
        # Usually one thing went wrong, and callers catch it by its own type.
        raise several.exceptions[0] from None


@asynccontextmanager
async def _reachable(system: Services) -> AsyncIterator[None]:
    """Let other processes of this user call the one that holds the database file."""
    from noetl.api import local_socket

    path = socket_path(system.settings)
    if path is None:
        yield
        return

    def app() -> App:
        from noetl.api.edge import LocalEdge

        return LocalEdge(system)

    async with local_socket.serving(path, app):
        yield


def socket_path(settings: Settings) -> Path | None:
    """Where to call the process that holds the database; None for a shared database."""
    from noetl.api import local_socket

    database = configured.database_file(settings)
    if database is None or not local_socket.IS_POSSIBLE:
        return None
    try:
        return local_socket.path_of(database)
    except OSError as error:
        logger.warning("no other process can call this one: %s", error)
        return None


class Reached(NamedTuple):
    """A way to the API, and the system behind it if that is in this process."""

    client: Client
    system: Services | None = None


@asynccontextmanager
async def reached(settings: Settings, *, reads: bool = False) -> AsyncIterator[Reached]:
    """A way to the API: of the chosen server, of the process that holds the database, or in this
    process if none holds it. Raises Unanswered if the holder does not answer; then nothing was
    done.

    A caller that only `reads` needs no holder: it reads the database in this process, beside the
    one that writes, and neither creates nor upgrades it.
    """
    from noetl.api.client import Client

    if settings.server_url is not None:
        async with Client(settings.server_urls, settings.token) as found:
            yield Reached(found)
        return
    if reads:
        async with reading(settings) as system:
            yield here(system)
        return
    async with AsyncExitStack() as stack:
        began = time.monotonic()
        while True:
            try:
                opened = embedded(settings, work=False, patience=0)
                system = await stack.enter_async_context(opened)
            except StoreBusy as error:
                busy = error
            else:
                yield here(system)
                return
            holder = await _holder(settings)
            if holder is not None:
                yield Reached(await stack.enter_async_context(holder))
                return
            path = socket_path(settings)
            is_visited = path is not None and not path.exists()
            patience = VISITOR_PATIENCE if is_visited else HOLDER_PATIENCE
            if time.monotonic() - began > patience:
                raise Unanswered(
                    f"nothing was done: the process that holds the database does not answer. {busy}"
                )
            await asyncio.sleep(BUSY_PAUSE)


def here(system: Services) -> Reached:
    """The API of a system in this process."""
    from noetl.api.client import Client, InProcess
    from noetl.api.rights import myself

    return Reached(Client.through(InProcess(system, myself())), system)


async def _holder(settings: Settings) -> Client | None:
    """A client of the process that holds the database, if it answers."""
    from noetl.api.client import Client
    from noetl.api.local_socket import url_of

    path = socket_path(settings)
    if path is None or not path.exists():
        return None
    made = Client((url_of(path),))
    try:
        async with asyncio.timeout(HOLDER_SECONDS):
            await made.get("/health")
    except (Unreachable, TimeoutError):
        async with made:
            return None
    except NoetlError:
        pass  # it exists, if not healthy; the request will tell
    return made


async def _opened(settings: Settings, patience: float) -> Store:
    """The store, for writing. Short commands hold it for a moment: that is worth waiting for."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return await configured.open_store(settings.database_url)
        except StoreBusy:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(BUSY_PAUSE)


THREADS_BESIDE_SLOTS = 32
"""For what else this process does with files, such as a server with a worker in it."""


def for_worker(settings: Settings, slots: int) -> tuple[ToolResources, Sources]:
    """What the tools of a worker in this process share, and where its secrets come from.

    After this, libraries find no credentials of the operator in the environment. Tasks have their
    own, and what the operator has opened to them was read before.
    """
    from noetl.tools.processes import namespaces
    from noetl.tools.rules import drop_ambient_credentials

    if settings.sandbox == "namespaces":
        namespaces.check()
    # Python itself gives a small machine six threads, for files and names of hosts of all calls.
    threads = ThreadPoolExecutor(slots + THREADS_BESIDE_SLOTS, "noetl-files")
    asyncio.get_running_loop().set_default_executor(threads)
    made = configured.tool_resources(settings, slots), configured.secret_sources(settings)
    drop_ambient_credentials()
    return made
