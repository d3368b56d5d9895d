"""The client of the API: calls routes over a connection, or in the same process.

An error of the server is raised here as the exception it was there. If no server answers, the call
fails at once. Workers use the same connections but keep trying; see `worker_control`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self
from urllib.parse import quote, urlencode

import msgspec

from noetl.api.connection import ANSWER_SECONDS, Connections
from noetl.api.route import Caller, Reply
from noetl.errors import (
    BadInputs,
    NoetlError,
    PlaybookRejected,
    StoreError,
    Unreachable,
)
from noetl.model.ids import ExecutionId
from noetl.model.problems import Problem
from noetl.settings import without_password

if TYPE_CHECKING:
    from noetl.api.rights import Principal
    from noetl.api.route import A, AnyRoute, B, Q, Route
    from noetl.api.services import Services
    from noetl.model.answers import EventDocument, ExecutionDocument, Registered, Started

    Events = AsyncIterator[EventDocument]

logger = logging.getLogger(__name__)

AVOID_SECONDS = 30.0
"""For this long, a server that did not answer is asked only after all others."""
Params = dict[str, str] | list[tuple[str, str]]
FOLLOW_EVENTS, FOLLOW_SECONDS = 1000, 20.0
LAST_EVENT = "playbook.processed"
"""The last event of an execution."""
TARGETS_REMEMBERED = 256
PATH_SAFE = "/%:@!$&'()*+,;=?"
"""Characters that stay unquoted in a path; its parameters are quoted already."""
_TRY_AGAIN = frozenset({502, 503, 504})


class Servers:
    """One server, or several with the same database. If one does not answer, the next is asked."""

    def __init__(
        self, urls: Sequence[str], token: str | None = None, *, repeats: bool = False
    ) -> None:
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
        """See `Transport`."""
        answer = await self.ask(
            route.method,
            route.path.format(**call.quoted),
            body=call.body,
            params=call.query,
            headers=call.headers,
        )
        return msgspec.json.decode(answer, type=route.answer)

    async def pieces(self, route: AnyRoute, call: Call) -> AsyncIterator[bytes]:
        """See `Transport`."""
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

        A server that is silent for `seconds` counts as not answering.
        """
        target = _target(path)
        if params:
            target += "?" + urlencode(params)
        failure: OSError | None = None
        untried = set(range(len(self._servers)))
        while untried:
            asked = self._next_of(untried)
            untried.discard(asked)
            try:
                answer = await self._servers[asked].ask(method, target, body, headers, seconds)
            except OSError as error:
                failure = error
                self._pass_over(asked)
                if self._repeats and isinstance(error, TimeoutError):
                    # Other requests to this server would wait in vain just as long.
                    self._servers[asked].break_off()
                continue
            if self._repeats and untried and answer.status in _TRY_AGAIN:
                # This server cannot work at the moment; another one may.
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
        raise Unreachable(
            f"no server answers at {', '.join(self._urls)} ({_cause_of(failure)})."
            " Is it running? `noetl server start` starts one; --server names another."
        )

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


def _pairs(query: dict[str, Any]) -> list[tuple[str, str]]:
    """The query string; None is left out, and a mapping is written key by key."""
    flat: list[tuple[str, Any]] = []
    for name, value in query.items():
        if isinstance(value, dict):
            flat += [(f"{name}.{key}", one) for key, one in value.items()]
        else:
            flat.append((name, value))
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in flat
        for one in (value if isinstance(value, list | tuple) else [value])
        if one is not None
    ]


def _cause_of(failure: OSError | None) -> str:
    """Why no server answered, in a few words."""
    if failure is None:
        return "none is named"
    number = failure.errno or 0
    if number > 0 and not isinstance(failure, ssl.SSLError):
        return os.strerror(number).lower()
    return failure.strerror or str(failure) or type(failure).__name__


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


class Connected:
    """A client over connections; open while entered as a context manager."""

    def __init__(
        self, urls: Sequence[str], token: str | None = None, *, repeats: bool = False
    ) -> None:
        self._servers = Servers(urls, token, repeats=repeats)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._servers.close()


class Call(NamedTuple):
    """What a caller gives to a route, as it is sent."""

    parameters: dict[str, str]
    """Those of the path."""
    query: list[tuple[str, str]]
    body: bytes | None
    headers: dict[str, str]

    @property
    def quoted(self) -> dict[str, str]:
        """The parameters as they stand in a path."""
        return {name: quote(value, safe="") for name, value in self.parameters.items()}


