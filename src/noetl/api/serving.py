"""Serving an app until it is asked to end, and then ending well.

The first signal drains: no new connections, no new leases, whoever waits for news is answered, what
is being answered is answered to the end. The second one ends at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from noetl.api.protocol import Protocol
from noetl.errors import BadSetting

if TYPE_CHECKING:
    from noetl.api.edge import ASGIApp

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 20
KEEP_ALIVE_SECONDS = 65
BACKLOG = 2048
FILES_MAX = 65_536


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
    """A socket on that address; raises BadSetting if there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadSetting(
            f"the server cannot listen on {host}:{port}: {error.strerror or error}."
            " Another one may be running there (`noetl server status`); --port chooses another."
        ) from None


class _Server(uvicorn.Server):
    """uvicorn with our manners at the end."""

    def __init__(self, config: uvicorn.Config, draining: asyncio.Event) -> None:
        super().__init__(config)
        self._draining = draining

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_end)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _asked_to_end(self) -> None:
        if self.should_exit:
            self.force_exit = True
        logger.info("draining")
        self._draining.set()
        self.should_exit = True


def configured(app: ASGIApp, proxies: tuple[str, ...] = ()) -> uvicorn.Config:
    """How connections are served, over the network and on the machine."""
    return uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        loop="none",
        server_header=False,
        date_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    draining: asyncio.Event,
    ready: Callable[[], None],
    proxies: tuple[str, ...] = (),
) -> None:
    """Serve until SIGTERM, SIGINT or `draining`.

    `proxies` are networks whose word we take for whom they speak for; nobody else is asked.
    """
    _open_as_many_as_allowed()
    server = _Server(configured(app, proxies), draining)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    watching = asyncio.ensure_future(_end_when(draining, server))
    try:
        ready()
        await serving
    finally:
        watching.cancel()
        server.should_exit = True
        await asyncio.gather(serving, watching, return_exceptions=True)


def _open_as_many_as_allowed() -> None:
    """Connections are files, and the usual limit of 1024 is for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _end_when(draining: asyncio.Event, server: _Server) -> None:
    await draining.wait()
    server.should_exit = True
