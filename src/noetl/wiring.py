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
import platform
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from noetl.control.clock import SharedClock, SystemClock, WallClock

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.api.protocol import App
    from noetl.api.services import Services
    from noetl.control.clock import Clock
    from noetl.control.keys import Keys
    from noetl.control.own_work import OwnWork
    from noetl.dsl import Compiled
    from noetl.model.ids import ExecutionId
    from noetl.model.rewrites import Rewritten
    from noetl.secrets.keychain import Sources
    from noetl.secrets.operator_key import OperatorKey
    from noetl.secrets.vault import Vault
    from noetl.settings import Settings
    from noetl.store.base import Runtime, Store
    from noetl.store.nats import Nats
    from noetl.templates import Views
    from noetl.tools.base import Tool
    from noetl.tools.processes.namespaces import Room
    from noetl.tools.resources import ToolResources
    from noetl.tools.rules import Rules
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


def compiler(settings: Settings, added: Sequence[Tool] = ()) -> Callable[..., Compiled]:
    """Text → compiled playbook, with the installed tool kinds, those `added` to them, and the
    operator's limits. The language is loaded with the first text: often there is none.
    """

    @cache
    def ready() -> Callable[..., Compiled]:
        from noetl.dsl import compile_text
        from noetl.tools.registry import tools

        limits, strict = settings.limits, settings.strict
        return partial(compile_text, tools=tools(added), limits=limits, strict=strict)

    return lambda text, **more: ready()(text, **more)


def document_compiler(settings: Settings) -> Callable[..., Compiled]:
    """The same for documents of any kind."""
    from noetl.control.zones import SystemZones
    from noetl.dsl.triggers import compile_document
    from noetl.tools.registry import tools

    return partial(
        compile_document,
        tools=tools(),
        limits=settings.limits,
        strict=settings.strict,
        zones=SystemZones(),
    )


def plain_value(text: str) -> Any:
    """A value as playbooks write it; raises ValueError for what is not YAML."""
    indented = text.replace("\n", "\n  ")
    return plain_document(f"value: {indented}")["value"]


def plain_document(text: str) -> dict[str, Any]:
    """A YAML or JSON document that is a mapping; raises ValueError for anything else."""
    from noetl.dsl.nodes import plain
    from noetl.dsl.read import read
    from noetl.dsl.report import Report

    report = Report()
    root = read(text, report)
    if root is None:
        raise ValueError(report.problems(None)[0].message)
    found = plain(root)
    assert isinstance(found, dict)
    return found


def schema(kind: str = "Playbook") -> dict[str, Any]:
    """The JSON Schema of a kind of document; of playbooks with the installed tool kinds."""
    if kind != "Playbook":
        from noetl.dsl.triggers import trigger_schema

        return trigger_schema(kind)
    from noetl.dsl.schema import playbook_schema
    from noetl.tools.registry import tools

    return playbook_schema(tools())


def migrator() -> Callable[[str], Rewritten]:
    """Text → the same playbook in the canonical dialect, with a report."""
    from noetl.rewrite.migrate import migrate_text
    from noetl.tools.registry import tools

    return partial(migrate_text, tools=tools())


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
        store = await stack.enter_async_context(open_for_writing(settings, patience))
        clock = await _clock(store)
        me = _runtime(clock) if serves else None
        own = None
        if not (work or serves):
            from noetl.control.own_work import OwnWork

            own = OwnWork(store.queue, store.limits, store.records)
        system = _services(settings, stack, store, clock, me, tools, own)
        if own is not None:
            system.orchestrator.on_begin = lambda one: _go_on_here(system, own, [one])
        system.nats = await stack.enter_async_context(_nats(settings, system, serves=serves))
        async with (
            in_background(system.orchestrator.commits.run()),
            _peers(system),
            AsyncExitStack() as running,
        ):
            if work:
                await running.enter_async_context(working(system, settings, tools=tools))
            elif serves:
                await running.enter_async_context(_reachable(settings, system))
            elif (path := socket_path(settings)) is not None:
                # Others would take it for that of a process that does not answer.
                local_socket.remove_stale(path)
            yield system


def _services(
    settings: Settings,
    stack: AsyncExitStack,
    store: Store,
    clock: Clock,
    me: Runtime | None = None,
    tools: Sequence[Tool] = (),
    own: OwnWork | None = None,
) -> Services:
    from noetl.api.services import Makers, Services

    makers = Makers(
        compiled=compiler(settings, tools),
        views=lambda: _views(tools),
        own_kinds=bool(tools),
        tools=lambda: tool_resources(settings, 1),
        keys=partial(_keys, settings),
        operator_key=lambda: operator_key(settings),
        process=_process_name(),
        wall=WallClock() if store.exclusive else clock,
        is_shared=not store.exclusive,
        own=own,
    )
    return Services(settings, stack, store, clock, makers, me)


