"""The path of every request: request id, caller, route, right, handler, answer.

    admit → match → right → query and body → handler → answer

An unknown caller never gets past the first stage, whatever path they ask for and however they spell
it. Open routes are therefore matched here, letter by letter; everything else is refused unseen.
There is no web framework: the route table holds all that one would be configured with.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import re
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from noetl.api.access import KNOWN_SECONDS
from noetl.api.errors import WrongMethod, problem_of
from noetl.api.plain_reports import Answering, PlainReports
from noetl.api.protocol import Body, Headers, lines_of
from noetl.api.rights import NOBODY, VISITOR, Principal, local
from noetl.api.route import JSON, NEWS, AnyRoute, Caller, Reply
from noetl.api.router import Match, Router
from noetl.api.routes.commands import REPORT, Next
from noetl.api.services import Services
from noetl.api.sessions import COOKIE
from noetl.api.table import TABLE
from noetl.errors import (
    RETRY_SECONDS,
    BadText,
    Compressed,
    NoetlError,
    NotAllowed,
    NotFound,
    TooMany,
    Unauthenticated,
)
from noetl.ui import Page, Pages, is_known

if TYPE_CHECKING:
    from noetl.api.protocol import Head, Request

logger = logging.getLogger("noetl.server.requests")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SESSION = re.compile(rb"(?:^|[;,]) *%b=([^;, ]*)" % COOKIE.encode())
"""The session among the cookies of the host, some of which may be of other programs."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOSTS_REMEMBERED = 64
NOSNIFF = (b"x-content-type-options", b"nosniff")
NO_STORE = (b"cache-control", b"no-store")
"""The default; an answer may set another."""
HOOKS = "/hooks/"
OPEN = frozenset(
    (route.method, path) for route in TABLE if route.right == "anyone" for path in route.paths
)
"""Routes that need no sign-in."""

PACKED_MIN = 1024
PACKED_APART = 128 * 1024
"""Larger bodies are compressed in a thread, so that other requests do not wait."""
PACKED_LEVEL = 5
VARIES = (b"vary", b"Accept-Encoding")
_TEXT = re.compile(rb"(application/(json|.*\+json|yaml)|text/(?!event-stream))")
_GZIP = re.compile(rb"(?:^|,)\s*(?:gzip|\*)\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[^,]*)?(?=,|$)")

# CORS: pages of other sites may not call the API, except for origins that the operator names. Those
# authenticate with a token. The session cookie is sent from our own pages only, so another site
# cannot act for a signed-in user.
PREFLIGHT: Headers = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-Request-ID",
    ),
    (b"access-control-max-age", b"600"),
)
"""Answer to a CORS preflight from an allowed origin."""
WELCOME: Headers = (
    (b"access-control-expose-headers", b"ETag, X-Request-ID"),
    (b"vary", b"Origin"),
)
"""Together with the origin, this lets a page of an allowed site read the answer."""

_encode = msgspec.json.Encoder().encode
AS_JSON: Headers = ((b"content-type", JSON.encode()),)
UNKNOWN: Headers = (*AS_JSON, (b"www-authenticate", b"Bearer"))


def _with_manners(headers: Headers, guest: bytes | None) -> Headers:
    """Headers of every answer."""
    own = [NOSNIFF]
    if guest is not None:
        own += [(b"access-control-allow-origin", guest), *WELCOME]
    if not any(name == b"cache-control" for name, _ in headers):
        own.append(NO_STORE)
    return (*headers, *own)


LINES = {headers: lines_of(_with_manners(headers, None)) for headers in (AS_JSON, UNKNOWN)}
"""Headers of most answers."""


class Response(NamedTuple):
    """An answer, ready to send."""

    status: int
    headers: Headers
    body: bytes | AsyncIterator[bytes] = b""
    size: int | None = None
    """The length of a body sent in chunks, if it is known."""


class Watched(NamedTuple):
    """Whose access is looked up again and again, and what waits for its end."""

    looking: asyncio.Task[None]
    waits: set[asyncio.Timeout]


