"""A short way to the routes that are asked most: those of workers at every step, and starting.

The framework's way to a handler costs more than what most reports ask for. So routes that are
declared with `direct` are answered from here: by the same handler, behind the same guard, with the
same limits. Only what is as declared goes this way. A parameter or a body that is not goes the
framework's, which knows how to say what is wrong with it; so whatever is refused is refused in one
place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter
from msgspec.structs import asdict, fields

from noetl.api.manners import Asked, refuse_strange
from noetl.api.routing import may
from noetl.api.services import Services

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

QUERIES_REMEMBERED = 64
"""A worker asks with the same parameters each time."""


class Direct:
    """The framework, with a short way to some of its routes."""

    def __init__(self, framework: Litestar, services: Services) -> None:
        self._framework: ASGIApp = framework
        self._ways = {
            (method, route.path): _Way(handler, route.path, services)
            for route in framework.routes
            for handler in getattr(route, "route_handlers", ())
            if handler.opt.get("direct")
            for method in handler.http_methods
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        way = self._ways.get((scope["method"], scope["path"]))  # type: ignore[typeddict-item]
        if way is None or not await way.answers(_Request(scope, receive, send)):
            await self._framework(scope, receive, send)


class _Request(Asked):
    """As the framework knows it, but for a header that is looked for among few."""

    @property
    def content_length(self) -> int | None:
        lengths = (value for name, value in self.scope["headers"] if name == b"content-length")
        return next(map(int, lengths), None)


class _Way:
    """How one handler is called."""

    def __init__(self, handler: HTTPRouteHandler, path: str, services: Services) -> None:
        self._handler = handler
        self._path = path
        self._call = partial(handler.fn, services=services)
        self._headers = _headers(handler)
        self._read_query, self._read_body = _readers(handler)

    async def answers(self, request: _Request) -> bool:
        """Answer, unless what is asked is not as declared."""
        request.scope["route_handler"] = self._handler
        request.scope["path_template"] = self._path
        await may(request, self._handler)
        await refuse_strange(request)
        try:
            given = self._read_query(request.scope["query_string"])
            if self._read_body is not None:
                # What is read stays with the request: the framework does not read it again.
                given = {**given, "data": self._read_body(await request.body())}
        except msgspec.MsgspecError:
            return False
        if self._headers:
            sent = {
                self._headers[name]: value.decode("latin-1")
                for name, value in request.scope["headers"]
                if name in self._headers
            }
            given = {**given, **sent}
        body = msgspec.json.encode(await self._call(request=request, **given))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        status = self._handler.status_code
        await request.send({"type": "http.response.start", "status": status, "headers": headers})
        await request.send({"type": "http.response.body", "body": body, "more_body": False})
        return True


def _headers(handler: HTTPRouteHandler) -> dict[bytes, str]:
    """Which headers become which arguments. All of them are texts that may be missing."""
    return {
        str(field.kwarg_definition.name).lower().encode(): name
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(field.kwarg_definition, HeaderParameter)
    }


def _readers(
    handler: HTTPRouteHandler,
) -> tuple[Callable[[bytes], dict[str, Any]], Callable[[bytes], Any] | None]:
    """How the query and the body become arguments: by the types that the framework goes by."""
    declared = {one.name: one for one in fields(handler.signature_model)}
    del declared["services"], declared["request"]
    data = declared.pop("data", None)
    for name in _headers(handler).values():
        del declared[name]
    parameters = msgspec.defstruct(
        "Parameters", [(one.name, one.type, one.default) for one in declared.values()]
    )

    @lru_cache(QUERIES_REMEMBERED)
    def read_query(query: bytes) -> dict[str, Any]:
        given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
        return asdict(msgspec.convert(given, parameters, strict=False))

    return read_query, None if data is None else msgspec.json.Decoder(data.type).decode
