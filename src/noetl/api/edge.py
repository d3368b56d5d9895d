"""What every request passes before any route: a name for it, who asks, and a record of it.

Whoever is unknown gets no further than this, whatever they ask for and however they spell it. So
the routes that are open are matched here, letter by letter; all else is refused unseen.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import msgspec

from noetl.api import cors
from noetl.api.access import KNOWN_SECONDS, Access
from noetl.api.errors import WrongMethod, problem_of
from noetl.api.metrics import Metrics
from noetl.api.packing import packed
from noetl.api.rights import NOBODY, VISITOR, Principal, local
from noetl.api.sessions import COOKIE
from noetl.api.table import TABLE
from noetl.errors import BadRequest, BadText, NotAllowed, Unauthenticated
from noetl.ui import Page, Pages

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
"""The types of ASGI, as far as we use them."""

logger = logging.getLogger("noetl.server.requests")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOSTS_REMEMBERED = 64
NOSNIFF = (b"x-content-type-options", b"nosniff")
NO_STORE = (b"cache-control", b"no-store")
"""Unless the answer says something else."""
OPEN = frozenset(
    (route.method, path) for route in TABLE if route.right == "anyone" for path in route.paths
)
"""What callers may ask that nobody knows."""


class Edge:
    """The outermost layer of the app."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        metrics: Metrics,
        *,
        origins: Collection[str] = (),
        pages: Pages | None = None,
    ) -> None:
        """`origins` are sites whose pages may call, too; `pages` are our own."""
        self._app = app
        self._pages = pages
        self._origins = frozenset(origin.encode() for origin in origins)
        self._access = access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Nothing here is a web socket, so nobody needs to be asked who they are.
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        begun, took, status = time.perf_counter(), None, 500
        scope["header_map"] = headers = _joined(scope["headers"])
        if scope["method"] == "HEAD":
            # As GET, whose body is not sent: the connection knows what was asked.
            scope = {**scope, "method": "GET", "is_head": True}
        method = scope["method"]
        origin = headers.get(b"origin")
        is_guest = origin is not None and origin in self._origins
        request_id = _request_id(headers.get(b"x-request-id", b""))
        scope["request_id"] = request_id

        def sending(message: Message) -> Awaitable[None]:
            nonlocal took, status
            if message["type"] == "http.response.start":
                took, status = time.perf_counter() - begun, message["status"]
                own = [(b"x-request-id", request_id.encode()), NOSNIFF]
                if origin is not None and is_guest:
                    own += cors.welcome(origin)
                given = message.get("headers", ())
                if not any(name == b"cache-control" for name, _ in given):
                    own.append(NO_STORE)
                message["headers"] = [*given, *own]
            return send(message)

        packing: Send = packed(scope, headers, sending)

        try:
            if is_guest and cors.is_preflight(method, headers):
                await cors.answer(sending)
                return
            if self._pages is not None and method == "GET":
                page = self._pages.find(scope["path"], headers)
                if page is not None:
                    scope["path_template"] = page.template
                    await _show(sending, page)
                    return
            scope["user"] = principal = await self._admit(scope, headers, is_guest=is_guest)
            _refuse_nul(scope)
            line = _Line(receive, packing, self._access, principal, headers)
            await self._app(scope, line.receive, line.send)
            await line.finish()
        except Exception as error:
            if took is None:
                await _answer(packing, error, request_id)
            else:
                logger.exception("an answer broke off", extra={"request_id": request_id})
        finally:
            self._record(scope, status, time.perf_counter() - begun if took is None else took)

    async def _admit(self, scope: Any, headers: dict[bytes, bytes], *, is_guest: bool) -> Principal:
        """Whoever asks; raises for those we do not know, unless the route is open to all."""
        if not is_guest:
            _refuse_other_sites(scope["method"], headers)
        is_for_all = (scope["method"], scope["path"]) in OPEN and (
            scope.get("raw_path", b"").split(b"?")[0].decode("latin-1") == scope["path"]
        )
        if is_for_all and scope["method"] == "GET":
            # The server's health. The database would have to say who asks, and may be silent.
            return NOBODY
        principal = await self._access.who(_secret(headers))
        if principal.kind == "open":
            _refuse_rebinding(headers.get(b"host", b"").decode("latin-1"))
        elif principal.kind == "nobody" and not is_for_all:
            raise Unauthenticated(
                "we do not know who asks. Send `Authorization: Bearer …` with a token, which"
                " `noetl access token create` makes and commands read from NOETL_TOKEN; or sign in."
            )
        return principal

    def _record(self, scope: Any, status: int, took: float) -> None:
        method, template = scope["method"], scope.get("path_template") or "(none)"
        self._metrics.requests_of(method, template, status).inc()
        route = scope.get("route")
        if route is None or not route.patient:
            self._metrics.seconds_of(method, template).observe(took)
        if not logger.isEnabledFor(logging.DEBUG):
            return
        principal = scope.get("user")
        logger.debug(
            "request",
            extra={
                "request_id": scope["request_id"],
                "method": method,
                "route": template,
                "status": status,
                "seconds": round(took, 6),
                "who": principal.name if isinstance(principal, Principal) else "",
            },
        )


