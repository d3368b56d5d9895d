"""How a route is declared: its method, its path, and the right it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler, delete, get, post, put

from noetl.api.errors import RESPONSES
from noetl.api.rights import RIGHTS, Principal, Right
from noetl.errors import NoetlError, NotAllowed

_TYPE = re.compile(r":\w+(?=})")
"""The type of a parameter in a path."""
_DECORATORS = {"GET": get, "POST": post, "PUT": put, "DELETE": delete}


def route(
    method: str,
    path: str | Sequence[str],
    *,
    right: Right,
    status: int = 200,
    direct: bool = False,
    raw: bool = False,
    yaml: bool = False,
    secret: bool = False,
    **options: Any,
) -> Callable[[Any], HTTPRouteHandler]:
    """Declare a route. There is no default for the right: nothing is open by oversight.

    A `direct` one is asked so often that the framework is too slow for it: see `direct.py`. A `raw`
    one takes its body as it is, whatever characters it holds. A `yaml` one has a body with
    `content`, which may also be sent as it is. The answer of a `secret` one may hold secrets.
    """
    paths = [path] if isinstance(path, str) else list(path)
    decorate: Callable[[Any], HTTPRouteHandler] = _DECORATORS[method](
        paths,
        status_code=status,
        responses=RESPONSES,
        tags=[area_of(max(paths, key=len))],
        security=[{}] if right == "anyone" else None,
        opt={"right": right, "direct": direct, "raw": raw, "yaml": yaml, "secret": secret},
        **options,
    )
    return decorate


def area_of(path: str) -> str:
    """What a route is about: the first word of its path after `/api`."""
    words = path.strip("/").removeprefix("api/").split("/")
    return words[0].replace("-", "_") or "server"


async def may(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Deny by default: a route without a right is nobody's.

    It waits for nothing, but the framework would call a plain function in a thread, each time.
    """
    principal = connection.scope["user"]
    right = handler.opt.get("right")
    if connection.scope.get("method") == "OPTIONS" and isinstance(principal, Principal):
        return  # which methods there are: the framework answers, and everybody known may ask
    if right is None or not isinstance(principal, Principal):
        raise NotAllowed("nobody may do this.")
    principal.require(right)


def allowed(rows: list[Declared]) -> dict[str, bytes]:
    """Which methods there are, by path, as the header `Allow` says it."""
    methods: dict[str, set[str]] = {}
    for row in rows:
        methods.setdefault(_TYPE.sub("", row.path), {"OPTIONS"}).add(row.method)
    return {
        path: ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set()))).encode()
        for path, found in methods.items()
    }


class Declared(NamedTuple):
    """A row of the route table."""

    method: str
    path: str
    right: Right


class RightMissing(NoetlError):
    """A route says nothing about who may use it, so nobody may: the server does not start."""

    code = "right_missing"


def declared(app: Litestar) -> list[Declared]:
    """Every route of the app with its right; raises RightMissing for one without."""
    found = []
    for one in app.routes:
        for handler in getattr(one, "route_handlers", ()):
            for method in sorted(getattr(handler, "http_methods", ())):
                if method in ("OPTIONS", "HEAD"):
                    continue  # made by the framework; nobody has a right to them
                right = handler.opt.get("right")
                if right not in RIGHTS:
                    raise RightMissing(f"{method} {one.path} declares no right, or one unknown.")
                found.append(Declared(method, one.path, right))
    return sorted(found)
