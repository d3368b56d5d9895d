"""Serve until a signal or a drain request, then shut down cleanly.

The first signal drains: no new connections, no new leases, long polls are answered, and requests
under way are completed. The second signal ends the server at once.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import signal
import socket
from collections.abc import Callable

from noetl.api.protocol import App, Connections
from noetl.errors import BadSetting

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 20
BACKLOG = 2048
FILES_MAX = 65_536


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
    """Bind a socket to that address. Raises BadSetting if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadSetting(f"the server cannot listen on {host}:{port}: {_why_not(error)}") from None


def _why_not(error: OSError) -> str:
    """Why a socket could not be bound, and what to do."""
    match error.errno:
        case errno.EADDRINUSE:
            return (
                "the port is in use. Another server may be running there (`noetl server status`);"
                " --port chooses another."
            )
        case errno.EACCES:
            return "this account may not use that port. --port chooses another, such as 8082."
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address. --host names one of its own, or 0.0.0.0."
    return f"{error.strerror or error}. --host and --port choose another address."


async def serve(
    app: App, listener: socket.socket, draining: asyncio.Event, ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM, SIGINT or `draining`."""
    _open_as_many_as_allowed()
    loop, at_once = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        if draining.is_set():
            at_once.set()
        logger.info("draining")
        draining.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    connections = Connections(app)
    server = await loop.create_server(connections.made, sock=listener, backlog=BACKLOG)
    try:
        ready()
        await draining.wait()
    finally:
        server.close()
        await connections.drain(DRAIN_SECONDS, at_once)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _open_as_many_as_allowed() -> None:
    """Raise the limit of open files: each connection is one, and the usual 1024 are for programs
    that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
