"""/api/commands: how workers get work, keep it, and say what became of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.params import Parameter

from noetl.api.describing import described
from noetl.api.errors import ErrorAnswer, problem_of
from noetl.api.rights import Principal
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.api.waiting import seconds, while_wanted
from noetl.control.kinds import lease_of_kinds
from noetl.control.lending import require_child
from noetl.errors import BadRequest, LeaseLost
from noetl.model.commands import Answer, Lease, Orders, Report
from noetl.model.ids import CommandId, command_of
from noetl.store.base import Holder

SLOTS_MAX = 1000
REPORT_MAX = 64 * 1024 * 1024
Want = Annotated[int, Parameter(ge=0, le=SLOTS_MAX)]
Asked = Request[Any, Any, Any]
read_report = msgspec.json.Decoder(Report).decode
read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants work, and how much."""

    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    pool: str = "default"
    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)] = 1
    wait: float = 0.0
    kinds: list[str] | None = None
    """Tool kinds that it runs; without them, all."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Leases of a worker: their tokens."""

    leases: Annotated[list[str], msgspec.Meta(max_length=SLOTS_MAX * 10)]


def written(lease: Lease) -> msgspec.Raw:
    """A command with its lease beside its other fields, without decoding anything."""
    until = datetime.fromtimestamp(lease.expires_at, UTC)
    terms = msgspec.json.encode({"token": lease.token, "expires_at": until})
    command = msgspec.json.encode(lease.command)
    return msgspec.Raw(b'{"lease":' + terms + b"," + command[1:])


@route("POST", "/api/commands/lease", right="work", direct=True)
async def lease(services: Services, request: Asked, data: Wish) -> dict[str, Any]:
    """Commands for this worker: what is open now, or what comes within `wait` seconds."""
    request.user.require_pool(data.pool)
    worker_id = request.user.worker_name(data.worker_id)
    if services.draining.is_set():
        return {"commands": []}
    wish: dict[str, Any] = {"pool": data.pool, "want": data.slots, "wait": seconds(data.wait)}
    finish = None
    if data.kinds is None:
        work = services.orchestrator.lease(worker_id, **wish)
        # What is being given to it just now would lie idle until its lease lapses.
        finish = partial(services.orchestrator.dispatch.send_away, worker_id)
    else:
        parts = services.orchestrator, services.store, services.clock
        work = lease_of_kinds(*parts, worker_id, data.kinds, **wish)
    found = await while_wanted(services, request, work, finish=finish) or []
    services.leases.remember(found, worker_id)
    return {"commands": [written(one) for one in found]}


@route("POST", "/api/commands/renew", right="work", direct=True)
async def renew(services: Services, request: Asked, data: Holding) -> dict[str, list[CommandId]]:
    """Keep these leases; which still hold, and which are lost."""
    tokens = {command_of(token): token for token in data.leases}
    own = await services.leases.own(request.user, tokens)
    shown = {command_id: tokens[command_id] for command_id in own}
    lost = await services.orchestrator.renew(shown) if shown else set()
    held = own.keys() - lost
    await _remember(services, {command_id: own[command_id] for command_id in held})
    return {"held": sorted(held), "lost": sorted(tokens.keys() - held)}


async def _remember(services: Services, held: dict[CommandId, Holder]) -> None:
    """Others handed these out, or we did before a restart: we, too, tell when they are over."""
    known = services.orchestrator.dispatch.held
    for command_id in held.keys() - known.keys():
        state = await services.orchestrator.state(held[command_id].execution_id)
        if command_id in state.holders:
            known[command_id] = held[command_id]


@route(
    "POST",
    "/api/commands/report",
    right="work",
    direct=True,
    raw=True,
    request_max_body_size=REPORT_MAX,
    operation_class=described(Report, several=True),
)
async def report(
    services: Services, request: Asked, want: Want = 0, pool: str = "default"
) -> dict[str, Any]:
    """What happened under a lease. The answer brings the next commands, if some are wanted.

    The body is a report of this version's workers; other programs send events. Of a list, each is
    judged by itself: `answers` has for each of them what it would have been answered alone.
    """
    body = await request.body()
    wanted = 0 if services.draining.is_set() else want
    if wanted:
        request.user.require_pool(pool)

    async def taken(one: bytes | msgspec.Raw) -> dict[str, Any]:
        try:
            said = read_report(one)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"this is no report: {error}.") from None
        return _answered(await take_report(services, request.user, said, want=wanted, pool=pool))

    async def answered(one: msgspec.Raw) -> dict[str, Any] | ErrorAnswer:
        try:
            return await taken(one)
        except Exception as error:  # noqa: BLE001  the others' reports are not to suffer
            return problem_of(error, str(request.scope.get("request_id", "")))[1]

    if body[:1] != b"[":
        return await taken(body)
    reports = _reports_in(body)
    if len(reports) == 1:
        return {"answers": [await answered(reports[0])]}
    return {"answers": await asyncio.gather(*map(answered, reports))}


def _reports_in(body: bytes) -> list[msgspec.Raw]:
    try:
        found = read_list(body)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"this is no list of reports: {error}.") from None
    if len(found) > SLOTS_MAX:
        raise BadRequest(f"these are {len(found)} reports; up to {SLOTS_MAX} are read at once.")
    return found


async def take_report(
    services: Services, who: Principal, said: Report, *, want: int = 0, pool: str = "default"
) -> Answer:
    """What somebody says about a command; raises LeaseLost, and has that recorded, if it was not
    given to them or is somebody else's by now."""
    worker_id = await services.leases.holder(who, said)
    try:
        if worker_id is None:
            name = who.worker_name(said.worker)
            await services.orchestrator.refuse(msgspec.structs.replace(said, worker=name))
        for suspension in said.suspensions:
            if suspension.child is not None:
                parts = services.orchestrator, suspension.child.path, said.execution_id
                await require_child(*parts)
        known = msgspec.structs.replace(said, worker=worker_id)
        answer = await services.control.report(known, want=want, pool=pool)
    except LeaseLost:
        services.metrics.reports_refused.inc()
        raise
    services.metrics.reports_taken.inc()
    services.leases.remember(answer.leases, worker_id)
    return answer


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
    """Commands of this worker that should stop (`commands`), and those under which it should begin
    nothing more (`paused`), as soon as there are any."""
    if not worker_id:
        raise BadRequest("`worker_id` says whose commands.")
    look = services.control.orders_within(request.user.worker_name(worker_id), wait=seconds(wait))
    found = await while_wanted(services, request, look) or Orders()
    return {"commands": sorted(found.stop), "paused": sorted(found.pause)}


routes = [lease, renew, report, cancelled]
