"""The composition root: the one place that knows which parts make up the system.

Each function imports what it joins when it is called, so that a command pays only for the parts
it uses.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from noetl.control.catalog import Catalog
    from noetl.control.clock import Clock
    from noetl.control.executions import Executions
    from noetl.control.keys import Keys
    from noetl.control.orchestrator import Orchestrator
    from noetl.dsl import Compiled
    from noetl.dsl.migrate import Migration as Migration
    from noetl.model.ids import ExecutionId
    from noetl.secrets.keychain import Sources
    from noetl.secrets.vault import Vault
    from noetl.settings import Settings
    from noetl.store.sqlite.store import SqliteStore as Store


BUSY_PAUSE = 0.05


def compiler(settings: Settings) -> Callable[[str], Compiled]:
    """Text → compiled playbook, with the installed tool kinds and the operator's limits."""
    from noetl.dsl import compile_text
    from noetl.tools.registry import shapes

    tools = shapes()
    limits = settings.limits
    return lambda text: compile_text(text, tools=tools, limits=limits)


def plain_value(text: str) -> Any:
    """A value as playbooks write it; raises ValueError for what is no YAML."""
    from noetl.dsl.nodes import plain
    from noetl.dsl.read import read
    from noetl.dsl.report import Report

    report = Report()
    indented = text.replace("\n", "\n  ")
    root = read(f"value: {indented}", report)
    if root is None:
        raise ValueError(report.problems(None)[0].message)
    return plain(root.get("value"))


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


def schema() -> dict[str, Any]:
    """The JSON Schema of the playbook language, with the installed tool kinds."""
    from noetl.dsl.schema import playbook_schema
    from noetl.tools.registry import shapes

    return playbook_schema(shapes())


def formatter() -> Callable[[str], str]:
    """Text → the same playbook in canonical formatting."""
    from noetl.dsl.fmt import format_text

    return format_text


def migrator() -> Callable[[str], Migration]:
    """Text → the same playbook in the canonical dialect, with a report."""
    from noetl.dsl.migrate import migrate_text
    from noetl.tools.registry import shapes

    tools = shapes()
    return lambda text: migrate_text(text, tools)


class System(msgspec.Struct, frozen=True):
    """A whole system, ready to be used."""

    executions: Executions
    catalog: Catalog
    keys: Keys
    store: Store
    orchestrator: Orchestrator
    clock: Clock


@asynccontextmanager
async def embedded(
    settings: Settings, *, work: bool = True, patience: float = 1.0
) -> AsyncIterator[System]:
    """A whole system in this process: store, orchestrator and worker, joined by plain calls.

    Without `work` nothing runs: for commands that act on executions which have stopped. If another
    process has the database for longer than `patience` seconds, StoreBusy is raised.
    """
    from noetl.control.catalog import Catalog
    from noetl.control.clock import SystemClock
    from noetl.control.executions import Executions
    from noetl.control.orchestrator import Orchestrator

    clock = SystemClock()
    async with _store(settings, patience) as store:
        orchestrator = Orchestrator(store, clock)
        keys = _keys(settings, store, clock)
        system = System(
            executions=Executions(orchestrator, store, clock, keys.missing),
            catalog=Catalog(store, compiler(settings), clock),
            keys=keys,
            store=store,
            orchestrator=orchestrator,
            clock=clock,
        )
        async with _running(orchestrator.run(), _requests(settings, system.executions)):
            if not work:
                yield system
                return
            async with working(system, settings):
                yield system


@asynccontextmanager
async def working(
    system: System, settings: Settings, chosen: set[ExecutionId] | None = None
) -> AsyncIterator[None]:
    """Let executions go on: these with their children, or all that have not ended."""
    from noetl.control.timekeeping import family, recover

    if chosen is not None:
        system.orchestrator.chosen = await family(system.store, chosen)
    await recover(system.orchestrator, system.store)
    async with _at_work(system, settings):
        yield


