"""The app: the table of routes, the edge before them, and the proof that each names a right."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from litestar import Litestar, MediaType, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from noetl.api.direct import Direct
from noetl.api.edge import COOKIE, Edge
from noetl.api.errors import answer
from noetl.api.manners import Asked, refuse_strange
from noetl.api.packing import Packing
from noetl.api.routing import allowed, area_of, declared, may
from noetl.api.services import Services
from noetl.api.table import TABLE
from noetl.version import __version__

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler
    from litestar.types import ASGIApp, Method
    from litestar.types.internal_types import PathParameterDefinition

BODY_MAX = 16 * 1024 * 1024
VERBS = {"listing": "list", "show": "get"}
"""What programs call what our handlers are called."""


def build(services: Services, origins: Collection[str] = ()) -> ASGIApp:
    """The ASGI app of a server; pages of these origins may ask it, too.

    Raises RightMissing if a route is not declared in full.
    """
    app = framework(services)
    rows = declared(app)
    open_routes = frozenset((row.method, row.path) for row in rows if row.right == "anyone")
    inner = Packing(Direct(app, services))
    parts = inner, services.access, services.metrics
    return Edge(*parts, open_routes, allowed=allowed(rows), origins=origins)


def framework(services: Services) -> Litestar:
    """The routes without the edge before them; nothing but the edge should call it."""
    # What it logs at start-up is about itself.
    logging.getLogger("litestar").setLevel(logging.ERROR)
    return Litestar(
        [*TABLE],
        guards=[may],
        before_request=refuse_strange,
        request_class=Asked,
        exception_handlers={Exception: answer},
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        request_max_body_size=BODY_MAX,
        logging_config=None,
        debug=False,
        openapi_config=_openapi(),
    )


def _operation_id(
    handler: HTTPRouteHandler, method: Method, path: list[str | PathParameterDefinition]
) -> str:
    """`executions_start`: what it is about, and what the handler is called."""
    words = [part for part in path if isinstance(part, str)]
    name = handler.handler_name
    if words[:1] != ["api"]:
        return "_".join(words) or name
    return f"{area_of('/'.join(words))}_{VERBS.get(name, name)}"


def _openapi() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="NoETL",
        version=__version__,
        description="Durable workflows from YAML playbooks.",
        path="/api/openapi.json",
        operation_id_creator=_operation_id,
        render_plugins=[JsonRenderPlugin(path="/", media_type=MediaType.JSON)],
        openapi_router=Router(
            path="/api/openapi.json",
            route_handlers=[],
            opt={"right": "read"},
            include_in_schema=False,
        ),
        components=Components(
            security_schemes={
                "token": SecurityScheme(type="http", scheme="bearer"),
                "session": SecurityScheme(type="apiKey", security_scheme_in="cookie", name=COOKIE),
            }
        ),
        security=[{"token": []}, {"session": []}],
    )