class Asked:
    """What the head of a request says; parsed once, because clients repeat their heads."""

    __slots__ = (
        "guest",
        "host",
        "is_for_all",
        "is_hook",
        "is_of_other_site",
        "match",
        "request_id",
        "secret",
        "wish",
    )

    def __init__(self, head: Head, origins: Collection[bytes]) -> None:
        headers, method = head.headers, head.method
        origin = headers.get(b"origin")
        self.guest = origin if origin in origins else None
        """The origin of the page that calls, if the operator allows it."""
        self.host = headers.get(b"host", b"")
        self.is_of_other_site = (
            origin is not None
            and self.guest is None
            and method not in ("GET", "OPTIONS")
            and origin.partition(b"://")[2] != self.host
        )
        """A page of another site sends a request that does more than read."""
        self.is_for_all = (method, head.target) in OPEN
        self.is_hook = method == "POST" and head.target.startswith(HOOKS)
        self.secret = _secret(headers)
        given = headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else None
        self.match: Match | None = None
        """The route, once its caller was admitted."""
        self.wish: Next | None = None
        """Parameters of a report whose answer is plain JSON."""


class Edge:
    """Answers requests from the network."""

    def __init__(
        self,
        services: Services,
        *,
        origins: Collection[str] = (),
        proxies: Collection[str] = (),
        pages: Pages | None = None,
    ) -> None:
        """`origins` are other sites whose pages may call, `pages` are our own; `proxies` are
        networks whose forwarding headers are trusted.
        """
        self._services = services
        self._access = services.access
        self._metrics = services.metrics
        self._router = Router(TABLE)
        self._origins = frozenset(origin.encode() for origin in origins)
        self._proxies = Proxies(proxies)
        self._pages = pages
        self._watched: dict[tuple[str | None, Principal], Watched] = {}
        """Callers who read something that has no end."""
        self._reports = PlainReports(services, self._send_taken)

    def __call__(self, request: Request) -> Coroutine[Any, Any, None] | None:
        """Answer it."""
        asked: Asked | None = request.head.found
        if asked is not None and asked.wish is not None:
            who = self._known(request, asked)
            if who is not None and self._reports.take(request, who, asked.wish, asked.request_id):
                return None
        return self._answer(request)

    async def _answer(self, request: Request) -> None:
        """Answer a request; every error becomes an answer, too."""
        begun = time.perf_counter()
        head = request.head
        asked: Asked | None = head.found
        if asked is None:
            asked = head.found = Asked(head, self._origins)
        # The id tells requests apart in the log; it is no secret.
        request_id = asked.request_id or f"{random.getrandbits(64):016x}"
        caller: Caller | None = None
        found: Match | None = None
        page: Page | None = None
        try:
            if (
                asked.guest is not None
                and head.method == "OPTIONS"
                and b"access-control-request-method" in head.headers
            ):
                response = Response(204, PREFLIGHT)
            elif (page := self._page(head)) is not None:
                response = Response(page.status, tuple(page.headers), page.body)
            else:
                principal = await self._admit(request, asked)
                address, scheme = self._proxies.behind(request.address, head.headers)
                caller = Caller(
                    principal,
                    request_id=request_id,
                    headers=head.headers,
                    gone=partial(self._gone, request, principal),
                    address=address,
                    scheme=scheme,
                )
                if head.method == "OPTIONS":
                    response = self._methods_of(head)
                else:
                    found = asked.match or self._match(asked, head)
                    response = await self._called(found, caller, request)
        except Exception as error:  # noqa: BLE001  it becomes an answer, and is logged if it is ours
            response = _problem(error, request_id)
        body = response.body
        if page is None and type(body) is bytes and len(body) >= PACKED_MIN:
            response = await _packed(head, response, body, found)
        lines = LINES.get(response.headers) if asked.guest is None else None
        if lines is None:
            lines = lines_of(_with_manners(response.headers, asked.guest))
        lines += b"x-request-id: %b\r\n" % request_id.encode()
        template = page.template if page is not None else "(none)" if found is None else found.path
        who = "" if caller is None else caller.name
        self._record(head, found, template, who, request_id, response.status, begun)
        if isinstance(response.body, bytes):
            request.answer(response.status, lines, response.body)
        elif caller is not None:
            request.begin(response.status, lines, response.size)
            may_stop = found is not None and found.route.media == NEWS
            await self._stream(request, response.body, caller, may_stop=may_stop)

    # --- The caller ---

    async def _admit(self, request: Request, asked: Asked) -> Principal:
        """Authenticate the caller. Raises for unknown ones, unless the route is open."""
        if asked.is_of_other_site:
            # Such a page must not act through the browser of a signed-in user.
            raise NotAllowed("pages of other sites may not act here.")
        if asked.is_for_all and request.head.method == "GET":
            # Health needs no caller: the database would identify them, and it may be down.
            return NOBODY
        if asked.is_hook:
            # Hooks authenticate each delivery themselves and know no accounts.
            return NOBODY
        principal = await self._who(asked)
        if principal.kind == "open":
            _refuse_rebinding(asked.host)
        elif principal.kind == "nobody" and not asked.is_for_all:
            raise Unauthenticated(
                "the token or session that was sent is unknown, revoked or expired."
                " `noetl access token create` makes a token, and commands read it from NOETL_TOKEN."
                if asked.secret
                else "not signed in. Send `Authorization: Bearer …` with a token, which"
                " `noetl access token create` makes and commands read from NOETL_TOKEN; or sign in."
            )
        return principal

    async def _who(self, asked: Asked) -> Principal:
        """The principal of the secret that the request presents."""
        return await self._access.who(asked.secret)

    async def _gone(self, request: Request, principal: Principal) -> None:
        """Return once the caller has hung up, or soon after their access has ended."""
        if principal.kind in ("nobody", "local"):
            await request.gone()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as wait:
                with self._ending_with_access(request.head.found, principal, wait):
                    await request.gone()

    @contextmanager
    def _ending_with_access(
        self, asked: Asked, principal: Principal, wait: asyncio.Timeout
    ) -> Iterator[None]:
        """Let the wait time out when the caller's access ends.

        The caller is looked up every two seconds, once for everything that they read: five hundred
        idle streams cost what one does.
        """
        key = asked.secret, principal
        if key not in self._watched:
            looking = asyncio.create_task(self._watch(asked, principal))
            self._watched[key] = Watched(looking, set())
        watched = self._watched[key]
        watched.waits.add(wait)
        try:
            yield
        finally:
            watched.waits.discard(wait)
            if not watched.waits and self._watched.get(key) is watched:
                del self._watched[key]
                watched.looking.cancel()

    async def _watch(self, asked: Asked, principal: Principal) -> None:
        """End all waits of a caller when they are no longer who they were, or when that cannot be
        looked up: then they get nothing more, and may ask again.
        """
        key, loop = (asked.secret, principal), asyncio.get_running_loop()
        try:
            while await self._who(asked) == principal:
                await asyncio.sleep(KNOWN_SECONDS)
        except NoetlError as error:
            logger.warning("streams end, because their reader could not be looked up: %s", error)
        finally:
            watched = self._watched.get(key)
            if watched is not None and watched.looking is asyncio.current_task():
                del self._watched[key]
                for wait in watched.waits:
                    wait.reschedule(loop.time())

    def _known(self, request: Request, asked: Asked) -> Principal | None:
        """The caller, if `_admit` can identify them without the database."""
        found = self._access.known(asked.secret)
        if found is not None and found.kind == "open" and not _is_this_machine(asked.host):
            return None
        return found

    # --- The route ---

    def _page(self, head: Head) -> Page | None:
        """A page of the web UI. Pages hold no data, so they need no sign-in."""
        if self._pages is None or head.method != "GET":
            return None
        page = self._pages.find(head.path, head.headers)
        if page is not None:
            return page
        missing = self._pages.missing(head.path, head.headers)
        return None if missing is None or self._router.allowed(head.target) else missing

    def _match(self, asked: Asked, head: Head) -> Match:
        _refuse_nul(head)
        found = asked.match = self._router.match(head.method, head.target)
        return found

    async def _called(self, found: Match, caller: Caller, request: Request) -> Response:
        route, head = found.route, request.head
        caller.principal.require(route.right)
        given: dict[str, Any] = found.parameters.copy()
        query = route.reader.query(head.query)
        if route.query is not None:
            given["query"] = query
        _refuse_compressed(head)
        if route is REPORT and _is_plain(request.head):
            head.found.wish = query
        if route.streamed:
            given["body"] = Body(request, route.body_max)
        elif route.body is not None:
            written = await request.read(route.body_max)
            media = head.headers.get(b"content-type", b"") if route.yaml else b""
            given["body"] = route.reader.body(written, media)
        answer = await route.handler(self._services, caller, **given)
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        return _response(route, reply, head.headers)

    def _methods_of(self, head: Head) -> Response:
        """Every known caller may ask which methods a path has."""
        _refuse_nul(head)
        allow = self._router.allowed(head.target)
        if allow is None:
            raise NotFound(f"there is no route {head.path[:200]}.")
        return Response(204, ((b"allow", allow),))

    # --- The answer ---

    def _send_taken(self, answering: Answering, body: bytes) -> None:
        """Send the answers to reports; see `plain_reports`."""
        request, request_id = answering.request, answering.request_id
        lines = LINES[AS_JSON] + b"x-request-id: %b\r\n" % request_id.encode()
        request.answer(200, lines, body)
        head, found = request.head, request.head.found.match
        name = answering.who.name
        self._record(head, found, found.path, name, request_id, 200, answering.begun)

    async def _stream(
        self, request: Request, frames: AsyncIterator[bytes], caller: Caller, *, may_stop: bool
    ) -> None:
        """Send chunks until the body ends or the caller has gone. A caller whose access has ended
        must not take the part for the whole, unless the body `may_stop` anywhere.
        """

        async def pump() -> None:
            async with _closing(frames):
                if not request.is_head:
                    async for frame in frames:
                        await request.send(frame)

        sending, gone = asyncio.ensure_future(pump()), asyncio.ensure_future(caller.gone())
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_whole = may_stop or sending.done()
            sending.cancel()
            gone.cancel()
            error, _ = await asyncio.gather(sending, gone, return_exceptions=True)
        if isinstance(error, Exception):
            extra = {"request_id": caller.request_id}
            logger.error("an answer broke off", exc_info=error, extra=extra)
        if is_whole and not isinstance(error, Exception):
            request.end()
        else:
            request.break_off()

    def _record(
        self,
        head: Head,
        found: Match | None,
        template: str,
        who: str,
        request_id: str,
        status: int,
        begun: float,
    ) -> None:
        took = time.perf_counter() - begun
        is_patient = found is not None and found.route.patient
        self._metrics.answered(head.method, template, status, None if is_patient else took)
        if not logger.isEnabledFor(logging.DEBUG):
            return
        logger.debug(
            "request",
            extra={
                "request_id": request_id,
                "method": head.method,
                "route": template,
                "status": status,
                "seconds": round(took, 6),
                "who": who,
            },
        )


