"""What every request passes before any route: a name for it, who asks, and a record of it.

Whoever is unknown gets no further than this, whatever they ask for and however they spell it. So
the routes that are open are matched here, letter by letter; all else is refused unseen.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from litestar.enums import ScopeType

from noetl.errors import NotAllowed, Unauthenticated
from noetl.server.access import Access
from noetl.server.errors import problem_of
from noetl.server.metrics import Metrics
from noetl.server.rights import Principal

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("noetl.server.requests")

COOKIE = "noetl_session"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SLOW_ROUTES = frozenset({"/api/commands/lease", "/api/commands/cancelled"})
"""Their answers wait for news: how long that takes says nothing about the server."""


class Edge:
    """The outermost layer of the app."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        metrics: Metrics,
        open_routes: frozenset[tuple[str, str]],
    ) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics
        self._open_routes = open_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            # Nothing here is a web socket, so nobody needs to be asked who they are.
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        seen: dict[str, Any] = {"status": 500, "begun": time.perf_counter(), "took": None}
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        request_id = _request_id(headers.get("x-request-id", ""))
        scope["request_id"] = request_id  # type: ignore[typeddict-unknown-key]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                seen["took"] = time.perf_counter() - seen["begun"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"cache-control", b"no-store"),
                ]
            await send(message)

        try:
            principal = await self._admit(scope, headers)
            scope["user"] = principal
            await self._app(scope, receive, sending)
        except Exception as error:
            if seen["took"] is None:
                await _answer(sending, error, request_id)
            else:
                logger.exception("an answer broke off", extra={"request_id": request_id})
        finally:
            self._record(scope, seen, request_id)

    async def _admit(self, scope: Any, headers: dict[str, str]) -> Principal:
        """Whoever asks; raises for those we do not know, unless the route is open to all."""
        _refuse_other_sites(scope["method"], headers)
        principal = await self._access.who(_secret(headers))
        if principal.kind == "open":
            _refuse_rebinding(headers.get("host", ""))
        elif principal.kind == "nobody" and (
            (scope["method"], scope["path"]) not in self._open_routes
            or scope.get("raw_path", b"").split(b"?")[0].decode("latin-1") != scope["path"]
        ):
            raise Unauthenticated(
                "we do not know who asks. Send `Authorization: Bearer …` with a token, which"
                " `noetl access token create` makes and commands read from NOETL_TOKEN; or sign in."
            )
        return principal

    def _record(self, scope: Any, seen: dict[str, Any], request_id: str) -> None:
        template = scope.get("path_template") or "(none)"
        method, status = scope["method"], seen["status"]
        took = time.perf_counter() - seen["begun"] if seen["took"] is None else seen["took"]
        self._metrics.requests.labels(method, template, str(status)).inc()
        if template not in SLOW_ROUTES:
            self._metrics.seconds.labels(method, template).observe(took)
        principal = scope.get("user")
        logger.debug(
            "request",
            extra={
                "request_id": request_id,
                "method": method,
                "route": template,
                "status": status,
                "seconds": round(took, 6),
                "who": principal.name if isinstance(principal, Principal) else "",
            },
        )


def _request_id(given: str) -> str:
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _secret(headers: dict[str, str]) -> str | None:
    """What whoever asks shows: a bearer token, or the cookie of a session."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip()
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None


def _refuse_other_sites(method: str, headers: dict[str, str]) -> None:
    """A page of another site must not act through the browser of somebody who is signed in."""
    origin = headers.get("origin")
    if origin is None or method in ("GET", "HEAD", "OPTIONS"):
        return
    if urlsplit(origin).netloc != headers.get("host", ""):
        raise NotAllowed("this comes from a page of another site, which may not act here.")


def _refuse_rebinding(host: str) -> None:
    """An open server answers to names of this machine only, or any page could point at it."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if name not in LOOPBACK:
        raise NotAllowed(
            f'this server has no users yet, so it answers only as localhost, not as "{host}".'
        )


async def _answer(send: Any, error: Exception, request_id: str) -> None:
    status, problem = problem_of(error, request_id)
    body = msgspec.json.encode(problem)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