class LocalEdge(Edge):
    """The same for callers that came through the socket beside the database file.

    Only who may write the file can open it, and no browser does.
    """

    async def _admit(self, scope: Any, headers: dict[bytes, bytes], *, is_guest: bool) -> Principal:
        return local(scope["client"][0] if scope.get("client") else "")


class Visitors(Access):
    """Whoever comes may look at what is shown, and nothing else."""

    def __init__(self) -> None:
        """Nobody is configured, so nothing has to be looked up."""

    async def who(self, secret: str | None) -> Principal:
        return VISITOR


class ShowingEdge(Edge):
    """The same for a recording that is shown on this machine: everybody may look at it."""

    async def _admit(self, scope: Any, headers: dict[bytes, bytes], *, is_guest: bool) -> Principal:
        _refuse_rebinding(headers.get(b"host", b"").decode("latin-1"))
        return await super()._admit(scope, headers, is_guest=is_guest)


class _Line:
    """The line to whoever asks: it ends soon after they are no longer let in.

    Who waits for the end of the line, as everything does that may take long, hears of it as if the
    client had gone.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        access: Access,
        principal: Principal,
        headers: dict[bytes, bytes],
    ) -> None:
        self._receive = receive
        self._send = send
        self._access = access
        self._principal = principal
        self._headers = headers
        self._is_whole = False
        """The request has been read to its end."""
        self._is_cut = False
        self._is_open = False
        """An answer was begun, and has not ended."""

    async def receive(self) -> Any:
        if not self._is_whole:
            message = await self._receive()
            self._is_whole = not message.get("more_body", False)
            if message["type"] == "http.disconnect" and self._has_body():
                # Who hangs up is no error of ours, and hears of this no more.
                raise BadRequest("the request ended before its body did.")
            return message
        while not self._is_cut:
            with suppress(TimeoutError):
                async with asyncio.timeout(KNOWN_SECONDS):
                    return await self._receive()
            if self._principal.kind not in ("nobody", "local"):
                now = await self._access.who(_secret(self._headers))
                self._is_cut = now != self._principal
        return {"type": "http.disconnect"}

    def _has_body(self) -> bool:
        length = self._headers.get(b"content-length", b"0")
        return length != b"0" or b"transfer-encoding" in self._headers

    def send(self, message: Message) -> Awaitable[None]:
        is_start = message["type"] == "http.response.start"
        self._is_open = is_start or bool(message.get("more_body", False))
        return self._send(message)

    async def finish(self) -> None:
        """End an answer that was cut."""
        if self._is_cut and self._is_open:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _joined(headers: Collection[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; one that comes several times is one list, as HTTP has it."""
    found = dict(headers)
    if len(found) < len(headers):
        found.clear()
        for name, value in headers:
            found[name] = found[name] + b", " + value if name in found else value
    return found


def _request_id(given: bytes) -> str:
    if _REQUEST_ID.fullmatch(given):
        return given.decode()
    # It tells requests apart in the log, and keeps no secret.
    return f"{random.getrandbits(64):016x}"


def _secret(headers: dict[bytes, bytes]) -> str | None:
    """What whoever asks shows: a bearer token, or the cookie of a session."""
    scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return secret.strip().decode("latin-1")
    cookies = headers.get(b"cookie")
    if cookies is None:
        return None
    try:
        found = SimpleCookie(cookies.decode("latin-1")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None


def _refuse_other_sites(method: str, headers: dict[bytes, bytes]) -> None:
    """A page of another site must not act through the browser of somebody who is signed in."""
    origin = headers.get(b"origin")
    if origin is None or method in ("GET", "HEAD", "OPTIONS"):
        return
    if origin.partition(b"://")[2] != headers.get(b"host", b""):
        raise NotAllowed("this comes from a page of another site, which may not act here.")


@lru_cache(HOSTS_REMEMBERED)
def _is_this_machine(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in LOOPBACK
    except ValueError:
        return False


def _refuse_rebinding(host: str) -> None:
    """An open server answers to names of this machine only, or any page could point at it."""
    if not _is_this_machine(host):
        raise NotAllowed(
            f'this server has no users yet, so it answers only as localhost, not as "{host}".'
        )


def _refuse_nul(scope: Scope) -> None:
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise BadText("an address holds the character NUL, which no name has.")


async def _show(send: Send, page: Page) -> None:
    start = {"type": "http.response.start", "status": page.status, "headers": page.headers}
    await send(start)
    await send({"type": "http.response.body", "body": page.body, "more_body": False})


async def _answer(send: Any, error: Exception, request_id: str) -> None:
    status, problem = problem_of(error, request_id)
    body = msgspec.json.encode(problem)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, WrongMethod):
        headers.append((b"allow", error.allow))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
