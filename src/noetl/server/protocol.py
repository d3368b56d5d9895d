"""How a connection of the server speaks HTTP/1.1: uvicorn's way, with our manners.

An answer is one write, and the kernel sends it at once. uvicorn writes head and body apart, and on
a socket with Nagle's algorithm the second write waits for the client to acknowledge the first,
which clients put off for up to 40 ms.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


class Protocol(HttpToolsProtocol):
    """One connection of a client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        _send_at_once(transport)
        super().connection_made(transport)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        cycle.transport = cast(asyncio.Transport, _Answer(cycle))
        super()._start_asgi_task(cycle, app)


class _Answer:
    """The transport of one answer: the head of a sized answer waits for its body.

    An answer without a size is a stream. Its head is sent alone, because its first piece may take
    long.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = None
        self._has_begun = False

    def write(self, data: bytes) -> None:
        cycle = self._cycle
        if self._head is not None:
            data, self._head = self._head + data, None
        elif cycle.response_started and not self._has_begun:
            self._has_begun = True
            if cycle.expected_content_length > 0 and cycle.scope["method"] != "HEAD":
                self._head = data
                return
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _send_at_once(transport: asyncio.Transport) -> None:
    """Set TCP_NODELAY. asyncio does so only on sockets that were made with IPPROTO_TCP, and the
    listener's were not."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
