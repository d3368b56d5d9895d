"""How a route is declared: its method, its path, and the right it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler, delete, get, post, put

from noetl.errors import NoetlError, NotAllowed
from noetl.server.errors import RESPONSES
from noetl.server.rights import RIGHTS, Principal, Right

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
    **options: Any,
) -> Callable[[Any], HTTPRouteHandler]:
    """Declare a route. There is no default for the right: nothing is open by oversight.

    A `direct` one is asked so often that the framework is too slow for it: see `direct.py`. A `raw`
    one takes its body as it is, whatever characters it holds. A `yaml` one has a body with
    `content`, which may also be sent as it is.
    """
    paths = [path] if isinstance(path, str) else list(path)
    decorate: Callable[[Any], HTTPRouteHandler] = _DECORATORS[method](
        paths,
        status_code=status,
        responses=RESPONSES,
        opt={"right": right, "direct": direct, "raw": raw, "yaml": yaml},
        **options,
    )
    return decorate


async def may(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Deny by default: a route without a right is nobody's.

    It waits for nothing, but the framework would call a plain function in a thread, each time.
    """
    principal = connection.scope["user"]
    right = handler.opt.get("right")
    if right is None or not isinstance(principal, Principal):
        raise NotAllowed("nobody may do this.")
    principal.require(right)


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