class Transport(Protocol):
    """How a client reaches the routes of the API."""

    async def call(self, route: AnyRoute, call: Call) -> Any:
        """Call the route. Raises the error it ended with."""

    def pieces(self, route: AnyRoute, call: Call) -> AsyncIterator[bytes]:
        """The body of an answer that is a file or may be large, in chunks."""


class InProcess:
    """Calls handlers directly, in the process that holds the database."""

    def __init__(self, services: Services, principal: Principal) -> None:
        self._services = services
        self._principal = principal

    async def call(self, route: AnyRoute, call: Call) -> Any:
        """See `Transport`."""
        self._principal.require(route.right)
        given: dict[str, Any] = {**call.parameters}
        # Parse it as if it had been sent, so that the same input is refused here and there.
        if route.query is not None:
            given["query"] = route.reader.query(urlencode(call.query).encode())
        if route.body is not None:
            given["body"] = route.reader.body(call.body or b"")
        headers = {name.lower().encode(): value.encode() for name, value in call.headers.items()}
        caller = Caller(self._principal, headers=headers)
        answer = await route.handler(self._services, caller, **given)
        return answer.body if isinstance(answer, Reply) else answer

    async def pieces(self, route: AnyRoute, call: Call) -> AsyncIterator[bytes]:
        """See `Transport`."""
        body = await self.call(route, call)
        if isinstance(body, bytes):
            yield body
        else:
            async for piece in body:
                yield piece


class Client(Connected):
    """Calls the API by its routes: `await client.call(START, body=StartExecution(path=…))`.

    It works the same against a server, in this process, and through the socket of the process that
    holds a database.
    """

    _transport: Transport | None = None

    @classmethod
    def through(cls, transport: Transport) -> Self:
        """A client over a transport other than connections to servers."""
        made = cls(())
        made._transport = transport
        return made

    async def call(
        self,
        route: Route[Q, B, A],
        *,
        query: Q | None = None,
        body: B | None = None,
        headers: dict[str, str] | None = None,
        **parameters: str,
    ) -> A:
        """Call the route. Raises the error it ended with."""
        chosen = [] if query is None else _pairs(msgspec.to_builtins(query))
        sent: Any = body if body is None or route.raw else msgspec.json.encode(body)
        call = Call(parameters, chosen, sent, headers or {})
        answer: A = await (self._transport or self._servers).call(route, call)
        return answer

    def pieces(self, route: AnyRoute, **parameters: str) -> AsyncIterator[bytes]:
        """The body of an answer that is a file or may be large, in chunks."""
        return (self._transport or self._servers).pieces(route, Call(parameters, [], None, {}))

    @property
    def url(self) -> str:
        return self._servers.url

    async def get(self, route: str, /, **params: Any) -> Any:
        return msgspec.json.decode(await self._servers.ask("GET", route, params=_pairs(params)))

    # --- What programs do most ---

    async def register(self, content: str) -> Registered:
        """Register a playbook, given as YAML text, in the catalog. The same text again yields the
        same version. Raises PlaybookRejected with all problems.
        """
        from noetl.api.routes.catalog import REGISTER, Register

        return await self.call(REGISTER, body=Register(content=content))

    async def start(
        self,
        path: str,
        workload: dict[str, Any] | None = None,
        *,
        version: int | None = None,
        labels: dict[str, str] | None = None,
        key: str | None = None,
    ) -> Started:
        """Start a registered playbook. Calls with the same `key` start one execution."""
        from noetl.api.routes.executions import START, StartExecution

        body = StartExecution(path=path, workload=workload, version=version, labels=labels or {})
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.call(START, body=body, headers=headers)

    async def follow(self, execution_id: ExecutionId, *, after: int = 0) -> Events:
        """The events of an execution as they happen, up to the last one."""
        from noetl.api.routes.executions import EVENTS, WhichEvents

        while True:
            query = WhichEvents(after=after, limit=FOLLOW_EVENTS, wait=FOLLOW_SECONDS)
            page = await self.call(EVENTS, query=query, execution_id=execution_id)
            for event in page.events:
                yield event
                if event.event_type == LAST_EVENT:
                    return
            after = page.next_after

    async def wait(self, execution_id: ExecutionId) -> ExecutionDocument:
        """Wait for the end of an execution: its status, result or error, and its steps."""
        from noetl.api.routes.executions import EVENTS, GET, WhichEvents

        query = WhichEvents(type=(LAST_EVENT,), wait=FOLLOW_SECONDS)
        while not (await self.call(EVENTS, query=query, execution_id=execution_id)).events:
            pass
        return await self.call(GET, execution_id=execution_id)