class LocalEdge(Edge):
    """Answers requests through the Unix socket beside the database file.

    Only an account that can write the file can open it, and no browser does.
    """

    async def _admit(self, request: Request, asked: Asked) -> Principal:
        return local(request.address)

    def _known(self, request: Request, asked: Asked) -> Principal | None:
        return local(request.address)


class ShowingEdge(Edge):
    """Answers people who view a recording on this machine: everyone may read, no one may act."""

    def _known(self, request: Request, asked: Asked) -> Principal | None:
        return None

    async def _admit(self, request: Request, asked: Asked) -> Principal:
        _refuse_rebinding(asked.host)
        return await super()._admit(request, asked)

    async def _who(self, asked: Asked) -> Principal:
        return VISITOR


class Proxies:
    """The proxies whose forwarding headers are trusted."""

    def __init__(self, networks: Collection[str]) -> None:
        self._networks = [ipaddress.ip_network(one, strict=False) for one in networks]

    def behind(self, address: str, headers: dict[bytes, bytes]) -> tuple[str, str]:
        """The client's address and scheme: as a trusted proxy reports them, otherwise of the
        connection.

        Each proxy appends the address it forwards for. The last address that is not one of our
        proxies is the client; anyone may have written what stands before it.
        """
        scheme = "http"
        if not self._networks or not self._knows(address):
            return address, scheme
        if headers.get(b"x-forwarded-proto", b"").strip() == b"https":
            scheme = "https"
        told = headers.get(b"x-forwarded-for", b"").decode("latin-1")
        hosts = [_without_port(one.strip()) for one in told.split(",")]
        others = [one for one in hosts if not self._knows(one)]
        return (others[-1] if others else hosts[0]) or address, scheme

    def _knows(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)


