"""HTTP/1.1 as the server speaks it: connections, the requests on them, and how they are answered.

`httptools` parses. What it finds becomes a `Request`, which is handed to the edge as soon as its
head is whole; the body follows while it is read. Requests of one connection are answered one after
the other. An answer is one write, and the kernel sends it at once: on a socket with Nagle's
algorithm a second write would wait for the client to acknowledge the first, which clients put off
for up to 40 ms.

No client can hold a connection for nothing. A head is limited in size, fields and time; a body has
a minimum speed; an answer that is not read is abandoned; and an address may have only so many
connections. All of that is refused here, before any handler sees it. One timer per connection
watches these limits; a request that arrives whole and is answered does not touch it.

Clients repeat their heads: a worker sends the same one with every report, apart from the length of
the body. A head that came before is recognised by its bytes (`Connections.heads`). It is not parsed
again, and what the edge derived from it is kept beside it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import resource
import socket
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import lru_cache
from http import HTTPStatus
from typing import Any, ClassVar, Literal, cast
from urllib.parse import unquote

import httptools
import msgspec

from noetl.api.local_socket import account_of
from noetl.errors import RETRY_SECONDS, BadRequest, TooLarge
from noetl.model.answers import Error, ErrorAnswer

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 32 * 1024
FIELDS_MAX = 100
HEAD_SECONDS = 10.0
"""How long a head may take, from its first byte or from the opening of the connection."""
BODY_SECONDS, BODY_RATE = 10.0, 8 * 1024
"""A body gets this many seconds, plus one for each BODY_RATE bytes that have arrived."""
BODY_HELD_MAX = 64 * 1024
"""How much of an unread body is buffered; the rest stays with the client."""
FRAMING_MAX = 8
"""Bytes of chunk framing per byte of body; more than that is an attack."""
KEEP_SECONDS = 65.0
"""An idle connection is closed after this."""
UNREAD_SECONDS = 60.0
"""An answer of which the client reads nothing for this long is abandoned."""
WATCH_SECONDS = 1.0
LINGER_SECONDS, LINGER_BYTES = 2.0, 1024 * 1024
"""A refused client may still be sending: closing the connection at once would lose the answer."""
CONNECTIONS_MAX = 1000
"""Connections of one address (of one /64 network with IPv6); at most half of all connections."""
FILES_RESERVED = 256
"""File descriptors kept for databases, logs and other files of this process."""
HEADS_MAX, HEAD_KEPT_BYTES_MAX = 512, 2048
"""How many heads are recognised by their bytes, and how long one may be."""
HEAD_END = b"\r\n\r\n"
UNESCAPED = (
    "the target of a request holds printable ASCII only. Escape other characters, ö as %C3%B6:"
    " `curl -G --data-urlencode` does that."
)
_HOST = re.compile(rb"[A-Za-z0-9._~:\[\]%-]*")
_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_BODILESS = frozenset({204, 304})

Stage = Literal["idle", "head", "body", "refused"]
Headers = tuple[tuple[bytes, bytes], ...]
App = Callable[["Request"], Coroutine[Any, Any, None] | None]
"""Answers a request: with the coroutine it returns, or if that is None, by itself."""


def lines_of(headers: Headers) -> bytes:
    """Headers, encoded for sending."""
    lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    if lines.count(b"\r") != len(headers) or lines.count(b"\n") != len(headers):
        raise ValueError("a line break in a header of an answer")
    return lines


class _Refused(Exception):
    """The request is refused."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Connections:
    """The connections of one listener, and the requests being answered on them."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.heads: dict[bytes, Head] = {}
        """Known heads by their bytes; the one parsed longest ago is dropped first. A head includes
        the length of its body, and nothing about it depends on the connection.
        """
        self.open: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Event | None = None
        """Set when the last connection has closed and no more are accepted."""

    def made(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self)

    async def drain(self, seconds: float, at_once: asyncio.Event | None = None) -> None:
        """Complete the requests under way and close. Requests that take longer than `seconds`, or
        are still there when `at_once` is set, are cancelled.
        """
        self._ended = asyncio.Event()
        for connection in list(self.open):
            connection.finish()
        self.look_for_end()
        waits = [asyncio.ensure_future(self._ended.wait())]
        if at_once is not None:
            waits.append(asyncio.ensure_future(at_once.wait()))
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.tasks:
            logger.warning(
                "requests were cancelled because the server is ending: %d", len(self.tasks)
            )
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in list(self.open):
            connection.transport.abort()

    def keep_head(self, written: bytes, head: Head) -> None:
        """A head was parsed from these bytes."""
        self.heads[written] = head
        if len(self.heads) > HEADS_MAX:
            del self.heads[next(iter(self.heads))]

    def look_for_end(self) -> None:
        """A connection has closed."""
        if self._ended is not None and not self.open and not self.tasks:
            self._ended.set()


class Head:
    """The head of a request, and of all others with the same bytes. Once parsed, only `found`
    changes.
    """

    __slots__ = (
        "expects",
        "found",
        "headers",
        "is_head",
        "keeps_alive",
        "knows_chunks",
        "length",
        "method",
        "path",
        "query",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: dict[bytes, bytes],
        *,
        keeps_alive: bool,
        knows_chunks: bool,
    ) -> None:
        """Raises httptools.HttpParserError for an invalid target."""
        self.is_head = method == "HEAD"
        self.method = "GET" if self.is_head else method
        """HEAD is GET without sending the body of the answer."""
        parsed = httptools.parse_url(target)
        self.target = parsed.path.decode("ascii")
        """The path as it was sent: an escaped slash separates nothing."""
        self.path = unquote(self.target) if "%" in self.target else self.target
        self.query: bytes = parsed.query or b""
        self.headers = headers
        """By lower-case name. Repeated headers are joined into one list."""
        self.keeps_alive = keeps_alive
        self.knows_chunks = knows_chunks
        self.expects = headers.get(b"expect", b"").lower() == b"100-continue"
        """The client waits for `100 Continue` before it sends the body."""
        told = b"" if b"transfer-encoding" in headers else headers.get(b"content-length", b"0")
        self.length = int(told) if told.isdigit() else None
        """The length of the body; None for a chunked one."""
        self.found: Any = None
        """What the edge derived from the head."""


class Request:
    """A request, its body as it arrives, and its answer."""

    expects = False
    """The client waits for `100 Continue` before it sends the body."""
    is_gone = False
    is_begun = False
    is_answered = False
    _arrived: asyncio.Future[None] | None = None
    _gone: asyncio.Event | None = None
    _is_chunked = False
    _left: int | None = None
    """Bytes still to send of an answer with a known length."""

    def __init__(self, connection: Connection, head: Head, body: bytes | None = None) -> None:
        """A given `body` is complete; otherwise it follows."""
        self._connection = connection
        self.head = head
        self.keeps_alive = head.keeps_alive
        self.is_whole = body is not None
        """The body has arrived completely."""
        self._pieces: list[bytes] = [body] if body else []
        """Body data that has arrived and was not read yet."""
        self._held = len(body) if body else 0
        if body is None:
            self.expects = head.expects

    @property
    def address(self) -> str:
        """The peer's address; for a process on this machine, its account."""
        return self._connection.address

    @property
    def is_head(self) -> bool:
        return self.head.is_head

    # --- The request ---

    async def read(self, most: int) -> bytes:
        """The body. Raises TooLarge (before reading, if the length is declared), and BadRequest if
        the client leaves before the end.
        """
        if self.is_whole and self._held <= most:
            return self._take()  # The usual case.
        return b"".join([piece async for piece in self.pieces(most)])

    def at_hand(self) -> bytes | None:
        """The body, if it arrived complete and in one piece. It can still be read after this."""
        return self._pieces[0] if self.is_whole and len(self._pieces) == 1 else None

    async def pieces(self, most: int) -> AsyncGenerator[bytes, None]:
        """The body in chunks as it arrives; see `read`."""
        size = 0
        if self.head.length is not None and self.head.length > most:
            raise _body_too_large(most)
        while self._held or not self.is_whole:
            if not self._held:
                await self._next_piece()
            piece = self._take()
            size += len(piece)
            if size > most:
                raise _body_too_large(most)
            if piece:
                yield piece

    async def _next_piece(self) -> None:
        if self.is_gone:
            raise BadRequest("the request ended before its body did.")
        if self.expects:
            self.expects = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._arrived = asyncio.get_running_loop().create_future()
        await self._arrived

    def _take(self) -> bytes:
        pieces, self._pieces, self._held = self._pieces, [], 0
        self._connection.read_on()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def add(self, piece: bytes) -> bool:
        """A chunk of the body has arrived. Returns whether to stop reading for now."""
        self.expects = False
        if not self.is_answered:
            self._pieces.append(piece)
            self._held += len(piece)
            self._wake()
        return self._held > BODY_HELD_MAX

    def end_body(self) -> None:
        self.is_whole = True
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def gone(self) -> None:
        """Return when the client has hung up."""
        if self._gone is None:
            self._gone = asyncio.Event()
        if not self.is_gone:
            await self._gone.wait()

    def hang_up(self) -> None:
        """The client has gone, so the answer will not be read."""
        self.is_gone = True
        self._wake()
        if self._gone is not None:
            self._gone.set()

    # --- The answer ---

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Send an answer with its whole body in one write; `lines` are the encoded headers."""
        self.is_begun = True
        if self.is_gone:
            return
        size = b"" if status in _BODILESS else b"content-length: %d\r\n" % len(body)
        head = self._head(status, lines, size)
        self._connection.write(head, b"" if self.is_head else body)
        self._finish()

    def begin(self, status: int, lines: bytes, size: int | None) -> None:
        """Begin an answer whose body is sent in chunks. The head is sent at once, because the first
        chunk may take long.
        """
        self.is_begun = True
        if self.is_gone:
            return
        framing = b""
        self._left = size
        if size is not None:
            framing = b"content-length: %d\r\n" % size
        elif not self.is_head and self.head.knows_chunks:
            self._is_chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        elif not self.is_head:
            self.keeps_alive = False  # The end of the connection marks the end of the answer.
        self._connection.write(self._head(status, lines, framing))

    async def send(self, piece: bytes) -> None:
        """Send a chunk of the body once the client has read most of what was sent before."""
        await self._connection.room()
        if self.is_gone or not piece:
            return
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise ValueError("an answer is longer than it was said to be")
        if self._is_chunked:
            self._connection.write(b"%x\r\n" % len(piece), piece, b"\r\n")
        else:
            self._connection.write(piece)

    def end(self) -> None:
        """The answer is complete."""
        if self.is_gone:
            return
        if self._is_chunked:
            self._connection.transport.write(b"0\r\n\r\n")
        if self._left and not self.is_head:
            # It was cut short: the client must not take other data for the rest.
            self.keeps_alive = False
        self._finish()

    def break_off(self) -> None:
        """Abandon an answer that was begun."""
        self._connection.transport.close()

    def _head(self, status: int, lines: bytes, framing: bytes) -> bytes:
        if self.expects or not self._connection.goes_on():
            self.keeps_alive = False
        end = b"\r\n" if self.keeps_alive else b"connection: close\r\n\r\n"
        return b"%b%b%b%b" % (_STATUS_LINES[status], lines, framing, end)

    def _finish(self) -> None:
        self.is_answered = True
        self._pieces, self._held = [], 0
        self._connection.answered(self)


class Body:
    """The body of a request, limited to a number of bytes; see `route.Incoming`."""

    __slots__ = ("_most", "_request")

    def __init__(self, request: Request, most: int) -> None:
        self._request = request
        self._most = most

    async def read(self) -> bytes:
        return await self._request.read(self._most)

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._request.pieces(self._most)


class Connection(asyncio.Protocol):
    """One connection of a client."""

    _of_address: ClassVar[Counter[str]] = Counter()

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self._file = -1
        self._begin_parser()
        self.address = ""
        self._network = ""
        self._stage: Stage = "idle"
        """The part of the request that is being received."""
        self._since = 0.0
        """When that began."""
        self._came = 0
        """Bytes received in this stage, and how many of them were body."""
        self._body = 0
        self._target = b""
        """The head being read: target, fields, their number and size."""
        self._headers: dict[bytes, bytes] = {}
        self._fields = 0
        self._head_size = 0
        self._refusal: _Refused | None = None
        self._reading: Request | None = None
        """Whose body comes."""
        self._answering: Request | None = None
        self._waiting: deque[Request] = deque()
        """Requests that arrived before the answer to the one ahead was complete."""
        self._is_paused = False
        """Reading is paused."""
        self._room: asyncio.Future[None] | None = None
        """Resolved when the client has read most of what was sent; None while it keeps up."""
        self._unread = 0
        """The write buffer when the client last read something, and the time of that."""
        self._unread_since = 0.0
        self._is_finishing = False
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    # --- The connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._file = sock.fileno()
        if sock.family == getattr(socket, "AF_UNIX", None):
            self.address = self._network = account_of(sock)
        else:
            # asyncio sets this only on sockets made with IPPROTO_TCP, which the listener's are not.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = transport.get_extra_info("peername")
            self.address = str(peer[0]) if peer else ""
            self._network = _network(self.address)
        self._connections.open.add(self)
        self._of_address[self._network] += 1
        self._begin("head")
        self._look_within(WATCH_SECONDS)
        per_address, at_all = connections_max()
        if self._of_address[self._network] > per_address:
            said = f"your address has {per_address} connections to this server, which is the limit."
            self._refuse(_Refused(HTTPStatus.TOO_MANY_REQUESTS, "too_many", said))
        elif len(self._connections.open) > at_all:
            said = "the server has no free connections."
            self._refuse(_Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too_many", said))

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._of_address[self._network] -= 1
        if not self._of_address[self._network]:
            del self._of_address[self._network]
        for request in (self._reading, self._answering, *self._waiting):
            if request is not None:
                request.hang_up()
        self._waiting.clear()
        self.resume_writing()
        self._connections.open.discard(self)
        self._connections.look_for_end()

    def eof_received(self) -> None:
        """A client that has stopped sending also stops reading: close."""

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        if self._stage == "refused":
            if self._came > LINGER_BYTES:
                self.transport.abort()
            return
        size = data.find(HEAD_END) + len(HEAD_END)
        if self._stage == "idle":
            if self._answering is None and self._room is None:
                head = self._connections.heads.get(data[:size])
                if head is not None and len(data) - size == head.length:
                    self._start(Request(self, head, data[size:]))
                    return
            self._begin("head")
            self._came = len(data)
        is_first = self._stage == "head" and self._came == len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            is_target = isinstance(error, httptools.HttpParserInvalidURLError)
            self._refuse(self._refusal or _bad(UNESCAPED if is_target else "this is not HTTP/1.1."))
            return
        framing = self._came - self._body  # For a head, all of it.
        if self._stage == "idle":
            if is_first and self._reading is not None:
                self._keep_head(data, size, self._reading.head)
            return
        if framing > HEAD_BYTES_MAX + FRAMING_MAX * self._body:
            self._refuse(_head_too_large())
        self._look_within(WATCH_SECONDS)

    def _keep_head(self, data: bytes, size: int, head: Head) -> None:
        """This data was one whole request: recognise the next one with the same head by its
        bytes.
        """
        is_one = len(data) - size == head.length and head.keeps_alive and not head.expects
        if is_one and len(HEAD_END) < size <= HEAD_KEPT_BYTES_MAX:
            self._connections.keep_head(data[:size], head)

    def finish(self) -> None:
        """Answer the requests that have arrived, then close."""
        self._is_finishing = True
        if self._answering is None and self._stage != "refused":
            self.transport.close()

    # --- What the parser finds ---

    def _begin_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        # Data after the last request of a connection is ignored.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _feed(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Upgrades are not supported, so it is a request like any other. The parser took its
                # body for another protocol: parse the head again without the upgrade.
                head = self._head_without_upgrade()
                self._begin_parser()
                self._parser.feed_data(head)
                data = memoryview(data)[upgrade.args[0] :]
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        parser, headers = self._parser, self._headers.items()
        version = parser.get_http_version().encode()
        lines = b"".join([b"%b: %b\r\n" % one for one in headers if one[0] != b"upgrade"])
        return b"%b %b HTTP/%b\r\n%b\r\n" % (parser.get_method(), self._target, version, lines)

    def on_message_begin(self) -> None:
        if self._stage != "head":  # Another request in the same data.
            self._begin("head")
        self._target, self._headers, self._fields, self._head_size = b"", {}, 0, 0
        self._reading = None

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._head_size += len(name) + len(value)
        if self._stage != "head" or self._fields > FIELDS_MAX:
            return  # Fields after a body are trailers, not headers.
        name, headers = name.lower(), self._headers
        headers[name] = headers[name] + b", " + value if name in headers else value

    def on_headers_complete(self) -> None:
        self._refusal = self._refusal_of_head()
        if self._refusal is not None:
            raise self._refusal
        parser = self._parser
        if parser.should_upgrade():
            return  # It is parsed again.
        is_new = parser.get_http_version() != "1.0"
        head = Head(
            parser.get_method().decode("ascii"),
            self._target,
            self._headers,
            keeps_alive=is_new and parser.should_keep_alive(),
            knows_chunks=is_new,
        )
        request = self._reading = Request(self, head)
        self._begin("body")
        if self._answering is None and self._room is None:
            self._start(request)
        else:
            self._waiting.append(request)
            self._stop_reading()

    def _refusal_of_head(self) -> _Refused | None:
        if self._fields > FIELDS_MAX or self._head_size + len(self._target) > HEAD_BYTES_MAX:
            return _head_too_large()
        host = self._headers.get(b"host")
        if host is None and self._parser.get_http_version() != "1.0":
            return _bad("a request needs the header Host.")
        if host is not None and not _HOST.fullmatch(host):
            return _bad("the header Host is one name or address, with an optional port.")
        if not self._target.startswith(b"/"):
            return _bad("the target of a request is a path that begins with a slash.")
        if self._parser.should_upgrade():
            if self._parser.get_method() == b"CONNECT":
                return _bad("this is not a proxy.")
            if b"websocket" in self._headers.get(b"upgrade", b"").lower():
                return _Refused(
                    HTTPStatus.FORBIDDEN, "not_allowed", "web sockets are not supported."
                )
        return None

    def on_body(self, piece: bytes) -> None:
        self._body += len(piece)
        if self._reading is not None and self._reading.add(piece):
            self._stop_reading()

    def on_message_complete(self) -> None:
        if self._reading is not None:
            self._stage = "idle"
            self._reading.end_body()

    # --- Answers ---

    def _start(self, request: Request) -> None:
        self._answering = request
        answering = self._connections.app(request)
        if answering is None:
            return
        task = self._loop.create_task(answering)
        self._connections.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._connections.tasks.discard(task)
        self._connections.look_for_end()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a request was not answered", exc_info=error)
        if error is not None or task.cancelled():
            self.transport.close()

    def answered(self, request: Request) -> None:
        """Answer the next request, if one is waiting."""
        self._answering = None
        if unread := self.transport.get_write_buffer_size():
            self._watch_unread(unread)
        if not (request.keeps_alive and self.goes_on()):
            self._waiting.clear()
            if request.is_whole and self._stage != "refused":
                self.transport.close()
            else:
                self._linger()
            return
        if self._stage == "idle":
            self._since = self._loop.time()
        self._go_on()

    def _go_on(self) -> None:
        """Answer the next waiting request, unless the client has not yet read the last answer."""
        if self._answering is None and self._room is None and self._waiting:
            self._start(self._waiting.popleft())
        self.read_on()

    def goes_on(self) -> bool:
        """Whether another answer follows this one."""
        return bool(self._waiting) or not self._is_finishing

    def write(self, *parts: bytes) -> None:
        """Send the parts together, immediately if nothing is queued before them.

        uvloop would hold them until the end of this loop iteration and join them: for data with
        many readers, that is one copy per reader.
        """
        sent = 0
        if not self.transport.get_write_buffer_size() and not self.transport.is_closing():
            try:
                sent = os.writev(self._file, parts)
            except OSError:
                sent = 0  # The transport handles the error.
            if sent == sum(map(len, parts)):
                return
        self.transport.write(b"".join(parts)[sent:])

    async def room(self) -> None:
        """Wait until the client has read most of what was sent."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()
        self._watch_unread(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
            self._go_on()

    def _stop_reading(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Resume reading, unless a request is waiting whose turn comes first."""
        if self._is_paused and not self._waiting and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    # --- Timeouts ---

    def _begin(self, stage: Stage) -> None:
        self._stage = stage
        self._since = self._loop.time()
        self._came = self._body = 0

    def _look_within(self, seconds: float) -> None:
        due = self._loop.time() + seconds
        if self._timer is not None:
            if self._rings_at <= due:
                return
            self._timer.cancel()
        self._rings_at = due
        self._timer = self._loop.call_later(seconds, self._look)

    def _watch_unread(self, size: int) -> None:
        self._unread, self._unread_since = size, self._loop.time()
        self._look_within(WATCH_SECONDS)

    def _look(self) -> None:
        """Abandon what takes too long; check again while the connection is open."""
        self._timer = None
        now = self._loop.time()
        took = now - self._since
        if not self.transport.is_closing() or self._stage == "refused":
            self._look_at_request(now, took)
        # A closed connection stays until the client has read what was sent before.
        left = self.transport.get_write_buffer_size()
        if left and left != self._unread:
            self._unread, self._unread_since = left, now
        elif left and now - self._unread_since > UNREAD_SECONDS:
            self.transport.abort()
        elif not left and self.transport.is_closing() and self._stage != "refused":
            return
        is_half_done = self._stage != "idle" or left
        idle_left = KEEP_SECONDS if self._answering is not None else KEEP_SECONDS - took
        self._look_within(WATCH_SECONDS if is_half_done else max(idle_left, WATCH_SECONDS))

    def _look_at_request(self, now: float, took: float) -> None:
        match self._stage:
            case "refused" if self._answering is not None and not self._answering.is_gone:
                pass  # It has its answer first.
            case "refused" if took > LINGER_SECONDS:
                self.transport.abort()
            case "head" | "body" if self._is_paused:
                self._since = now  # We are the ones who are not reading.
            case "head" if took > HEAD_SECONDS:
                self._give_up()
            case "body" if took > BODY_SECONDS + self._came / BODY_RATE:
                self._give_up()
            case "idle" if self._answering is None and took >= KEEP_SECONDS:
                self.transport.close()

    def _give_up(self) -> None:
        if self._stage == "head" and not self._came:
            self.transport.close()  # No request was begun.
            return
        said = "the request did not arrive whole in time."
        self._refuse(_Refused(HTTPStatus.REQUEST_TIMEOUT, "too_slow", said))

    def _refuse(self, refusal: _Refused) -> None:
        """Refuse the request, unless an earlier answer is under way, and close."""
        owed, asked = self._answering, self._reading if self._stage == "body" else None
        if self.transport.is_closing():
            self._begin("refused")
            return
        if self._waiting or (owed is not None and (owed is not asked or owed.is_begun)):
            self._answer_those_before(asked)
            return
        status, error = refusal.status, Error(code=refusal.code, message=str(refusal))
        body = msgspec.json.encode(ErrorAnswer(error=error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            head += b"retry-after: %d\r\n" % RETRY_SECONDS
        end = b"connection: close\r\n\r\n"
        self.transport.write(b"%b%b%b%b" % (_STATUS_LINES[status.value], head, end, body))
        if owed is not None:
            owed.hang_up()  # A reader of the body continues without the rest.
        self._linger()

    def _answer_those_before(self, broken: Request | None) -> None:
        """Close once the requests that arrived whole have their answers; the one whose body breaks
        off gets none.
        """
        self._is_finishing = True
        self._begin("refused")
        if broken is not None and broken in self._waiting:
            self._waiting.remove(broken)
        owed = self._answering
        if (owed is None and not self._waiting) or (owed is not None and owed is broken):
            self.transport.close()

    def _linger(self) -> None:
        """Close once the client has had time to stop sending and to read the answer."""
        self._begin("refused")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._look_within(WATCH_SECONDS)


def _bad(message: str) -> _Refused:
    return _Refused(HTTPStatus.BAD_REQUEST, "bad_request", message)


def _head_too_large() -> _Refused:
    return _Refused(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "too_large",
        f"the head of a request has at most {FIELDS_MAX} fields and {HEAD_BYTES_MAX} bytes.",
    )


def _body_too_large(most: int) -> TooLarge:
    return TooLarge(f"the body has more than {most:,} bytes, the most that this route reads.")


def _network(host: str) -> str:
    """The unit that connections are counted by: an address, or with IPv6 the smallest network that
    people get.
    """
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
    """The limits of connections: of one address, and of all."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 2**20
    at_all = max(files // 2, files - FILES_RESERVED)
    return min(CONNECTIONS_MAX, at_all // 2), at_all
