"""The app: the table of routes behind one edge. Every request takes the same way.

    edge (request id, origin, who calls) → match → right → query and body → handler → answer

There is no framework in between: the table says all that one would be told, and the way to a
handler costs less than what a worker's report asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from noetl.api.edge import Edge, LocalEdge, ShowingEdge, Visitors
from noetl.api.errors import WrongMethod
from noetl.api.rights import RIGHTS
from noetl.api.route import JSON, AnyRoute, Caller, Reply
from noetl.api.services import Services
from noetl.api.table import TABLE
from noetl.errors import NoetlError, NotFound, TooLarge

if TYPE_CHECKING:
    from noetl.api.edge import ASGIApp, Receive, Scope, Send
    from noetl.ui import Pages

_encode = msgspec.json.Encoder().encode
_JSON = (b"content-type", JSON.encode())


class RightMissing(NoetlError):
    """A route names no right, or one that nobody knows: the server does not start."""

    code = "right_missing"


class Match(NamedTuple):
    """A route that a path leads to, and the parameters in the path."""

    route: AnyRoute
    path: str
    """As the table has it."""
    parameters: dict[str, str]


class _Node:
    """A place in the tree of paths."""

    __slots__ = ("deep", "leaf", "parameter", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.leaf: _Leaf | None = None
        self.deep: _Leaf | None = None


class _Leaf:
    """A path that something answers at."""

    __slots__ = ("allow", "path", "routes")

    def __init__(self, path: str) -> None:
        self.path = path
        self.routes: dict[str, AnyRoute] = {}
        self.allow = b""

    def add(self, route: AnyRoute) -> None:
        if route.method in self.routes:
            raise ValueError(f"two routes answer {route.method} {self.path}")
        self.routes[route.method] = route
        methods = {*self.routes, "OPTIONS", *(("HEAD",) if "GET" in self.routes else ())}
        self.allow = ", ".join(sorted(methods)).encode()


class Router:
    """Which route a request means. Words go before parameters, and these before what is deep.

    Where what goes before does not answer the method, what comes after may: `GET
    /api/catalog/list` reads the playbook "list", though `POST` of the same path lists all.
    """

    def __init__(self, routes: Sequence[AnyRoute]) -> None:
        self._root = _Node()
        self._plain: dict[str, _Leaf] = {}
        """Paths without parameters, found at once."""
        for route in routes:
            if route.right not in RIGHTS:
                raise RightMissing(f"{route.method} {route.path} names no right, or one unknown.")
            for path in route.paths:
                self._leaf(path, deep=route.deep).add(route)

    def _leaf(self, path: str, *, deep: bool) -> _Leaf:
        node, words = self._root, [word for word in path.split("/") if word]
        for word in words[:-1] if deep else words:
            if word.startswith("{"):
                node.parameter = node = node.parameter or _Node()
            else:
                node = node.words.setdefault(word, _Node())
        leaf = (node.deep if deep else node.leaf) or _Leaf(path)
        if deep:
            node.deep = leaf
        else:
            node.leaf = leaf
        if "{" not in path:
            self._plain[path] = leaf
        return leaf

    def find(self, path: str) -> tuple[_Leaf, list[str]] | None:
        """What answers at that path, and its parameters in order."""
        plain = self._plain.get(path)
        if plain is not None:
            return plain, []
        return next(self._all(path), None)

    def _all(self, path: str) -> Iterator[tuple[_Leaf, list[str]]]:
        """Every leaf that the path leads to, what goes before first."""
        return self._walk(self._root, [word for word in path.split("/") if word], 0, [])

    def _walk(
        self, node: _Node, words: list[str], at: int, given: list[str]
    ) -> Iterator[tuple[_Leaf, list[str]]]:
        if at == len(words):
            if node.leaf is not None:
                yield node.leaf, given
            return
        below = node.words.get(words[at])
        if below is not None:
            yield from self._walk(below, words, at + 1, given)
        if node.parameter is not None:
            yield from self._walk(node.parameter, words, at + 1, [*given, words[at]])
        if node.deep is not None:
            yield node.deep, [*given, "/".join(words[at:])]

    def match(self, method: str, path: str) -> Match:
        """Raises NotFound for a path that nothing answers at, WrongMethod for another method."""
        found = self.find(path)
        if found is None:
            raise NotFound(f"there is no route {path[:200]}. GET /api/openapi.json lists them all.")
        leaf, given = found
        if method not in leaf.routes:
            found = next((one for one in self._all(path) if method in one[0].routes), None)
            if found is None:
                raise WrongMethod(f"{leaf.path} does not answer {method[:20]}.", leaf.allow)
            leaf, given = found
        route = leaf.routes[method]
        return Match(route, leaf.path, dict(zip(route.parameters, given, strict=True)))

    def allowed(self, path: str) -> bytes | None:
        """The methods of a path, as the header `Allow` says them."""
        leaves = [leaf for leaf, _ in self._all(path)]
        if len(leaves) <= 1:
            return leaves[0].allow if leaves else None
        methods = {method for leaf in leaves for method in leaf.allow.decode().split(", ")}
        return ", ".join(sorted(methods)).encode()


def build(services: Services, origins: Collection[str] = (), pages: Pages | None = None) -> ASGIApp:
    """The ASGI app of a server with its pages; pages of these origins may call it, too."""
    return Edge(App(services), services.access, services.metrics, origins=origins, pages=pages)


def build_local(services: Services) -> ASGIApp:
    """The same for callers on this machine that may write the database file."""
    return LocalEdge(App(services), services.access, services.metrics)


def build_showing(services: Services) -> ASGIApp:
    """The same for a recording: everybody may look, nobody may act."""
    return ShowingEdge(App(services), Visitors(), services.metrics)


class App:
    """Calls the handler that a request means. Whatever it raises, the edge makes an answer of."""

    def __init__(self, services: Services, routes: Sequence[AnyRoute] = TABLE) -> None:
        self._services = services
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method == "OPTIONS":
            await self._tell_methods(path, send)
            return
        route, template, given = self._router.match(method, path)
        parameters: dict[str, Any] = {**given}
        scope["route"], scope["path_template"] = route, template
        principal = scope["user"]
        principal.require(route.right)
        client = scope.get("client")
        caller = Caller(
            principal,
            request_id=scope["request_id"],
            headers=scope["header_map"],
            receive=receive,
            address=client[0] if client else "",
            scheme=scope.get("scheme", "http"),
        )
        query = route.reader.query(scope["query_string"])
        if route.query is not None:
            parameters["query"] = query
        if route.streamed:
            parameters["body"] = pieces(scope["header_map"], receive, route.body_max)
        elif route.body is not None:
            written = await read(scope["header_map"], receive, route.body_max)
            media = scope["header_map"].get(b"content-type", b"").partition(b";")[0].strip().lower()
            parameters["body"] = route.reader.body(written, media.decode("latin-1"))
        answer = await route.handler(self._services, caller, **parameters)
        if not isinstance(answer, Reply):
            is_text = isinstance(answer, bytes | str)
            body = _bytes_of(answer) if is_text else _encode(answer)
            await _send(send, 200, body, [_media(route) if is_text else _JSON])
            return
        await _send_reply(scope, send, route, answer, caller)

    async def _tell_methods(self, path: str, send: Send) -> None:
        """Everybody who is known may ask which methods a path has."""
        allow = self._router.allowed(path)
        if allow is None:
            raise NotFound(f"there is no route {path[:200]}.")
        await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", allow)]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def read(headers: dict[bytes, bytes], receive: Receive, body_max: int) -> bytes:
    """The body of a request. Raises TooLarge, before reading it if its length is told."""
    _refuse_length(headers, body_max)
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= body_max:
        return body  # as nearly always
    more = pieces(headers, receive, body_max, first=message)
    return b"".join([piece async for piece in more])


async def pieces(
    headers: dict[bytes, bytes], receive: Receive, body_max: int, *, first: Any = None
) -> AsyncGenerator[bytes, None]:
    """The body of a request as it comes; see `read`."""
    _refuse_length(headers, body_max)
    size, has_more = 0, True
    while has_more:
        message, first = first or await receive(), None
        has_more = message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > body_max:
            raise _too_large(body_max)
        if piece:
            yield piece


def _refuse_length(headers: dict[bytes, bytes], body_max: int) -> None:
    told = headers.get(b"content-length", b"")
    if told.isdigit() and int(told) > body_max:
        raise _too_large(body_max)


def _too_large(body_max: int) -> TooLarge:
    return TooLarge(f"the body has more than {body_max:,} bytes, the most that this route reads.")


async def _send_reply(
    scope: Scope, send: Send, route: AnyRoute, reply: Reply[Any], caller: Caller
) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers]
    status, body = reply.status, reply.body
    if reply.tag is not None:
        headers += [
            (b"etag", f'W/"{reply.tag}"'.encode()),
            (b"cache-control", b"private, no-cache"),
        ]
        known = scope["header_map"].get(b"if-none-match", b"").decode("latin-1")
        wanted = (f'"{reply.tag}"', "*")
        if any(one.strip().removeprefix("W/") in wanted for one in known.split(",")):
            status, body = 304, None
    if isinstance(body, AsyncIterator):
        if reply.size is not None:
            headers.append((b"content-length", b"%d" % reply.size))
        await _stream(scope, send, status, body, [*headers, _media(route)], caller)
    elif body is None:
        await _send(send, status, b"", headers, sized=status not in (204, 304))
    elif isinstance(body, bytes | str):
        await _send(send, status, _bytes_of(body), [*headers, _media(route)])
    else:
        await _send(send, status, _encode(body), [*headers, _JSON])


def _bytes_of(body: bytes | str) -> bytes:
    return body if isinstance(body, bytes) else body.encode()


def _media(route: AnyRoute) -> tuple[bytes, bytes]:
    return b"content-type", route.media.encode()


async def _send(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, sized: bool = True
) -> None:
    if sized:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _stream(
    scope: Scope,
    send: Send,
    status: int,
    frames: AsyncIterator[bytes],
    headers: list[tuple[bytes, bytes]],
    caller: Caller,
) -> None:
    """Send what comes until it ends, or until the caller has gone."""
    await send({"type": "http.response.start", "status": status, "headers": headers})

    async def pump() -> None:
        async with _closing(frames):
            if not scope.get("is_head"):
                async for frame in frames:
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    sending, gone = asyncio.ensure_future(pump()), asyncio.ensure_future(caller.gone())
    try:
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        sending.cancel()
        gone.cancel()
        await asyncio.gather(sending, gone, return_exceptions=True)


def _closing(frames: AsyncIterator[bytes]) -> AbstractAsyncContextManager[Any]:
    """Close a generator that is not read to its end."""
    return aclosing(frames) if isinstance(frames, AsyncGenerator) else nullcontext()
