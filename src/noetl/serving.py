"""A server, and workers for it: the parts that `wiring.embedded` joins, on several machines.

As there, everything is imported when it is needed: a command pays for what it uses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from noetl import wiring
from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.api.access import Access
    from noetl.api.client import HttpControl
    from noetl.api.edge import ASGIApp
    from noetl.api.evaluating import Evaluator
    from noetl.api.metrics import AskNats
    from noetl.api.services import Services
    from noetl.settings import Settings
    from noetl.store.access import SessionStore
    from noetl.wiring import System
    from noetl.worker.worker import Worker


logger = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
"""Between two signs of life of the worker in this process."""
RETURN_SECONDS = 10.0
"""After a server has started, so long workers have to come back before others get their work."""


class Served(NamedTuple):
    """A server that is ready to serve."""

    app: ASGIApp
    listener: socket.socket
    draining: asyncio.Event
    is_open: bool
    """Nobody is configured: whoever reaches it may do everything."""


@asynccontextmanager
async def server(settings: Settings, *, host: str, port: int, work: bool) -> AsyncIterator[Served]:
    """A server: the same control plane, reached over HTTP; with `work`, a worker in it, too.

    While nobody is configured who may come in, it listens on this machine only.
    """
    from noetl.api.app import build
    from noetl.api.serving import is_loopback, listening
    from noetl.control.timekeeping import recover
    from noetl.errors import BadSetting

    wiring.operator_key(settings).require()
    async with (
        wiring.embedded(settings, work=False, serves=True) as system,
        _evaluator(settings) as evaluator,
    ):
        services = _services(system, settings, evaluator)
        is_open = await services.access.is_open()
        if is_open and not is_loopback(host):
            raise BadSetting(
                f"nobody is configured who may come in, so the server does not listen on {host}."
                " Create an administrator first: `noetl access user add NAME --role admin`."
            )
        with listening(host, port) as listener:
            served = Served(
                build(services, settings.cors_origins), listener, services.draining, is_open
            )
            # Workers of other processes keep their leases; one that was in this process is gone.
            if system.store.exclusive:
                await recover(system.orchestrator, store=system.store, prefix=wiring.EMBEDDED)
            async with wiring.keeping_time(system, grace=RETURN_SECONDS):
                if not work:
                    yield served
                    return
                async with (
                    wiring.local_worker(system, settings) as inside,
                    _announced(system, inside),
                ):
                    yield served


@asynccontextmanager
async def _announced(system: System, worker: Worker) -> AsyncIterator[None]:
    """The worker in this process is listed among its pool like any other."""
    from noetl.errors import StoreError
    from noetl.store.base import Runtime

    now = system.clock.now()
    me = Runtime(
        name=worker.worker_id,
        kind="worker",
        started_at=now,
        seen_at=now,
        pool=worker.pool,
        slots=worker.slots,
        host=socket.gethostname(),
        version=__version__,
    )

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await system.store.beat(msgspec.structs.replace(me, seen_at=system.clock.now()))
            except StoreError as error:
                logger.warning("no heartbeat: %s", error)

    await system.store.beat(me)
    async with wiring.in_background(beat()):
        yield
    await system.store.leave(me.name)


@asynccontextmanager
async def access(settings: Settings) -> AsyncIterator[Access]:
    """Users and tokens in a database that no server has."""
    from noetl.api.access import Access
    from noetl.api.sessions import Sessions
    from noetl.control.clock import SystemClock

    clock = SystemClock()
    async with wiring.open_for_writing(settings, patience=1.0) as store:
        yield Access(store, Sessions(store, clock), clock)


def _session_store(system: System) -> SessionStore:
    """The database; where there is NATS, with copies there."""
    if system.nats is None:
        return system.store
    from noetl.store.nats.sessions import CopiedSessions

    return CopiedSessions(system.nats.sessions, system.store)


def _nats_figures(system: System) -> AskNats | None:
    """How to ask how NATS does."""
    from noetl.api.metrics import NatsFigures

    nats = system.nats
    if nats is None:
        return None
    return lambda: NatsFigures(
        is_connected=nats.line.is_connected,
        connects=nats.line.connects,
        failures=nats.line.failures,
        copies_found=nats.bodies.found,
        copies_missed=nats.bodies.missed,
    )


@asynccontextmanager
async def _evaluator(settings: Settings) -> AsyncIterator[Evaluator]:
    from noetl.api.evaluating import Evaluator

    evaluator = Evaluator(settings.limits)
    try:
        yield evaluator
    finally:
        await evaluator.close()


def _services(system: System, settings: Settings, evaluator: Evaluator) -> Services:
    from noetl.api.access import Access
    from noetl.api.leases import Leases
    from noetl.api.metrics import Metrics
    from noetl.api.services import Services
    from noetl.api.sessions import Sessions
    from noetl.api.stream import Streams
    from noetl.control.local import LocalControl
    from noetl.control.records import Records

    store, clock = system.store, system.clock
    sessions = Sessions(_session_store(system), clock)
    nats = _nats_figures(system)
    decisions = system.orchestrator.commits
    metrics = Metrics(lambda: (decisions.states_found, decisions.states_read), nats)
    decisions.on_ended = metrics.finished
    draining = asyncio.Event()
    return Services(
        executions=system.executions,
        records=Records(store),
        catalog=system.catalog,
        keys=system.keys,
        store=store,
        orchestrator=system.orchestrator,
        tokens=system.tokens,
        control=LocalControl(system.orchestrator, store, system.keys.credential, system.tokens),
        clock=clock,
        access=Access(store, sessions, clock),
        sessions=sessions,
        leases=Leases(store, clock),
        evaluator=evaluator,
        metrics=metrics,
        streams=Streams(store, system.orchestrator.audience, metrics, draining),
        nats=nats,
        rotate_keys=lambda: wiring.rotate_keys(settings, system.keys),
        draining=draining,
    )


@asynccontextmanager
async def worker(
    settings: Settings, *, pool: str, slots: int, worker_id: str, kinds: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Worker, HttpControl]]:
    """A worker for servers somewhere else: the same class, another control."""
    from noetl.api.client import HttpControl
    from noetl.control.clock import SystemClock
    from noetl.tools.registry import tools
    from noetl.worker.worker import Worker

    wiring.look_rarely_for_cycles()
    resources, sources = wiring.for_worker(settings, slots)
    try:
        async with HttpControl(settings.server_urls, settings.token, kinds) as control:
            made = Worker(
                control,
                tools(),
                resources,
                worker_id=worker_id,
                pool=pool,
                slots=slots,
                now=SystemClock().now,
                sources=sources,
            )
            yield made, control
    finally:
        await resources.close()
