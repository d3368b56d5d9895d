"""/api/commands: how workers get work, keep it, and say what became of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.params import Parameter

from noetl.errors import BadRequest, LeaseLost
from noetl.model.commands import Answer, Lease, Report
from noetl.model.ids import CommandId
from noetl.server.routing import route
from noetl.server.services import Services
from noetl.server.waiting import seconds, while_wanted

SLOTS_MAX = 1000
REPORT_MAX = 64 * 1024 * 1024
Want = Annotated[int, Parameter(ge=0, le=SLOTS_MAX)]
Asked = Request[Any, Any, Any]
read_report = msgspec.json.Decoder(Report).decode


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants work, and how much."""

    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    pool: str = "default"
    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)] = 1
    wait: float = 0.0
    kinds: list[str] | None = None
    """Accepted for later; every worker runs every kind."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Leases of a worker: the token of each command."""

    leases: dict[CommandId, str]


def written(lease: Lease) -> msgspec.Raw:
    """A command with its lease beside its other fields, without decoding anything."""
    terms = msgspec.json.encode({"token": lease.token, "expires_at": lease.expires_at})
    command = msgspec.json.encode(lease.command)
    return msgspec.Raw(b'{"lease":' + terms + b"," + command[1:])


@route("POST", "/api/commands/lease", right="work")
async def lease(services: Services, request: Asked, data: Wish) -> dict[str, Any]:
    """Commands for this worker: what is open now, or what comes within `wait` seconds."""
    worker_id = request.user.worker_name(data.worker_id)
    if services.draining.is_set():
        return {"commands": []}
    work = services.orchestrator.lease(
        worker_id, pool=data.pool, want=data.slots, wait=seconds(data.wait)
    )
    found = await while_wanted(services, request, work) or []
    services.leases.remember(found, worker_id)
    return {"commands": [written(one) for one in found]}


@route("POST", "/api/commands/renew", right="work")
async def renew(services: Services, request: Asked, data: Holding) -> dict[str, list[CommandId]]:
    """Keep these leases; which still hold, and which are lost."""
    own = await services.leases.own(request.user, data.leases)
    lost = await services.orchestrator.renew(own) if own else set()
    held = own.keys() - lost
    return {"held": sorted(held), "lost": sorted(data.leases.keys() - held)}


@route("POST", "/api/commands/report", right="work", request_max_body_size=REPORT_MAX)
async def report(
    services: Services, request: Asked, want: Want = 0, pool: str = "default"
) -> dict[str, Any]:
    """What happened under a lease. The answer brings the next commands, if some are wanted.

    The body is a report of this version's workers; other programs send events.
    """
    try:
        data = read_report(await request.body())
    except msgspec.MsgspecError as error:
        raise BadRequest(f"this is no report: {error}.") from None
    worker_id = await services.leases.require_report(request.user, data)
    wanted = 0 if services.draining.is_set() else want
    try:
        known = msgspec.structs.replace(data, worker=worker_id)
        answer = await services.control.report(known, want=wanted, pool=pool)
    except LeaseLost:
        services.metrics.reports.labels("refused").inc()
        raise
    services.metrics.reports.labels("taken").inc()
    services.leases.remember(answer.leases, worker_id)
    return _answered(answer)


def _answered(answer: Answer) -> dict[str, Any]:
    return {
        "accepted": answer.accepted,
        "cancelled": answer.cancelled,
        "commands": [written(one) for one in answer.leases],
    }


@route("GET", "/api/commands/cancelled", right="work")
async def cancelled(
    services: Services, request: Asked, worker_id: str, wait: float = 0.0
) -> dict[str, list[CommandId]]:
    """Commands of this worker that should stop, as soon as there are any."""
    if not worker_id:
        raise BadRequest("`worker_id` says whose commands.")
    look = services.control.stopped(request.user.worker_name(worker_id), wait=seconds(wait))
    found = await while_wanted(services, request, look) or set()
    return {"commands": sorted(found)}


routes = [lease, renew, report, cancelled]
