"""/, /health, /metrics: for whoever finds the server, and whoever keeps it running."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from litestar import Response

from noetl.api.errors import said_of
from noetl.api.metrics import CONTENT_TYPE
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.errors import StoreError
from noetl.version import __version__

logger = logging.getLogger(__name__)

UNSTORED_SECONDS_MAX = 5.0
"""A decision is stored in milliseconds. One that waits for longer shows that something is stuck."""
PROBE_SECONDS = 3.0


WELCOME = f"""\
NoETL {__version__}. This is a server for programs; it has no pages.

Is it well?     GET /health
What it can do  GET /api/openapi.json, and docs/api.md of the project
The command     noetl executions list --server URL; noetl --help
"""


@route("GET", "/", right="anyone", media_type="text/plain")
async def welcome(services: Services) -> str:
    """Where to go on, for people who open the address of a server in a browser."""
    return WELCOME


@route("GET", ["/health", "/api/health"], right="anyone")
async def check(services: Services) -> Response[dict[str, Any]]:
    """Whether the server is up, can store what it decides, and takes new work.

    200 `ok`; 503 `draining` while it ends; 503 `failing`, and `reason` says why, when the database
    does not answer or has no room, or when a decision has waited for more than five seconds to be
    stored. Without NATS it does everything, only later: so it is shown, and does not count.
    """
    reason = await _failure(services)
    draining = services.draining.is_set()
    body = {"status": "draining" if draining else "ok", "version": __version__}
    if reason is not None:
        body |= {"status": "failing", "reason": reason}
    if services.nats is not None:
        body["nats"] = "connected" if services.nats().is_connected else "away"
    return Response(body, status_code=503 if draining or reason is not None else 200)


async def _failure(services: Services) -> str | None:
    """Why nothing can be stored. It may be told to anyone: no names of hosts and files."""
    waiting = services.orchestrator.unstored_seconds()
    if waiting > UNSTORED_SECONDS_MAX:
        return f"The oldest decision has been waiting for {waiting:.0f} s to be stored."
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await services.store.probe()
    except TimeoutError:
        return f"The database did not answer within {PROBE_SECONDS:g} s."
    except StoreError as error:
        logger.warning("the database fails: %s", error)
        return said_of(error)
    return None


@route("GET", "/metrics", right="read", media_type="text/plain")
async def metrics(services: Services) -> Response[bytes]:
    """Figures for Prometheus."""
    services.metrics.show_queue(await services.store.queue_sizes())
    return Response(services.metrics.text(), media_type=CONTENT_TYPE)


routes = [welcome, check, metrics]