def _refuse_compressed(head: Head) -> None:
    encoding = head.headers.get(b"content-encoding", b"").decode("latin-1")
    if head.length != 0 and encoding.lower() not in ("", "identity"):
        raise Compressed(
            f'bodies are read as they are, and this one has Content-Encoding "{encoding[:80]}".'
            " Send it uncompressed."
        )


def _is_plain(head: Head) -> bool:
    """Whether the answer needs neither CORS headers nor compression."""
    asked: Asked = head.found
    accepted = head.headers.get(b"accept-encoding", b"identity")
    return asked.guest is None and not asked.is_of_other_site and accepted == b"identity"


def _without_port(written: str) -> str:
    """The address in `1.2.3.4:80`, `[::1]:80` or a bare address."""
    if written.startswith("["):
        return written[1:].partition("]")[0]
    return written.partition(":")[0] if written.count(":") == 1 else written


def _secret(headers: dict[bytes, bytes]) -> str | None:
    """The secret that the caller presents: a bearer token, or a session cookie."""
    scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return secret.strip().decode("latin-1")
    found = _SESSION.search(headers.get(b"cookie", b""))
    return None if found is None else found[1].decode("latin-1")


@lru_cache(HOSTS_REMEMBERED)
def _is_this_machine(host: bytes) -> bool:
    try:
        return urlsplit(f"//{host.decode('latin-1')}").hostname in LOOPBACK
    except ValueError:
        return False


