"""/api/worker: the workers, by pool."""

from __future__ import annotations

import msgspec

from noetl.api.route import Caller, Route, Services
from noetl.control.documents import runtime as about
from noetl.control.waits import LIVE_SECONDS
from noetl.errors import Conflict, NotFound
from noetl.model.answers import Pool, PoolList, WorkerDrained, WorkerGone, WorkerKnown
from noetl.model.commands import EMBEDDED, Presence, apart, is_apart, missing_labels, pool_of
from noetl.store.base import Runtime


class Farewell(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that ends."""

    worker_id: str


async def _beat(services: Services, caller: Caller, worker: Presence) -> WorkerKnown:
    caller.principal.require_pool(worker.pool)
    name = caller.principal.worker_name(worker.worker_id)
    await services.store.runtimes.beat(Runtime.of(worker, name, services.clock.now()))
    return WorkerKnown(worker_id=name)


async def _seen(services: Services, name: str) -> Runtime | None:
    """The worker of that name, if it sent a heartbeat recently."""
    since = services.clock.now() - LIVE_SECONDS
    found = await services.store.runtimes.all(kind="worker", since=since)
    return next((row for row in found if row.name == name), None)


async def register(services: Services, caller: Caller, *, body: Presence) -> WorkerKnown:
    """A worker begins."""
    return await _beat(services, caller, body)


async def heartbeat(services: Services, caller: Caller, *, body: Presence) -> WorkerKnown:
    """A heartbeat of a worker. The answer says whether the worker was asked to end."""
    before = await _seen(services, caller.principal.worker_name(body.worker_id))
    drain = before is not None and before.draining
    known = await _beat(
        services, caller, msgspec.structs.replace(body, draining=body.draining or drain)
    )
    return msgspec.structs.replace(known, drain=drain)


async def drain(services: Services, caller: Caller, *, body: Farewell) -> WorkerDrained:
    """Ask a worker to take no new commands, finish those it has, and end. It learns of this within
    seconds.
    """
    row = await _seen(services, body.worker_id)
    if row is None:
        raise NotFound(f'there is no worker "{body.worker_id}".')
    if row.host and row.name.startswith(EMBEDDED):
        raise Conflict("this worker is part of a server, and ends with it.")
    await services.store.runtimes.beat(msgspec.structs.replace(row, draining=True))
    await services.access.note(caller.actor, "worker.drain", row.name)
    return WorkerDrained(worker_id=row.name)


async def deregister(services: Services, caller: Caller, *, body: Farewell) -> WorkerGone:
    """A worker ends; commands that it leased and has not reported on go to others at once."""
    name = caller.principal.worker_name(body.worker_id)
    given_back = await services.orchestrator.leases.take_over(lambda worker: worker == name)
    return WorkerGone(was_known=await services.store.runtimes.leave(name), given_back=given_back)


def _listed(queue: str) -> str:
    """The name under which a queue is shown; the requirements of its commands are shown beside
    it.
    """
    return apart(pool_of(queue)) if is_apart(queue) else pool_of(queue)


async def pools(services: Services, caller: Caller) -> PoolList:
    """Every pool with its workers and its queue."""
    since = services.clock.now() - LIVE_SECONDS
    found = await services.store.runtimes.all(kind="worker", since=since)
    sizes = await services.store.queue.sizes()
    names = sorted({pool_of(row.pool) for row in found} | {_listed(queue) for queue in sizes})
    pools = []
    for name in names:
        here = [row for row in found if pool_of(row.pool) == name]
        queues = {queue: size for queue, size in sizes.items() if _listed(queue) == name}
        pools.append(
            Pool(
                pool=name,
                workers=[about(row) for row in here],
                slots=sum(row.slots for row in here),
                waiting=sum(waiting for waiting, _ in queues.values()),
                leased=sum(leased for _, leased in queues.values()),
                missing=missing_labels(queues, [row.pool for row in found]),
            )
        )
    return PoolList(pools=pools)


REGISTER = Route(
    "worker.register", "POST", "/api/worker/pool/register", "work", register, body=Presence
)
HEARTBEAT = Route(
    "worker.heartbeat", "POST", "/api/worker/pool/heartbeat", "work", heartbeat, body=Presence
)
DEREGISTER = Route(
    "worker.deregister", "POST", "/api/worker/pool/deregister", "work", deregister, body=Farewell
)
DRAIN = Route("worker.drain", "POST", "/api/worker/drain", "operate", drain, body=Farewell)
POOLS = Route("worker.pools", "GET", "/api/worker/pools", "read", pools)
