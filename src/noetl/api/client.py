"""The client of the API: calls routes over connections to servers, or in the same process."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self
from urllib.parse import quote, urlencode

import msgspec

from noetl.api.route import IDEMPOTENCY_KEY, Caller, Reply
from noetl.errors import Unreachable
from noetl.model.ids import ExecutionId

if TYPE_CHECKING:
    from noetl.api.connection import Servers
    from noetl.api.rights import Principal
    from noetl.api.route import A, AnyRoute, B, Q, Route
    from noetl.api.services import Services
    from noetl.model.answers import EventDocument, ExecutionDocument, Registered, Started

    Events = AsyncIterator[EventDocument]

FOLLOW_EVENTS, FOLLOW_SECONDS = 1000, 20.0
LAST_EVENT = "playbook.processed"
"""The last event of an execution, as in `model.events`, which a client need not load."""


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

    def close(self) -> None:
        """Close the transport; no calls follow."""


class Whole:
    """A body that is there from the beginning; see `route.Incoming`."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


class InProcess:
    """Calls handlers directly, in the process that holds the database."""

    def __init__(self, services: Services, principal: Principal) -> None:
        self._services = services
        self._principal = principal

    async def call(self, route: AnyRoute, call: Call) -> Any:
        """See `Transport`."""
        body = await self._answer(route, call)
        if isinstance(body, AsyncIterator):
            body = b"".join([piece async for piece in body])
        return route.decoded(body) if isinstance(body, bytes) else body

    async def _answer(self, route: AnyRoute, call: Call) -> Any:
        """What the handler answers: a value, or what is sent of one."""
        self._principal.require(route.right)
        given: dict[str, Any] = {**call.parameters}
        # Parse it as if it had been sent, so that the same input is refused as over the network.
        if route.query is not None:
            given["query"] = route.reader.query(urlencode(call.query).encode())
        if route.streamed:
            given["body"] = Whole(call.body or b"")
        elif route.body is not None:
            given["body"] = route.reader.body(call.body or b"")
        headers = {name.lower().encode(): value.encode() for name, value in call.headers.items()}
        caller = Caller(self._principal, headers=headers)
        answer = await route.handler(self._services, caller, **given)
        return answer.body if isinstance(answer, Reply) else answer

    async def pieces(self, route: AnyRoute, call: Call) -> AsyncIterator[bytes]:
        """See `Transport`."""
        body = await self._answer(route, call)
        if isinstance(body, bytes):
            yield body
        else:
            async for piece in body:
                yield piece

    def close(self) -> None:
        """The services belong to the caller, which also ends them."""


class Client:
    """Calls the API by its routes: `await client.call(START, body=StartExecution(path=…))`.

    It works the same against a server, in this process, and through the socket of the process that
    holds a database.
    """

    def __init__(self, urls: Sequence[str], token: str | None = None) -> None:
        from noetl.api.connection import Servers  # Calls in this process need no HTTP.

        servers = Servers(urls, token, repeats=False)
        self._servers: Servers | None = servers
        self._transport: Transport = servers

    @classmethod
    def through(cls, transport: Transport) -> Self:
        """A client over a transport other than connections to servers."""
        made = cls.__new__(cls)
        made._servers = None
        made._transport = transport
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._transport.close()

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
        call = Call(parameters, chosen, sent, self.keyed(route, headers))
        answer: A = await self._transport.call(route, call)
        return answer

    def keyed(self, route: AnyRoute, headers: dict[str, str] | None) -> dict[str, str]:
        """Headers with a key, where the route takes one and an answer may be lost on its way: the
        request may be sent again, to another server, and has its effect once.
        """
        given = headers or {}
        if self._servers is None or not route.keyed:
            return given
        return {IDEMPOTENCY_KEY.name: secrets.token_hex(16)} | given

    def pieces(self, route: AnyRoute, **parameters: str) -> AsyncIterator[bytes]:
        """The body of an answer that is a file or may be large, in chunks."""
        return self._transport.pieces(route, Call(parameters, [], None, {}))

    @property
    def url(self) -> str:
        return self._connected.url

    async def get(self, route: str, /, **params: Any) -> Any:
        return msgspec.json.decode(await self._connected.ask("GET", route, params=_pairs(params)))

    @property
    def _connected(self) -> Servers:
        if self._servers is None:
            raise Unreachable("this client calls a system in its own process; it has no server.")
        return self._servers

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
        headers = {} if key is None else {IDEMPOTENCY_KEY.name: key}
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