def _refuse_rebinding(host: bytes) -> None:
    """An open server accepts only names of this machine; otherwise any web page could point a name
    of its own at it.
    """
    if not _is_this_machine(host):
        raise NotAllowed(
            "this server has no users yet, so it answers only as localhost, not as"
            f' "{host.decode("latin-1")}".'
        )


def _refuse_nul(head: Head) -> None:
    if "\0" in head.path or b"%00" in head.query:
        raise BadText("an address may not contain the character NUL.")


def _problem(error: Exception, request_id: str) -> Response:
    status, problem = problem_of(error, request_id)
    headers = AS_JSON if status != 401 else UNKNOWN
    if isinstance(error, WrongMethod):
        headers = (*headers, (b"allow", error.allow))
    if status in (429, 503):
        seconds = error.seconds if isinstance(error, TooMany) else RETRY_SECONDS
        headers = (*headers, (b"retry-after", b"%d" % seconds))
    return Response(status, headers, _encode(problem))


def _response(route: AnyRoute, reply: Reply[Any], asked: dict[bytes, bytes]) -> Response:
    headers = tuple(
        (name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers
    )
    body = reply.body
    if reply.tag is not None:
        tag = f'"{reply.tag}"'.encode()
        headers = (*headers, (b"etag", b"W/" + tag), (b"cache-control", b"private, no-cache"))
        if is_known(tag, asked.get(b"if-none-match", b"")):
            return Response(304, headers)
    if body is None:
        return Response(reply.status, headers)
    if isinstance(body, bytes | str | AsyncIterator):
        sent = body.encode() if isinstance(body, str) else body
        headers = (*headers, (b"content-type", route.media.encode()))
        return Response(reply.status, headers, sent, reply.size)
    return Response(reply.status, (*headers, *AS_JSON) if headers else AS_JSON, _encode(body))


async def _packed(head: Head, response: Response, body: bytes, found: Match | None) -> Response:
    """Compress the answer if the client accepts that and it saves bytes.

    Streams stay uncompressed, because compression would delay small events. So do answers that hold
    a secret: an attacker who can place text beside a secret can guess it from the compressed size.
    """
    accepted = head.headers.get(b"accept-encoding")
    if (
        accepted is None
        or (found is not None and found.route.secret)
        or not _GZIP.search(accepted.lower())
        or not _TEXT.match(dict(response.headers).get(b"content-type", b""))
    ):
        return response
    packed = _gzip(body) if len(body) < PACKED_APART else await asyncio.to_thread(_gzip, body)
    headers = (*response.headers, (b"content-encoding", b"gzip"), VARIES)
    return response._replace(headers=headers, body=packed)


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(PACKED_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()


def _closing(frames: AsyncIterator[bytes]) -> AbstractAsyncContextManager[Any]:
    """Close a generator that was not read to its end."""
    return aclosing(frames) if isinstance(frames, AsyncGenerator) else nullcontext()
