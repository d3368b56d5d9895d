"""/api/worker: which workers there are, by pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from noetl.api.route import Caller, Route
from noetl.control.documents import runtime as about
from noetl.control.timekeeping import take_over
from noetl.model.answers import Pool, PoolList, WorkerGone, WorkerKnown
from noetl.store.base import Runtime

if TYPE_CHECKING:
    from noetl.api.services import Services

LIVE_SECONDS = 60.0
"""A worker that was silent for longer is gone."""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that says it is there."""

    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    pool: str = "default"
    slots: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    host: str = ""
    version: str = ""
    draining: bool = False
    sandbox: Annotated[str, msgspec.Meta(max_length=40)] = ""


class Farewell(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that ends."""

    worker_id: str


async def _beat(services: Services, caller: Caller, worker: Presence) -> WorkerKnown:
    caller.principal.require_pool(worker.pool)
    now = services.clock.now()
    name = caller.principal.worker_name(worker.worker_id)
    await services.store.beat(
        Runtime(
            name=name,
            kind="worker",
            started_at=now,
            seen_at=now,
            pool=worker.pool,
            slots=worker.slots,
            host=worker.host,
            version=worker.version,
            draining=worker.draining,
            sandbox=worker.sandbox,
        )
    )
    return WorkerKnown(worker_id=name)


async def register(services: Services, caller: Caller, *, body: Presence) -> WorkerKnown:
    """A worker begins."""
    return await _beat(services, caller, body)


async def heartbeat(services: Services, caller: Caller, *, body: Presence) -> WorkerKnown:
    """A worker is still there."""
    return await _beat(services, caller, body)


async def deregister(services: Services, caller: Caller, *, body: Farewell) -> WorkerGone:
    """A worker ends; what it was given and has not reported on goes to others at once."""
    name = caller.principal.worker_name(body.worker_id)
    given_back = await take_over(services.orchestrator, services.store, name)
    return WorkerGone(was_known=await services.store.leave(name), given_back=given_back)


async def pools(services: Services, caller: Caller) -> PoolList:
    """Every pool with its workers and the work that waits for it."""
    since = services.clock.now() - LIVE_SECONDS
    found = await services.store.runtimes(kind="worker", since=since)
    sizes = await services.store.queue_sizes()
    names = sorted({row.pool for row in found} | sizes.keys())
    return PoolList(
        pools=[
            Pool(
                pool=name,
                workers=[about(row) for row in found if row.pool == name],
                slots=sum(row.slots for row in found if row.pool == name),
                waiting=sizes.get(name, (0, 0))[0],
                leased=sizes.get(name, (0, 0))[1],
            )
            for name in names
        ]
    )


REGISTER = Route(
    "worker.register",
    "POST",
    "/api/worker/pool/register",
    right="work",
    body=Presence,
    answer=WorkerKnown,
    handler=register,
)
HEARTBEAT = Route(
    "worker.heartbeat",
    "POST",
    "/api/worker/pool/heartbeat",
    right="work",
    body=Presence,
    answer=WorkerKnown,
    handler=heartbeat,
)
DEREGISTER = Route(
    "worker.deregister",
    "POST",
    "/api/worker/pool/deregister",
    right="work",
    body=Farewell,
    answer=WorkerGone,
    handler=deregister,
)
POOLS = Route(
    "worker.pools", "GET", "/api/worker/pools", right="read", answer=PoolList, handler=pools
)
ROUTES = (REGISTER, HEARTBEAT, DEREGISTER, POOLS)
