"""How a route is declared: its method, its path, and the right it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler, delete, get, post, put

from noetl.errors import NoetlError
from noetl.server.errors import RESPONSES
from noetl.server.rights import RIGHTS, Right

_DECORATORS = {"GET": get, "POST": post, "PUT": put, "DELETE": delete}


def route(
    method: str, path: str | Sequence[str], *, right: Right, status: int = 200, **options: Any
) -> Callable[[Any], HTTPRouteHandler]:
    """Declare a route. There is no default for the right: nothing is open by oversight."""
    paths = [path] if isinstance(path, str) else list(path)
    decorate: Callable[[Any], HTTPRouteHandler] = _DECORATORS[method](
        paths, status_code=status, responses=RESPONSES, opt={"right": right}, **options
    )
    return decorate


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
