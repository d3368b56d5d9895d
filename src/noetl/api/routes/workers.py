"""/api/worker: which workers there are, by pool."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request

from noetl.api.routing import route
from noetl.api.services import Services
from noetl.control.documents import runtime as about
from noetl.control.timekeeping import take_over
from noetl.store.base import Runtime

LIVE_SECONDS = 60.0
"""A worker that was silent for longer is gone."""
Asked = Request[Any, Any, Any]


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that says it is there."""

    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    pool: str = "default"
    slots: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    host: str = ""
    version: str = ""
    draining: bool = False
    sandbox: Annotated[str, msgspec.Meta(max_length=40)] = ""


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str


async def _note(services: Services, request: Asked, data: Present) -> dict[str, str]:
    request.user.require_pool(data.pool)
    now = services.clock.now()
    name = request.user.worker_name(data.worker_id)
    await services.store.beat(
        Runtime(
            name=name,
            kind="worker",
            started_at=now,
            seen_at=now,
            pool=data.pool,
            slots=data.slots,
            host=data.host,
            version=data.version,
            draining=data.draining,
            sandbox=data.sandbox,
        )
    )
    return {"worker_id": name}


@route("POST", "/api/worker/pool/register", right="work")
async def register(services: Services, request: Asked, data: Present) -> dict[str, str]:
    """A worker begins."""
    return await _note(services, request, data)


@route("POST", "/api/worker/pool/heartbeat", right="work")
async def heartbeat(services: Services, request: Asked, data: Present) -> dict[str, str]:
    """It is still there."""
    return await _note(services, request, data)


@route("POST", "/api/worker/pool/deregister", right="work")
async def deregister(services: Services, request: Asked, data: Gone) -> dict[str, Any]:
    """It ends; what it was given and has not reported on goes to others at once."""
    name = request.user.worker_name(data.worker_id)
    given_back = await take_over(services.orchestrator, services.store, name)
    return {"was_known": await services.store.leave(name), "given_back": given_back}


@route("GET", "/api/worker/pools", right="read")
async def pools(services: Services) -> dict[str, Any]:
    """Every pool with its workers and the work that waits for it."""
    since = services.clock.now() - LIVE_SECONDS
    found = await services.store.runtimes(kind="worker", since=since)
    sizes = await services.store.queue_sizes()
    names = sorted({row.pool for row in found} | sizes.keys())
    return {
        "pools": [
            {
                "pool": name,
                "workers": [about(row) for row in found if row.pool == name],
                "slots": sum(row.slots for row in found if row.pool == name),
                "waiting": sizes.get(name, (0, 0))[0],
                "leased": sizes.get(name, (0, 0))[1],
            }
            for name in names
        ]
    }


routes = [register, heartbeat, deregister, pools]
