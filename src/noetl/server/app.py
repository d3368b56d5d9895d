"""The app: the table of routes, the edge before them, and the proof that each names a right."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from litestar import Litestar, MediaType, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from noetl.server.direct import Direct
from noetl.server.edge import COOKIE, Edge
from noetl.server.errors import answer
from noetl.server.manners import Asked, refuse_strange
from noetl.server.routing import declared, may
from noetl.server.services import Services
from noetl.server.table import TABLE
from noetl.version import __version__

if TYPE_CHECKING:
    from litestar.types import ASGIApp

BODY_MAX = 16 * 1024 * 1024


def build(services: Services) -> ASGIApp:
    """The ASGI app of a server. Raises RightMissing if a route is not declared in full."""
    app = framework(services)
    open_routes = frozenset(
        (row.method, row.path) for row in declared(app) if row.right == "anyone"
    )
    return Edge(Direct(app, services), services.access, services.metrics, open_routes)


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


def _openapi() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="NoETL",
        version=__version__,
        description="Durable workflows from YAML playbooks.",
        path="/api/openapi.json",
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
