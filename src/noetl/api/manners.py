"""How all routes read what they are asked: what they do not know is refused, not ignored.

A misspelt key would otherwise run with a default. Workers are an exception: those of a later
release may say more than this one knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.params import HeaderParameter, ParameterKwarg
from litestar.response import Stream
from litestar.types import Empty

from noetl.errors import BadText, UnknownKey
from noetl.model.spelling import did_you_mean
from noetl.store.base import Pieces

YAML = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
LET_THROUGH = "resource_kind"
"""Others send it beside `resource_type`, and it says nothing that we need."""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""As JSON writes it; there is no other way to write it there."""
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`")
_INJECTED = frozenset({"services", "request", "data"})


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody sends as JSON."""


class Asked(Request[Any, Any, Any]):
    """A request whose body is JSON, also where it was sent as nothing or as YAML."""

    async def body(self) -> bytes:
        if self._body is not Empty:
            return self._body
        found = await super().body()
        handler = self.scope["route_handler"]
        if handler.opt.get("yaml") and self.content_type[0] in YAML:
            found = msgspec.json.encode({"content": found.decode()})
        elif not found and "data" in handler.parsed_fn_signature.parameters:
            found = b"{}"
        self._body = self._connection_state.body = found
        return found


def tagged(request: Request[Any, Any, Any], tag: str, body: Any, **options: Any) -> Response[Any]:
    """An answer that never changes under its tag; 304 for whoever has it already."""
    headers = {"ETag": f'W/"{tag}"', "Cache-Control": "private, no-cache"}
    known = request.headers.get("if-none-match", "")
    if any(one.strip().removeprefix("W/") in (f'"{tag}"', "*") for one in known.split(",")):
        return Response(None, status_code=304, headers=headers)
    if isinstance(body, Pieces):
        headers["Content-Length"] = str(body.size)
        return Stream(body.pieces, headers=headers, **options)
    return Response(body, headers=headers, **options)


async def refuse_strange(request: Request[Any, Any, Any]) -> None:
    """Refuse what cannot be meant: keys that the route does not know, and the character NUL.

    Databases do not keep that. Routes that are `raw` take a body with it: what tasks yield is kept
    as it is.
    """
    handler = request.scope["route_handler"]
    if handler.opt.get("right") != "work":
        known = _query_keys(handler)
        for key in request.query_params:
            if key not in known and key != LET_THROUGH:
                raise _unknown("the query", key, known)
    if handler.opt.get("raw"):
        return
    body = await request.body()
    if b"\\u0000" in body and _NUL.search(body):
        raise BadText("a text in the body holds the character NUL, which databases do not keep.")


@lru_cache(256)
def _query_keys(handler: BaseRouteHandler) -> tuple[str, ...]:
    found = []
    for name, field in handler.parsed_fn_signature.parameters.items():
        kwarg = field.kwarg_definition
        if name in _INJECTED or isinstance(kwarg, HeaderParameter) or _is_in_path(handler, name):
            continue
        named = isinstance(kwarg, ParameterKwarg) and (kwarg.name or kwarg.query)
        found.append(str(named or name))
    return tuple(found)


def _is_in_path(handler: BaseRouteHandler, name: str) -> bool:
    return any(f"{{{name}:" in path for path in handler.paths)


def unknown_key(request: Request[Any, Any, Any], error: Exception) -> UnknownKey | None:
    """The same error as ours, if it is about a key of the body that is not known."""
    if not isinstance(error, HTTPException) or not isinstance(error.extra, list):
        return None
    data = request.scope["route_handler"].parsed_fn_signature.parameters.get("data")
    kinds = () if data is None else (data.annotation, *(one.annotation for one in data.inner_types))
    said = " ".join(str(one.get("message", "")) for one in error.extra)
    return unknown_field(said, *kinds)


def unknown_field(said: str, *kinds: Any) -> UnknownKey | None:
    """What msgspec says when it reads one of these, as an error of ours if it is about a key."""
    found = _UNKNOWN_FIELD.search(said)
    return None if found is None else _unknown("the body", found[1], tuple(_keys(kinds)))


def _keys(kinds: tuple[Any, ...]) -> Iterator[str]:
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from kind.__struct_encode_fields__


def _unknown(where: str, key: str, known: tuple[str, ...]) -> UnknownKey:
    listed = f"It may have: {', '.join(known)}." if known else "It has none."
    hint = did_you_mean(key, known)
    return UnknownKey(f'{where} has no key "{key[:80]}".{hint or " " + listed}')