@asynccontextmanager
async def _at_work(system: System, settings: Settings) -> AsyncIterator[None]:
    """Timers that fire, leases that lapse, and a worker that runs what is handed out."""
    from noetl.control.local import LocalControl
    from noetl.control.timekeeping import fire_timers, requeue_lapsed
    from noetl.tools.registry import tools
    from noetl.tools.running.resources import ToolResources
    from noetl.worker.sandbox import SandboxPool
    from noetl.worker.worker import Worker

    orchestrator, store, clock = system.orchestrator, system.store, system.clock
    resources = ToolResources(SandboxPool)
    worker = Worker(
        LocalControl(orchestrator, store, system.keys.credential),
        tools(),
        resources,
        worker_id=f"embedded-{os.getpid()}",
        slots=settings.slots,
        now=clock.now,
        sources=_sources(settings),
    )
    try:
        async with _running(
            fire_timers(orchestrator, store, clock),
            requeue_lapsed(orchestrator, store, clock),
            worker.run(),
        ):
            yield
    finally:
        await resources.close()


@asynccontextmanager
async def _running(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Keep these going while the body does; if one of them breaks, so does the body."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as several:
        if len(several.exceptions) > 1:
            raise
        # As a rule one thing went wrong, and callers know it by its own name.
        raise several.exceptions[0] from None


async def _requests(settings: Settings, executions: Executions) -> None:
    """Do what other processes ask of the one that has the database."""
    from noetl.control.requests import serve

    folder = requests_folder(settings)
    if folder is not None:
        await serve(folder, executions.act)


def requests_folder(settings: Settings) -> Path | None:
    """Where to ask the process that has the database; None for a database in memory."""
    from noetl.control.requests import folder_of
    from noetl.store.sqlite.connections import database_path

    database = database_path(settings.database_url)
    return folder_of(database) if database is not None else None


def is_in_use(settings: Settings) -> bool:
    """Whether some process, perhaps this one, has the database at this moment."""
    from noetl.errors import StoreBusy
    from noetl.store.sqlite.connections import database_path
    from noetl.store.sqlite.lock import FileLock

    database = database_path(settings.database_url)
    if database is None or not database.exists():
        return False
    try:
        FileLock(database).release()
    except StoreBusy:
        return True
    return False


@asynccontextmanager
async def _store(settings: Settings, patience: float) -> AsyncIterator[Store]:
    """The store, for writing. Short commands hold it for a moment: that is worth waiting for."""
    from noetl.errors import StoreBusy
    from noetl.store.sqlite.store import SqliteStore

    deadline = time.monotonic() + patience
    while True:
        try:
            store = await SqliteStore.open(settings.database_url)
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
async def looking(settings: Settings) -> AsyncIterator[Store]:
    """The store, to read from beside whoever is writing."""
    from noetl.store.sqlite.store import SqliteStore

    store = await SqliteStore.open(settings.database_url, shared=True)
    try:
        yield store
    finally:
        await store.close()


def _keys(settings: Settings, store: Store, clock: Clock) -> Keys:
    from noetl.control.keys import Keys

    def open_vault(may_create: bool) -> Vault:
        from noetl.secrets.vault import Vault, key_from_text, keys_from_file
        from noetl.store.sqlite.connections import database_path

        if settings.secret_key is not None:
            return Vault([key_from_text(settings.secret_key)])
        database = database_path(settings.database_url)
        folder = database.parent if database is not None else Path(".noetl")
        return Vault(keys_from_file(folder / "secret.key", may_create=may_create))

    return Keys(store, open_vault, clock, _sources(settings))


@asynccontextmanager
async def looking_at_keys(settings: Settings) -> AsyncIterator[Keys]:
    """Stored credentials, to read them beside whoever is writing."""
    from noetl.control.clock import SystemClock

    async with looking(settings) as store:
        yield _keys(settings, store, SystemClock())


def _sources(settings: Settings) -> Sources:
    """Where playbooks may read secrets from, beside the stored ones."""
    from noetl.secrets.keychain import Sources

    return Sources(
        environment=os.environ,
        env_allowed=settings.env_secrets,
        file_root=settings.secret_files,
    )
