"""/, /health, /metrics: for visitors of the server, and for its operators."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from msgspec import UNSET

from noetl.api.errors import said_of
from noetl.api.metrics import CONTENT_TYPE
from noetl.api.route import Caller, Reply, Route, Services
from noetl.control.waits import LIVE_SECONDS
from noetl.errors import StoreError
from noetl.model.answers import Health
from noetl.model.commands import pool_of
from noetl.version import __version__

logger = logging.getLogger(__name__)

UNSTORED_SECONDS_MAX = 5.0
"""A decision is stored within milliseconds. One that waits longer than this shows a fault."""
PROBE_SECONDS = 3.0
TEXT = "text/plain; charset=utf-8"


WELCOME = f"""\
NoETL {__version__}. The web pages of this server are off (NOETL_UI=off).

Is it well?     GET /health
What it can do  GET /api/openapi.json, and docs/api.md of the project
The command     noetl executions list --server URL; noetl --help
"""


async def welcome(services: Services, caller: Caller) -> str:
    """The start page of a server without the web UI."""
    return WELCOME


async def check(services: Services, caller: Caller) -> Reply[Health]:
    """Whether the server is up, can store its decisions, and accepts work.

    200 `ok`; 503 `draining` while it ends; 503 `failing` with a `reason` if the database does not
    answer or is full, or if a decision has waited more than five seconds to be stored. Without NATS
    everything still works, only slower, so NATS is shown but does not count.
    """
    reason = await _failure(services)
    status: Literal["ok", "draining", "failing"] = "ok"
    if reason is not None:
        status = "failing"
    elif services.draining.is_set():
        status = "draining"
    nats = None if services.nats is None else services.nats.connection
    health = Health(
        status=status,
        version=__version__,
        reason=UNSET if reason is None else reason,
        nats=UNSET if nats is None else "connected" if nats.is_connected else "away",
    )
    return Reply(health, status=200 if status == "ok" else 503)


async def _failure(services: Services) -> str | None:
    """Why nothing can be stored. Everyone may read this, so it names no hosts and files."""
    waiting = services.orchestrator.commits.unstored_seconds()
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


async def metrics(services: Services, caller: Caller) -> bytes:
    """Figures for Prometheus."""
    since = services.clock.now() - LIVE_SECONDS
    workers = await services.store.runtimes.all(kind="worker", since=since)
    # An idle pool is shown with 0: what scales it must see that.
    sizes = {pool_of(row.pool): (0, 0) for row in workers}
    for queue, (waiting, leased) in (await services.store.queue.sizes()).items():
        others = sizes.get(pool_of(queue), (0, 0))
        sizes[pool_of(queue)] = others[0] + waiting, others[1] + leased
    services.metrics.show_queue(sizes)
    return services.metrics.text()


WELCOMING = Route("server.welcome", "GET", "/", "anyone", welcome, media=TEXT)
HEALTH = Route(
    "server.health", "GET", "/health", "anyone", check, aliases=("/api/health",), statuses=(503,)
)
METRICS = Route("server.metrics", "GET", "/metrics", "read", metrics, media=CONTENT_TYPE)
