"""A server, and workers for it: the parts that `wiring.embedded` joins, on several machines.

As there, everything is imported when it is needed: a command pays for what it uses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from noetl import configured, wiring
from noetl.control.clock import SystemClock
from noetl.errors import BadSetting, StoreError

if TYPE_CHECKING:
    from noetl.api.protocol import App
    from noetl.api.services import Services
    from noetl.control.recordings import Recording
    from noetl.model.commands import Presence
    from noetl.settings import Settings
    from noetl.worker.worker import Worker


logger = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
"""Between two heartbeats of the worker in this process."""
RETURN_SECONDS = 10.0
"""How long workers may take to come back after a server's start before others get their work."""


class Served(NamedTuple):
    """A server that is ready to serve."""

    app: App
    listener: socket.socket
    draining: asyncio.Event
    is_open: bool
    """No users are configured: every caller has full access."""


@asynccontextmanager
async def server(settings: Settings, *, host: str, port: int, work: bool) -> AsyncIterator[Served]:
    """A server: the same control plane, reached over HTTP; with `work`, a worker in it, too.

    While no users are configured, it listens on this machine only.
    """
    from noetl.api.edge import Edge
    from noetl.api.listener import is_loopback, listening
    from noetl.model.commands import EMBEDDED
    from noetl.ui import Pages

    configured.operator_key(settings).require()
    async with wiring.embedded(settings, work=False, serves=True) as system:
        is_open = await system.access.is_open()
        if is_open and not is_loopback(host):
            raise BadSetting(
                f"no users are configured, so the server does not listen on {host}."
                " Create an administrator first: `noetl access user add NAME --role admin`."
            )
        with listening(host, port) as listener:
            pages = Pages() if settings.ui else None
            origins, proxies = settings.cors_origins, settings.trusted_proxies
            app = Edge(system, origins=origins, proxies=proxies, pages=pages)
            served = Served(app, listener, system.draining, is_open)
            # Workers of other processes keep their leases; one that was in this process is gone.
            if system.store.exclusive:
                await system.orchestrator.leases.take_over(lambda name: name.startswith(EMBEDDED))
            async with (
                wiring.tracing_ends(system) as spans,
                wiring.keeping_time(system, grace=RETURN_SECONDS),
                wiring.keeping_triggers(system),
                wiring.in_background(system.retention.run()),
            ):
                if not work:
                    yield served
                    return
                async with (
                    wiring.local_worker(system, spans) as inside,
                    _announced(system, inside),
                ):
                    yield served


@asynccontextmanager
async def showing(settings: Settings, recording: Recording, port: int) -> AsyncIterator[Served]:
    """A recording behind the same pages and routes as on a server, for this machine only. Nothing
    runs, and no one may act.
    """
    from noetl.api.edge import ShowingEdge
    from noetl.api.listener import listening
    from noetl.control.recordings import keep
    from noetl.ui import Pages

    with tempfile.TemporaryDirectory(prefix="noetl-recording-") as folder:
        here = msgspec.structs.replace(settings, database_url=f"sqlite:///{folder}/recording.db")
        async with wiring.embedded(here, work=False) as system:
            await keep(system.store, recording)
            with listening("127.0.0.1", port) as listener:
                app = ShowingEdge(system, pages=Pages())
                yield Served(app, listener, system.draining, True)


@asynccontextmanager
async def _announced(system: Services, worker: Worker) -> AsyncIterator[None]:
    """The worker in this process is listed among its pool like any other."""
    from noetl.store.base import Runtime

    me = wiring.presence(system.settings, worker.worker_id, worker.pool, worker.slots)
    name, runtimes = me.worker_id, system.store.runtimes

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await runtimes.beat(Runtime.of(me, name, system.clock.now()))
            except StoreError as error:
                logger.warning("no heartbeat: %s", error)

    await runtimes.beat(Runtime.of(me, name, system.clock.now()))
    async with wiring.in_background(beat()):
        yield
    await runtimes.leave(name)


async def worker(
    settings: Settings,
    me: Presence,
    ending: asyncio.Event,
    *,
    kinds: tuple[str, ...],
    grace: float,
    on_ready: Callable[[], None],
) -> None:
    """A worker for servers somewhere else, until `ending` is set: the same class, another
    control.
    """
    from noetl.api.worker_control import HttpControl
    from noetl.templates import Views
    from noetl.tools.registry import tool_of
    from noetl.worker import process

    wiring.look_rarely_for_cycles()
    async with (
        wiring.tracing(me.worker_id) as spans,
        HttpControl(settings.server_urls, Views(tool_of), settings.token, kinds) as control,
        wiring.worker_of(control, settings, me, now=SystemClock().now, spans=spans) as made,
    ):
        await process.live(made, control, me, ending, grace=grace, on_ready=on_ready)
