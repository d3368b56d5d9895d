"""A lean HTTP/1.1 client, for workers and commands that send many small requests to few servers.

An error of the server is raised here as the exception it was there. If no server answers, a request
fails at once; workers keep trying (see `worker_control`).

A worker sends a request per step, and what a general HTTP client does for each (contexts, cookies,
redirects, streams, timers) cost it several times what the step itself did. Here a request is one
write, an answer one read, and the parsing is done by `httptools`, as it is in our server.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

import httptools
import msgspec
from aiohappyeyeballs import start_connection

from noetl.api.route import IDEMPOTENCY_KEY
from noetl.errors import (
    BadInputs,
    NoetlError,
    PlaybookRejected,
    StoreError,
    Unreachable,
    Unsent,
    reason_of,
)
from noetl.model.problems import Problem
from noetl.settings import without_password
from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.api.client import Call
    from noetl.api.route import AnyRoute

CONNECT_SECONDS = 5.0
T = TypeVar("T")
ANSWER_SECONDS = 60.0
"""How long a server may be silent, unless the caller of `request` says otherwise. A long answer may
take longer as long as data keeps arriving."""
KEEP_SECONDS = 15.0
"""A connection that was idle for longer may be dead without our knowing, so it is not reused."""
IPV4_TOO_AFTER = 0.25
BUFFER_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
SAFE_TO_REPEAT = frozenset({"GET", "PUT", "DELETE"})
AVOID_SECONDS = 30.0
"""For this long, a server that did not answer is asked only after all others."""
TARGETS_REMEMBERED = 256
PATH_SAFE = "/%:@!$&'()*+,;=?"
"""Characters that stay unquoted in a path; its parameters are quoted already."""
_TRY_AGAIN = frozenset({502, 503, 504})
Params = dict[str, str] | list[tuple[str, str]]


class Answer(NamedTuple):
    status: int
    body: bytes
    location: str | None
    """The `Location` of a redirect."""


class Connection(asyncio.BufferedProtocol):
    """One connection: a request, its response, the next request.

    It brings its own buffer, because asyncio would allocate 256 KiB for each response.
    """

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self._seconds = ANSWER_SECONDS
        self._is_usable = True
        self._unsent = 0
        self.has_heard = False
        """Whether any data has arrived since the request."""
        self.last_heard = 0.0
        self._begin_answer()

    def _begin_answer(self) -> None:
        self._pieces: list[bytes] = []
        self._location: str | None = None
        self._head_size = 0
        self._has_head = False
        self._has_length = False

    async def ask(self, request: bytes, seconds: float = ANSWER_SECONDS) -> Answer:
        """Send a request and return the response. Raises OSError, after which the connection is
        unusable.

        TimeoutError: the server sent nothing and accepted nothing for `seconds`.
        """
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        self._begin_answer()
        self.has_heard = False
        self.last_heard = self._loop.time()
        self._seconds = seconds
        due = self.last_heard + seconds
        if self._timer is None or due < self._rings_at:
            self._ring_at(due)
        self._transport.write(request)
        self._unsent = self.unsent()
        try:
            return await waiter
        except asyncio.CancelledError:
            # Data that still arrives must not be taken for the response to another request.
            self.close()
            raise
        finally:
            self._waiter = None

    def is_usable(self) -> bool:
        """Whether the connection can take another request: nothing is left of the last one."""
        return self._is_usable and not self.unsent()

    def unsent(self) -> int:
        """How many bytes of the request are not yet sent."""
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        self._is_usable = False
        self._transport.abort()

    # --- Callbacks of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.has_heard = True
        self.last_heard = self._loop.time()
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the answer is not HTTP: {error}"))
            return
        if not self._has_head:
            self._head_size += nbytes
            if self._head_size > HEAD_BYTES_MAX:
                self._fail(ConnectionError(f"the answer's head is over {HEAD_BYTES_MAX} bytes"))

    def eof_received(self) -> None:
        self._is_usable = False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_usable = False
        if self._timer is not None:
            self._timer.cancel()
        if error is None and self._has_head and not self._has_length:
            self.on_message_complete()  # A response of this kind ends with its connection.
        else:
            self._fail(error or ConnectionError("the server closed the connection"))
        self._on_lost(self)

    def _look_at_clock(self) -> None:
        """One timer serves many requests: nearly all are answered long before it fires."""
        self._timer = None
        if self._waiter is None:
            return
        unsent = self.unsent()
        if unsent < self._unsent:
            self.last_heard = self._loop.time()  # The server is still reading a long request.
        self._unsent = unsent
        due = self.last_heard + self._seconds
        if due <= self._loop.time():
            self._fail(TimeoutError(f"no answer within {self._seconds:g} s"))
        else:
            self._ring_at(due)

    def _ring_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = due
        self._timer = self._loop.call_at(due, self._look_at_clock)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.close()

    # --- Callbacks of the parser ---

    def on_message_begin(self) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()  # Data without a request: nothing that follows can be trusted.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif name == b"location":
            self._location = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._begin_answer()  # An interim status (1xx): the final response follows.
            return
        if self._waiter is None or self._waiter.done():
            return
        if not self._parser.should_keep_alive():
            self._is_usable = False
        self._waiter.set_result(Answer(status, b"".join(self._pieces), self._location))


class NotConnected(ConnectionError):
    """There is no connection, for the reason that caused this; nothing was sent."""


class Connections:
    """The connections to one server: as many as there are concurrent requests."""

    def __init__(self, url: str, token: str | None = None, *, repeats: bool = False) -> None:
        """`repeats`: every request may be sent twice, not only those that HTTP calls idempotent."""
        self._address = urlsplit(url)
        self._socket = unquote(self._address.path) if self._address.scheme == "unix" else None
        """The path of a Unix socket on this machine."""
        self._holder: int | None = None
        """The process that listens there, once we have talked to it."""
        self._repeats = repeats
        self._tls = ssl.create_default_context() if self._address.scheme == "https" else None
        self._prefix = "" if self._socket is not None else self._address.path.rstrip("/")
        self._head = _head(
            {
                "Host": self._host(),
                "User-Agent": f"noetl/{__version__}",
                "Accept-Encoding": "identity",
                **self._authorization(token),
            }
        )
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._is_closed = False
        self._breaks = 0
        """How often we closed all connections."""

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """The response to a request, of any status. Raises OSError if there is none."""
        more = "" if headers is None else _head(headers)
        if body is not None:
            more += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head = f"{method} {self._prefix}{target} HTTP/1.1\r\n{self._head}{more}\r\n"
        request = head.encode() + (body or b"")
        connection, breaks = self._kept(), self._breaks
        if connection is not None:
            try:
                return await self._ask(connection, request, seconds)
            except ConnectionError:
                # A server may close an idle connection at the moment we reuse it.
                may_repeat = self._repeats or is_repeatable(method, headers)
                if connection.has_heard or not may_repeat or self._breaks > breaks:
                    raise
        try:
            connection = await self._connected()
        except OSError as error:
            raise NotConnected(reason_of(error)) from error
        return await self._ask(connection, request, seconds)

    def close(self) -> None:
        """Fail all pending requests and refuse new ones."""
        self._is_closed = True
        self.break_off()

    def break_off(self) -> None:
        """Fail all pending requests; the next request opens a new connection."""
        self._breaks += 1
        for connection in list(self._all):
            connection.close()

    async def _ask(self, connection: Connection, request: bytes, seconds: float) -> Answer:
        answer = await connection.ask(request, seconds)
        if connection.is_usable():
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _kept(self) -> Connection | None:
        """The most recently used idle connection, if there is one."""
        long_ago = asyncio.get_running_loop().time() - KEEP_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable() and connection.last_heard > long_ago:
                return connection
            connection.close()
        return None

    async def _connected(self) -> Connection:
        connection = await (self._over_network() if self._socket is None else self._on_machine())
        if self._is_closed:
            connection.close()
            raise ConnectionError("the connection was closed by us")
        self._all.add(connection)
        return connection

    async def _on_machine(self) -> Connection:
        """A connection to the process that holds a database. It must stay the same one: another
        may run other executions.
        """
        from noetl.api.local_socket import process_of

        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_unix_connection(
            lambda: Connection(self._lost), self._socket
        )
        found = process_of(transport.get_extra_info("socket"))
        self._holder = self._holder or found
        if self._holder != found:
            connection.close()
            raise ConnectionError("another process listens there now")
        return connection

    async def _over_network(self) -> Connection:
        loop = asyncio.get_running_loop()
        host = self._address.hostname
        port = self._address.port or (80 if self._tls is None else 443)
        try:
            # No timeout of ours: the resolver has its own.
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host} is not the name of a host: {error}") from error
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reached = await start_connection(
                    found, happy_eyeballs_delay=IPV4_TOO_AFTER, interleave=1
                )
                _, connection = await loop.create_connection(
                    lambda: Connection(self._lost),
                    sock=reached,
                    ssl=self._tls,
                    server_hostname=None if self._tls is None else host,
                )
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {CONNECT_SECONDS:g} s") from error
        return connection

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _host(self) -> str:
        """The host without user and password; names in other scripts in their DNS spelling."""
        if self._socket is not None:
            return "localhost"
        host = self._address.netloc.rpartition("@")[2]
        return host if host.isascii() else host.encode("idna").decode()

    def _authorization(self, token: str | None) -> dict[str, str]:
        if token is not None:
            return {"Authorization": f"Bearer {token}"}
        if self._address.username is None:
            return {}
        pair = f"{unquote(self._address.username)}:{unquote(self._address.password or '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def is_repeatable(method: str, headers: Mapping[str, str] | None) -> bool:
    """Whether a request whose answer was lost may be sent again."""
    return method in SAFE_TO_REPEAT or IDEMPOTENCY_KEY.name in (headers or {})


def _head(headers: Mapping[str, str]) -> str:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\r") + lines.count("\n") + lines.count("\0") > 2 * len(headers):
        raise ValueError(f"a line break in one of the headers {', '.join(headers)}")
    return lines


class Servers:
    """One server, or several with the same database. If one does not answer, the next is asked."""

    def __init__(self, urls: Sequence[str], token: str | None, *, repeats: bool) -> None:
        self._servers = [Connections(url.rstrip("/"), token, repeats=repeats) for url in urls]
        self._urls = [without_password(url.rstrip("/")) for url in urls]
        self._current = 0
        """The index of the server that answered last, which is asked first."""
        self._avoided_until = [0.0] * len(self._servers)
        self._repeats = repeats

    @property
    def url(self) -> str:
        """The URL of the current server, without user and password."""
        return self._urls[self._current]

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def call(self, route: AnyRoute, call: Call) -> Any:
        """See `client.Transport`."""
        answer = await self.ask(
            route.method,
            route.path.format(**call.quoted),
            body=call.body,
            params=call.query,
            headers=call.headers,
        )
        return self.decoded(answer, route.decoded, f"{route.method} {route.path}")

    def decoded(self, answer: bytes, decode: Callable[[bytes], T], asked: str) -> T:
        """The answer of the current server to what was asked, or Unreachable: something else
        answers.
        """
        try:
            return decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unreachable(
                f"what answers at {self.url} is not a NoETL server, or one of another version:"
                f" its answer to {asked} cannot be read ({error}). Is the address right?"
                " --server names another."
            ) from None

    async def pieces(self, route: AnyRoute, call: Call) -> AsyncIterator[bytes]:
        """See `client.Transport`."""
        yield await self.ask(route.method, route.path.format(**call.quoted))

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Params | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> bytes:
        """The body of the answer. Raises the server's error, or Unreachable.

        A server that is silent for `seconds` counts as not answering. What a server may have
        done before it was lost is asked of another one only if it may be done twice.
        """
        target = _target(path)
        if params:
            target += "?" + urlencode(params)
        failures: dict[int, str] = {}
        is_sent = False
        may_repeat = self._repeats or is_repeatable(method, headers)
        untried = set(range(len(self._servers)))
        while untried and (may_repeat or not is_sent):
            asked = self._next_of(untried)
            untried.discard(asked)
            try:
                answer = await self._servers[asked].ask(method, target, body, headers, seconds)
            except OSError as error:
                is_sent = is_sent or not isinstance(error, NotConnected)
                failure = error.__cause__ if isinstance(error.__cause__, OSError) else error
                failures[asked] = reason_of(failure)
                self._pass_over(asked)
                if self._repeats and isinstance(failure, TimeoutError):
                    # Other requests to this server would wait in vain just as long.
                    self._servers[asked].break_off()
                continue
            if self._repeats and untried and answer.status in _TRY_AGAIN:
                # This server cannot work at the moment; another one may.
                failures[asked] = f"it answered {answer.status}"
                self._pass_over(asked)
                continue
            self._avoided_until[asked] = 0.0
            if answer.status < 300:
                return answer.body
            if answer.location is not None and answer.status < 400:
                raise NoetlError(
                    f"{self._urls[asked]} redirects to {answer.location} ({answer.status}), and"
                    " redirects are not followed. Name that server with --server."
                )
            raise error_of(answer.status, answer.body)
        raise (Unreachable if is_sent else Unsent)(
            f"no server answers at {self._said(failures)}."
            " Is it running? `noetl dev` starts one with a worker in it, `noetl server start` one"
            " alone; --server names another."
        )

    def _said(self, failures: Mapping[int, str]) -> str:
        """The servers, each with what kept it from answering; those that were not asked because
        the request may be sent only once are not named."""
        return ", ".join(f"{self._urls[one]} ({why})" for one, why in sorted(failures.items()))

    def _next_of(self, untried: set[int]) -> int:
        """The server to ask next: the current one first, recently failed ones last."""
        now, count = asyncio.get_running_loop().time(), len(self._servers)
        if self._current in untried and self._avoided_until[self._current] <= now:
            return self._current
        in_order = sorted(untried, key=lambda number: (number - self._current) % count)
        return min(in_order, key=lambda number: max(self._avoided_until[number] - now, 0.0))

    def _pass_over(self, asked: int) -> None:
        """Remember that this server failed: for a while it is asked last."""
        self._avoided_until[asked] = asyncio.get_running_loop().time() + AVOID_SECONDS
        if self._current == asked:
            self._current = (asked + 1) % len(self._servers)


@lru_cache(TARGETS_REMEMBERED)
def _target(path: str) -> str:
    return quote(path, safe=PATH_SAFE)


def error_of(status: int, body: bytes) -> NoetlError:
    """The exception for an error answer."""
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])["error"]
        code, message, details = told["code"], told["message"], told.get("details")
    except (msgspec.MsgspecError, KeyError, TypeError):
        code, message, details = "", f"the server answered {status}.", None
    if code == PlaybookRejected.code and isinstance(details, dict):
        return PlaybookRejected(msgspec.convert(details["problems"], tuple[Problem, ...]))
    if code == BadInputs.code and isinstance(details, dict):
        return BadInputs(message, tuple(details["problems"]))
    kind = _kinds(NoetlError).get(code)
    if kind is None:
        kind = StoreError if status in _TRY_AGAIN else NoetlError
    return kind(message)


def _kinds(root: type[NoetlError]) -> dict[str, type[NoetlError]]:
    """Error classes by code, for those that a message alone can construct. If several share a code,
    the first in the tree is used.
    """
    found = {} if root is PlaybookRejected else {root.code: root}
    for kind in root.__subclasses__():
        found = _kinds(kind) | found
    return found