def _views(added: Sequence[Tool]) -> Views:
    from noetl.templates import Views
    from noetl.tools.registry import tool_of

    return Views(partial(tool_of, added=added))


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
        store = await stack.enter_async_context(open_for_reading(settings))
        yield _services(settings, stack, store, await _clock(store))


def look_rarely_for_cycles() -> None:
    """Objects of executions are freed by reference counting: searching everything for cycles, every
    few hundred objects, takes time and finds next to nothing.
    """
    gc.set_threshold(10_000, 20, 20)


async def _clock(store: Store) -> Clock:
    """The clock that all users of this store share."""
    if store.exclusive:
        return SystemClock()
    clock = SharedClock(store.time)
    await clock.follow()
    return clock


@asynccontextmanager
async def _nats(
    settings: Settings, system: Services, *, serves: bool
) -> AsyncIterator[Nats | None]:
    """NATS beside the database, if it is configured and there is anything to share."""
    store = system.store
    if settings.nats_url is None or (store.exclusive and not serves):
        yield None
        return
    from importlib.util import find_spec

    from noetl.errors import BadSetting

    if find_spec("nats") is None:
        raise BadSetting(
            "NOETL_NATS_URL is set, but the library for NATS is not installed here."
            ' Install it with `pip install "noetl[nats]"`, or unset NOETL_NATS_URL.'
        )
    from noetl.store.nats import Nats

    keys = system.keys
    await keys.prepare()
    installation = await store.installation()
    nats = Nats(settings.nats_url.split(","), installation, keys.derived_from, store.access.user)
    if not store.exclusive:
        store.channel, store.bodies.copies = nats.channel, nats.bodies
    async with in_background(nats.run()):
        yield nats


def _process_name() -> str:
    return f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"


def _runtime(clock: Clock) -> Runtime:
    """This server, as others see it."""
    from noetl.store.base import Runtime
    from noetl.version import __version__

    now = clock.now()
    return Runtime(
        name=f"server-{_process_name()}",
        kind="server",
        started_at=now,
        seen_at=now,
        host=platform.node(),
        version=__version__,
    )


@asynccontextmanager
async def _peers(system: Services) -> AsyncIterator[None]:
    """Exchange news with other processes on the same database, if there can be any."""
    from noetl.control.peers import Peers

    store, clock = system.store, system.clock
    if store.channel is None or not isinstance(clock, SharedClock):
        yield
        return
    peers = Peers(
        system.orchestrator,
        store.log,
        store.queue,
        store.channel,
        clock,
        system.membership,
        _process_name(),
    )

    def changed() -> None:
        system.triggers.wake()
        system.notifications.stale()

    peers.on_triggers = changed
    system.triggers.on_changed = peers.tell_triggers
    await system.membership.beat()
    try:
        async with in_background(peers.run()):
            yield
            # A command that ends at once has news, too.
            await peers.flush()
    finally:
        await system.membership.leave()


@asynccontextmanager
async def working(
    system: Services,
    settings: Settings,
    visited: Collection[ExecutionId] = (),
    tools: Sequence[Tool] = (),
) -> AsyncIterator[None]:
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
        local_worker(system, settings, spans, tools),
        _reachable(settings, system),
    ):
        yield


@asynccontextmanager
async def keeping_time(system: Services, *, grace: float = 0.0) -> AsyncIterator[None]:
    """Fire timers, and let leases lapse; the latter not before `grace` seconds."""
    from noetl.control.admission import LOOK_SECONDS, admit
    from noetl.control.timers import QUIET_LOOKS, fire_timers

    orchestrator, store, clock = system.orchestrator, system.store, system.clock
    owns = system.membership.owns
    # If nobody else writes, this process knows of everything, and hardly needs to look.
    rests, patience = (QUIET_LOOKS, None) if store.exclusive else (1, LOOK_SECONDS)
    firing = fire_timers(orchestrator, system.own or store.queue, clock, owns, rests)
    lapsing = orchestrator.leases.requeue_lapsed(owns, rests, after=grace)
    admitting = admit(orchestrator, system.own or store.limits, clock, patience)
    async with in_background(firing, lapsing, admitting):
        yield


