"""How a connection of the server speaks HTTP/1.1: uvicorn's way, with our manners and our caps.

An answer is one write, and the kernel sends it at once. uvicorn writes head and body apart, and on
a socket with Nagle's algorithm the second write waits for the client to acknowledge the first,
which clients put off for up to 40 ms.

Nobody holds a connection for nothing: a head has a size, a number of fields and a time, a body has
a least speed, an answer that nobody reads is given up, and an address has so many connections. What
is refused is refused here, before anything of it is looked at. One timer per connection looks after
all of that, and runs only while something is half done.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import resource
import socket
from collections import Counter
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from noetl.api.local_socket import account_of
from noetl.model.answers import Error, ErrorAnswer

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

HEAD_BYTES_MAX = 32 * 1024
FIELDS_MAX = 100
HEAD_SECONDS = 10.0
"""So long a head may take, from its first byte or from the beginning of the connection."""
BODY_SECONDS, BODY_RATE = 10.0, 8 * 1024
"""A body has so many seconds, and one more for each so many bytes that came."""
FRAMING_MAX = 8
"""Bytes of framing for each byte of a body: more is no body but a trick."""
UNREAD_SECONDS = 60.0
"""An answer of which nothing is read for so long is given up."""
WATCH_SECONDS = 1.0
LINGER_SECONDS, LINGER_BYTES = 2.0, 1024 * 1024
"""Whoever is refused may still be sending: a connection closed at once would lose the answer."""
CONNECTIONS_MAX = 1000
"""Of one address (of one /64 network with IPv6), and at most half of those that we may open."""
FILES_RESERVED = 256
"""For databases, logs and what else this process opens."""
_HOST = re.compile(rb"[A-Za-z0-9._~:\[\]%-]*")

Stage = Literal["idle", "head", "body", "refused"]


class _Refused(Exception):
    """This request goes no further."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Protocol(HttpToolsProtocol):
    """One connection of a client."""

    _of_address: ClassVar[Counter[str]] = Counter()

    _stage: Stage = "idle"
    """What of a request is under way."""
    _since = 0.0
    _came = 0
    """Bytes of this stage, and how many of them were body."""
    _body = 0
    _refusal: _Refused | None = None
    _watch: asyncio.TimerHandle | None = None
    _unread = 0
    """What waited to be read by the client when it last read something, and since when."""
    _unread_since = 0.0
    _address = ""

    # --- The connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        _send_at_once(transport)
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family == getattr(socket, "AF_UNIX", None):
            self.client = (account_of(sock), 0)
        self._address = _network(self.client[0] if self.client is not None else "")
        self._of_address[self._address] += 1
        self._begin("head")
        per_address, at_all = connections_max()
        if self._of_address[self._address] > per_address:
            self._refuse(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many",
                f"your address has {per_address} connections to this server, which is all it gets.",
            )
        elif len(self.connections) > at_all:
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "too_many", "the server has no connection to spare."
            )

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._of_address[self._address] -= 1
        if not self._of_address[self._address]:
            del self._of_address[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._came += len(data)
        if self._stage == "refused":
            if self._came > LINGER_BYTES:
                self.transport.abort()
            return
        if self._stage == "idle":
            self._begin("head")
            self._came = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._stage = "idle"
                self.handle_websocket_upgrade()
            return
        except httptools.HttpParserError:
            refusal = self._refusal or _Refused(
                HTTPStatus.BAD_REQUEST, "bad_request", "this is not HTTP/1.1."
            )
            self._refuse(refusal.status, refusal.code, str(refusal))
            return
        framing = self._came - self._body  # of a head, all of it
        if self._stage != "idle" and framing > HEAD_BYTES_MAX + FRAMING_MAX * self._body:
            self._refuse(*_too_large())
        if self._stage != "idle" and self._watch is None:
            self._watch = self.loop.call_later(WATCH_SECONDS, self._look)

    # --- What the parser finds ---

    def on_message_begin(self) -> None:
        if self._stage != "head":  # another request in the same piece
            self._begin("head")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage == "head":  # what comes behind a body is no header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        refusal = self._refusal_of_head()
        if refusal is not None:
            self._refusal = refusal
            raise refusal
        self._begin("body")
        super().on_headers_complete()

    def _refusal_of_head(self) -> _Refused | None:
        headers = self.headers
        if len(headers) > FIELDS_MAX or (
            self._came > HEAD_BYTES_MAX
            and sum(len(name) + len(value) for name, value in headers) + len(self.url)
            > HEAD_BYTES_MAX
        ):
            return _Refused(*_too_large())
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            return _bad("a request has exactly one Host.")
        if hosts and not _HOST.fullmatch(hosts[0]):
            return _bad("the Host of a request is a name or an address, and perhaps a port.")
        if not self.url.startswith(b"/"):
            return _bad("what is asked for is a path that begins with a slash.")
        return None

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = "idle"
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        cycle.transport = cast(asyncio.Transport, _Answer(cycle))
        super()._start_asgi_task(cycle, app)

    # --- Patience ---

    def _begin(self, stage: Stage) -> None:
        self._stage = stage
        self._since = self.loop.time()
        self._came = self._body = 0
        if stage == "head" and self._watch is None:
            self._watch = self.loop.call_later(WATCH_SECONDS, self._look)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_unread()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._watch_unread()

    def _watch_unread(self) -> None:
        self._unread, self._unread_since = self.transport.get_write_buffer_size(), self.loop.time()
        if self._watch is None:
            self._watch = self.loop.call_later(WATCH_SECONDS, self._look)

    def _look(self) -> None:
        """Give up what takes too long; look again while something is half done."""
        self._watch = None
        now = self.loop.time()
        if not self.transport.is_closing() or self._stage == "refused":
            self._look_at_request(now)
        # A connection that is closed stays until the client has read what was sent before.
        left = self.transport.get_write_buffer_size()
        if left and left != self._unread:
            self._unread, self._unread_since = left, now
        elif left and now - self._unread_since > UNREAD_SECONDS:
            self.transport.abort()
        elif not left and self.transport.is_closing() and self._stage != "refused":
            return
        if self._stage != "idle" or left:
            self._watch = self.loop.call_later(WATCH_SECONDS, self._look)

    def _look_at_request(self, now: float) -> None:
        took = now - self._since
        match self._stage:
            case "refused" if took > LINGER_SECONDS:
                self.transport.abort()
            case "head" | "body" if self.flow.read_paused:
                self._since = now  # it is we who do not read
            case "head" if took > HEAD_SECONDS:
                self._give_up()
            case "body" if took > BODY_SECONDS + self._came / BODY_RATE:
                self._give_up()

    def _give_up(self) -> None:
        if self._stage == "head" and not self._came:
            self.transport.close()  # nothing was asked
            return
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT, "too_slow", "the request did not arrive whole in time."
        )

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """Answer that, unless an answer to something before is under way, and hang up."""
        is_owed = self.cycle is not None and not self.cycle.response_complete
        is_asked = self._stage == "body" and is_owed and not self.cycle.response_started
        self._stage, self._since, self._came = "refused", self.loop.time(), 0
        if self.transport.is_closing():
            return
        if is_owed and (not is_asked or self.pipeline):
            self.transport.close()
            return
        body = msgspec.json.encode(ErrorAnswer(error=Error(code=code, message=message)))
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        )
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            head += "retry-after: 10\r\n"
        self.transport.write(head.encode() + b"\r\n" + body)
        if is_asked:
            self.cycle.disconnected = True  # whoever waits for the body goes on without
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._watch is None:
            self._watch = self.loop.call_later(WATCH_SECONDS, self._look)

    def eof_received(self) -> None:
        if self._stage == "refused":
            self.transport.close()
        super().eof_received()


def _bad(message: str) -> _Refused:
    return _Refused(HTTPStatus.BAD_REQUEST, "bad_request", message)


def _too_large() -> tuple[HTTPStatus, str, str]:
    return (
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "too_large",
        f"the head of a request has at most {FIELDS_MAX} fields and {HEAD_BYTES_MAX} bytes.",
    )


def _network(host: str) -> str:
    """Whom we count together: an address, or with IPv6 the smallest network that people get."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


@lru_cache(1)
def connections_max() -> tuple[int, int]:
    """Of one address, and of all."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 2**20
    at_all = max(files // 2, files - FILES_RESERVED)
    return min(CONNECTIONS_MAX, at_all // 2), at_all


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
