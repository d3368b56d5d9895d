"""/health, /metrics: for whoever keeps the server running."""

from __future__ import annotations

from typing import Any

from litestar import Response

from noetl.server.metrics import CONTENT_TYPE
from noetl.server.routing import route
from noetl.server.services import Services
from noetl.version import __version__


@route("GET", ["/health", "/api/health"], right="anyone")
async def health(services: Services) -> Response[dict[str, Any]]:
    """Whether the server is up, reaches its database, and takes new work.

    Without NATS it does everything, only later: so it is shown, and does not count.
    """
    await services.store.next_timer()
    draining = services.draining.is_set()
    body = {"status": "draining" if draining else "ok", "version": __version__}
    if services.nats is not None:
        body["nats"] = "connected" if services.nats().is_connected else "away"
    return Response(body, status_code=503 if draining else 200)


@route("GET", "/metrics", right="read", media_type="text/plain")
async def metrics(services: Services) -> Response[bytes]:
    """Figures for Prometheus."""
    services.metrics.show_queue(await services.store.queue_sizes())
    return Response(services.metrics.text(), media_type=CONTENT_TYPE)


routes = [health, metrics]