@asynccontextmanager
async def keeping_triggers(system: Services) -> AsyncIterator[None]:
    """Documents that start executions by themselves."""
    system.orchestrator.commits.on_ended += [system.schedules.note_end, system.consumers.note_end]
    commits, notifications = system.orchestrator.commits, system.notifications

    def ask(wanted: bool) -> None:
        commits.notices = notifications.of_execution if wanted else None

    notifications.on_rules = ask
    commits.on_noticed = system.triggers.announce
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
async def local_worker(
    system: Services, settings: Settings, spans: Spans | None, added: Sequence[Tool] = ()
) -> AsyncIterator[Worker]:
    """A worker in this process, which also knows the tools `added`."""
    from noetl.model.commands import placed
    from noetl.model.labels import of_worker

    made = worker_of(
        system.control,
        settings,
        worker_id=_worker_name(system),
        pool=placed("default", of_worker(settings.labels)),
        slots=settings.slots,
        now=system.clock.now,
        spans=spans,
        added=added,
    )
    async with made as worker, in_background(worker.run()):
        yield worker


@asynccontextmanager
async def worker_of(
    control: Control,
    settings: Settings,
    *,
    worker_id: str,
    pool: str,
    slots: int,
    now: Callable[[], float],
    spans: Spans | None,
    added: Sequence[Tool] = (),
) -> AsyncIterator[Worker]:
    """A worker for a control plane, here or elsewhere, with what its tools share."""
    from noetl.tools.registry import tools
    from noetl.worker.worker import Worker

    resources, sources = for_worker(settings, slots)
    try:
        yield Worker(
            control,
            tools(added),
            resources,
            worker_id=worker_id,
            pool=pool,
            slots=slots,
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
    name, orchestrator = _process_name(), system.orchestrator
    async with tracing(name) as spans:
        if spans is None:
            yield None
            return
        from noetl.control.traces import GONE_SECONDS, Traces

        store, programs = system.store, orchestrator.programs
        # Where one process at a time uses the database, nobody else can be alive.
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
    from noetl.version import __version__
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


def operator_key(settings: Settings) -> OperatorKey:
    """The key that encrypts credentials, or the place where it will be created."""
    from noetl.secrets.operator_key import OperatorKey

    if is_server(settings.database_url):
        return OperatorKey(settings.secret_key, None)
    database = _database_file(settings)
    folder = database.parent if database is not None else Path(".noetl")
    return OperatorKey(settings.secret_key, folder / "secret.key")


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
async def _reachable(settings: Settings, system: Services) -> AsyncIterator[None]:
    """Let other processes of this user call the one that holds the database file."""
    from noetl.api import local_socket

    path = socket_path(settings)
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

    database = _database_file(settings)
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
async def reached(
    settings: Settings, account: str, *, reads: bool = False
) -> AsyncIterator[Reached]:
    """A way to the API: of the chosen server, of the process that holds the database, or in this
    process if none holds it. Raises Unanswered if the holder does not answer; then nothing was
    done.

    A caller that only `reads` needs no holder: it reads the database in this process, beside the
    one that writes, and neither creates nor upgrades it.
    """
    from noetl.api.client import Client
    from noetl.errors import StoreBusy, Unanswered

    if settings.server_url is not None:
        async with Client(settings.server_urls, settings.token) as found:
            yield Reached(found)
        return
    if reads:
        async with reading(settings) as system:
            yield here(system, account)
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
                yield here(system, account)
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


def here(system: Services, account: str) -> Reached:
    """The API of a system in this process."""
    from noetl.api.client import Client, InProcess
    from noetl.api.rights import local

    return Reached(Client.through(InProcess(system, local(account))), system)


async def _holder(settings: Settings) -> Client | None:
    """A client of the process that holds the database, if it answers."""
    from noetl.api.client import Client
    from noetl.api.local_socket import url_of
    from noetl.errors import NoetlError, Unreachable

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


def _database_file(settings: Settings) -> Path | None:
    from noetl.store.sqlite.connections import database_path

    return None if is_server(settings.database_url) else database_path(settings.database_url)


def is_server(url: str) -> bool:
    """Whether the database is one that several processes share."""
    return url.startswith("postgresql:")


def is_missing(settings: Settings) -> bool:
    """Whether the database is a file that is not there yet."""
    database = _database_file(settings)
    return settings.server_url is None and database is not None and not database.exists()


def require_database(settings: Settings) -> None:
    """Raises StoreError if the database is a file that is not there."""
    from noetl.store.sqlite.store import no_database

    if is_missing(settings):
        database = _database_file(settings)
        assert database is not None
        raise no_database(database)


def is_in_use(settings: Settings) -> bool:
    """Whether some process, perhaps this one, may be using the database at this moment."""
    from noetl.errors import StoreBusy
    from noetl.store.sqlite.lock import FileLock

    if is_server(settings.database_url):
        return True
    database = _database_file(settings)
    if database is None or not database.exists():
        return False
    try:
        FileLock(database).release()
    except StoreBusy:
        return True
    return False


async def open_store(url: str, *, read_only: bool = False) -> Store:
    """The store that a URL names; `read_only`, it may be open beside a process that writes."""
    if is_server(url):
        from noetl.store.postgres import PostgresStore

        return await PostgresStore.open(url, read_only=read_only)
    from noetl.store.sqlite import SqliteStore

    return await SqliteStore.open(url, read_only=read_only)


@asynccontextmanager
async def open_for_writing(settings: Settings, patience: float) -> AsyncIterator[Store]:
    """The store, for writing. Short commands hold it for a moment: that is worth waiting for."""
    from noetl.errors import StoreBusy

    deadline = time.monotonic() + patience
    while True:
        try:
            store = await open_store(settings.database_url)
            break
        except StoreBusy:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(BUSY_PAUSE)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_for_reading(settings: Settings) -> AsyncIterator[Store]:
    """The store, for reading beside a process that writes."""
    store = await open_store(settings.database_url, read_only=True)
    try:
        yield store
    finally:
        await store.close()


def _keys(settings: Settings, store: Store, clock: Clock) -> Keys:
    from noetl.control.keys import Keys

    def open_vault(salt: str, may_create: bool) -> Vault:
        return operator_key(settings).vault(salt, may_create=may_create)

    return Keys(store.credentials, store.installation, open_vault, clock, secret_sources(settings))


def tool_rules(settings: Settings) -> Rules:
    """What the operator allows the tools of a worker."""
    from noetl.secrets.keychain import opened
    from noetl.tools.egress import EgressPolicy
    from noetl.tools.processes.namespaces import PROCESSES, counts_by_room
    from noetl.tools.processes.spawner import Bounds
    from noetl.tools.rules import Rules, read_container_policy

    room = _room(settings)
    processes = PROCESSES if room is not None and counts_by_room() else None
    return Rules(
        egress=EgressPolicy(private=settings.private_networks == "allow"),
        containers=read_container_policy(settings.containers),
        file_root=settings.files,
        max_response_bytes=settings.max_response_bytes,
        max_file_bytes=settings.max_file_bytes,
        store_url=settings.store_url,
        cache=settings.cache,
        install_libs=settings.python_libs == "install",
        opened=opened(os.environ, settings.task_env),
        bounds=Bounds(
            memory=settings.task_memory_bytes,
            processes=settings.task_processes or processes,
            file_bytes=settings.task_file_bytes,
        ),
        room=room,
        task_network=settings.task_network == "allow",
        python_processes=settings.python_processes,
    )


def check_task_network(settings: Settings) -> None:
    """Raise BadSetting if tasks must have no network and nothing enforces that."""
    from noetl.errors import BadSetting

    if settings.task_network != "allow" and settings.sandbox != "namespaces":
        raise BadSetting(
            "NOETL_TASK_NETWORK=refuse holds only with NOETL_SANDBOX=namespaces: processes"
            " alone have the network of the worker. Set both, or neither."
        )


def _room(settings: Settings) -> Room | None:
    """What code and programs of tasks see, if they are kept in namespaces."""
    from noetl.tools.processes.namespaces import TMP_BYTES, Room

    check_task_network(settings)
    if settings.sandbox != "namespaces":
        return None
    own = [Path(".noetl")]
    own += [Path(settings.secret_files)] if settings.secret_files is not None else []
    database = _database_file(settings)
    if database is not None:
        own += [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]
        own += [database.parent / "secret.key"]
        own += [database.parent] if database.parent.name == ".noetl" else []
    files: tuple[tuple[str, str], ...] = ()
    if settings.files is not None:
        root = os.path.realpath(settings.files)
        files = tuple((root, name) for name in {root, os.path.abspath(settings.files)})
    return Room(
        writes=files,
        hides=tuple(dict.fromkeys(os.path.realpath(path) for path in own)),
        tmp_bytes=min(TMP_BYTES, settings.task_file_bytes or TMP_BYTES),
    )


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
    made = tool_resources(settings, slots), secret_sources(settings)
    drop_ambient_credentials()
    return made


def tool_resources(settings: Settings, slots: int) -> ToolResources:
    """What the tools of a worker with so many slots share."""
    from noetl.tools.resources import ToolResources

    return ToolResources(tool_rules(settings), slots)


def secret_sources(settings: Settings) -> Sources:
    """Where playbooks may read secrets from, beside the stored ones."""
    from noetl.secrets.keychain import Sources, opened

    allowed = settings.env_secrets + settings.task_env
    return Sources(
        environment=opened(os.environ, allowed),
        env_allowed=allowed,
        file_root=settings.secret_files,
    )
