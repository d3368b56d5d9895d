"""The composition root: the one place that knows which parts make up the system.

Each function imports what it joins when it is called, so that a command pays only for the parts
it uses.
"""

from __future__ import annotations

import asyncio
import os
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
    from noetl.settings import Settings
    from noetl.store.sqlite.store import SqliteStore as Store


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
    recovered: int = 0
    """Commands of an earlier process that go on in this one."""


@asynccontextmanager
async def embedded(settings: Settings, *, work: bool = True) -> AsyncIterator[System]:
    """A whole system in this process: store, orchestrator and worker, joined by plain calls.

    Without `work` nothing runs: for commands that act on executions which have stopped.
    """
    from noetl.control.catalog import Catalog
    from noetl.control.clock import SystemClock
    from noetl.control.executions import Executions
    from noetl.control.orchestrator import Orchestrator
    from noetl.control.timekeeping import recover

    clock = SystemClock()
    async with _store(settings) as store:
        orchestrator = Orchestrator(store, clock)
        keys = await _keys(settings, store, clock)
        system = System(
            executions=Executions(orchestrator, store, clock, keys.missing),
            catalog=Catalog(store, compiler(settings), clock),
            keys=keys,
            store=store,
            orchestrator=orchestrator,
        )
        async with _running(orchestrator.run()):
            if not work:
                yield system
                return
            recovered = await recover(orchestrator, store)
            async with _at_work(orchestrator, store, clock, keys, settings):
                yield msgspec.structs.replace(system, recovered=recovered)


@asynccontextmanager
async def _at_work(
    orchestrator: Orchestrator, store: Store, clock: Clock, keys: Keys, settings: Settings
) -> AsyncIterator[None]:
    """Timers that fire, leases that lapse, and a worker that runs what is handed out."""
    from noetl.control.local import LocalControl
    from noetl.control.timekeeping import fire_timers, requeue_lapsed
    from noetl.tools.registry import tools
    from noetl.tools.running.resources import ToolResources
    from noetl.worker.sandbox import SandboxPool
    from noetl.worker.worker import Worker

    resources = ToolResources(SandboxPool)
    worker = Worker(
        LocalControl(orchestrator, store, keys.credential),
        tools(),
        resources,
        worker_id=f"embedded-{os.getpid()}",
        slots=settings.slots,
        now=clock.now,
        variables=_variables(settings),
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
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        yield
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _store(settings: Settings) -> AsyncIterator[Store]:
    from noetl.store.sqlite.store import SqliteStore

    store = await SqliteStore.open(settings.database_url)
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


async def _keys(settings: Settings, store: Store, clock: Clock) -> Keys:
    from noetl.control.keys import Keys
    from noetl.secrets.vault import Vault, derived_key, key_from_file
    from noetl.store.sqlite.connections import database_path

    if settings.secret_key is not None:
        master = derived_key(settings.secret_key)
    else:
        database = database_path(settings.database_url)
        folder = database.parent if database is not None else Path(".noetl")
        sealed = await store.credentials()
        master = key_from_file(folder / "secret.key", may_create=not sealed)
    return Keys(store, Vault(master), clock, _variables(settings))


def _variables(settings: Settings) -> dict[str, str]:
    """The variables that playbooks may read as secrets."""
    return {name: os.environ[name] for name in settings.env_secrets if name in os.environ}
