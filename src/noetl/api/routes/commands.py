"""/api/commands: how workers lease commands, renew the leases, and report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, cast

import msgspec

from noetl.api.errors import problem_of
from noetl.api.long_polls import seconds, while_wanted
from noetl.api.rights import Principal
from noetl.api.route import Caller, Query, Route, Services
from noetl.control.grants import require_child
from noetl.control.kinds import lease_of_kinds
from noetl.errors import BadRequest, LeaseLost
from noetl.model.answers import (
    ErrorAnswer,
    LeasedCommand,
    LeasedCommands,
    LeasesRenewed,
    ReportsTaken,
    ReportTaken,
    WorkerOrders,
)
from noetl.model.commands import Answer, Lease, Orders, Report
from noetl.model.ids import CommandId, command_of
from noetl.store.queue import Holder

SLOTS_MAX = 1000
REPORT_MAX = 64 * 1024 * 1024
read_report = msgspec.json.Decoder(Report).decode
read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker asks for commands, and for how many."""

    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    pool: str = "default"
    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)] = 1
    wait: float = 0.0
    kinds: list[str] | None = None
    """The tool kinds that it runs; by default all."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The leases of a worker, by their tokens."""

    leases: Annotated[list[str], msgspec.Meta(max_length=SLOTS_MAX * 10)]


class Next(Query, frozen=True, kw_only=True):
    """How many commands to return with the answer to a report, and of which pool."""

    want: Annotated[int, msgspec.Meta(ge=0, le=SLOTS_MAX)] = 0
    pool: str = "default"


class OfWorker(Query, frozen=True, kw_only=True):
    """The worker, and how long to wait for a change."""

    worker_id: str
    wait: float = 0.0


def written(lease: Lease) -> LeasedCommand:
    """A command as JSON, with its lease beside its other fields.

    Encoding it directly is faster than copying it into a `LeasedCommand` field by field.
    """
    until = datetime.fromtimestamp(lease.expires_at, UTC)
    terms = msgspec.json.encode({"token": lease.token, "expires_at": until})
    command = msgspec.json.encode(lease.command)
    return cast(LeasedCommand, msgspec.Raw(b'{"lease":' + terms + b"," + command[1:]))


async def lease(services: Services, caller: Caller, *, body: Wish) -> LeasedCommands:
    """Lease commands: those that are open now, or the first to open within `wait` seconds."""
    caller.principal.require_pool(body.pool)
    worker_id = caller.principal.worker_name(body.worker_id)
    if services.draining.is_set():
        return LeasedCommands(commands=[])
    wish: dict[str, Any] = {"pool": body.pool, "want": body.slots, "wait": seconds(body.wait)}
    finish = None
    if body.kinds is None:
        work = services.orchestrator.leases.lease(worker_id, **wish)
        # Commands leased to it in this moment would lie idle until their leases lapse.
        finish = partial(services.orchestrator.dispatch.send_away, worker_id)
    else:
        parts = services.orchestrator, services.store.queue, services.clock
        work = lease_of_kinds(*parts, worker_id, body.kinds, **wish)
    found = await while_wanted(services, caller, work, finish=finish) or []
    services.holders.remember(found, worker_id)
    return LeasedCommands(commands=[written(one) for one in found])


async def renew(services: Services, caller: Caller, *, body: Holding) -> LeasesRenewed:
    """Renew leases. The answer says which still hold, and which are lost."""
    tokens = {command_of(token): token for token in body.leases}
    own = await services.holders.own(caller.principal, tokens)
    shown = {command_id: tokens[command_id] for command_id in own}
    lost = await services.orchestrator.leases.renew(shown) if shown else set()
    held = own.keys() - lost
    await _remember(services, {command_id: own[command_id] for command_id in held})
    return LeasesRenewed(held=sorted(held), lost=sorted(tokens.keys() - held))


async def _remember(services: Services, held: dict[CommandId, Holder]) -> None:
    """Another server leased these, or this one before a restart: watch their expiry here, too."""
    known = services.orchestrator.dispatch.held
    for command_id in held.keys() - known.keys():
        state = await services.orchestrator.state(held[command_id].execution_id)
        if command_id in state.holders:
            known[command_id] = held[command_id]


async def report(
    services: Services, caller: Caller, *, query: Next, body: bytes
) -> ReportTaken | ReportsTaken:
    """Report on a leased command. The answer brings the next commands, if some are wanted.

    The body is a report of a worker of this version; other programs send events. The reports of a
    list are independent: `answers` holds for each the answer it would have got alone.
    """
    wanted = 0 if services.draining.is_set() else query.want
    if wanted:
        caller.principal.require_pool(query.pool)
    if body[:1] != b"[":
        return await _taken(services, caller, body, wanted, query.pool)
    try:
        reports = read_list(body)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"this is not a list of reports: {error}.") from None
    if len(reports) > SLOTS_MAX:
        raise BadRequest(f"these are {len(reports)} reports; up to {SLOTS_MAX} are read at once.")
    judged = [_judged(services, caller, one, wanted, query.pool) for one in reports]
    return ReportsTaken(answers=await asyncio.gather(*judged))


async def _judged(
    services: Services, caller: Caller, one: msgspec.Raw, wanted: int, pool: str
) -> ReportTaken | ErrorAnswer:
    try:
        return await _taken(services, caller, one, wanted, pool)
    except Exception as error:  # noqa: BLE001  the others' reports are not to suffer
        return problem_of(error, caller.request_id)[1]


async def _taken(
    services: Services, caller: Caller, one: bytes | msgspec.Raw, wanted: int, pool: str
) -> ReportTaken:
    try:
        said = read_report(one)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"this is not a report: {error}.") from None
    answer = await take_report(services, caller.principal, said, want=wanted, pool=pool)
    return report_taken(answer.leases, cancelled=answer.cancelled)


def report_taken(leases: Iterable[Lease], *, cancelled: bool) -> ReportTaken:
    """The answer to an accepted report."""
    commands = [written(lease) for lease in leases]
    return ReportTaken(accepted=True, cancelled=cancelled, commands=commands)


async def take_report(
    services: Services, who: Principal, said: Report, *, want: int = 0, pool: str = "default"
) -> Answer:
    """Take a report on a command. Raises LeaseLost, and records that, if the command was not leased
    to this caller or belongs to another worker by now.
    """
    worker_id = await services.holders.holder(who, said)
    try:
        if worker_id is None:
            name = who.worker_name(said.worker)
            await services.orchestrator.leases.refuse(msgspec.structs.replace(said, worker=name))
        for suspension in said.suspensions:
            if suspension.child is not None:
                parts = services.orchestrator, suspension.child.path, said.execution_id
                await require_child(*parts)
        if said.worker != worker_id:
            said = msgspec.structs.replace(said, worker=worker_id)
        answer = await services.orchestrator.report(said, want=want, pool=pool)
    except LeaseLost:
        services.metrics.reports.inc("refused")
        raise
    services.metrics.reports.inc("taken")
    services.holders.remember(answer.leases, worker_id)
    return answer


async def cancelled(services: Services, caller: Caller, *, query: OfWorker) -> WorkerOrders:
    """Commands that this worker should stop (`commands`), and those under which it should begin
    nothing new (`paused`), as soon as there are any.
    """
    if not query.worker_id:
        raise BadRequest("`worker_id` is missing: it names the worker whose commands to return.")
    worker_id = caller.principal.worker_name(query.worker_id)
    look = services.control.orders_within(worker_id, wait=seconds(query.wait))
    found = await while_wanted(services, caller, look) or Orders()
    return WorkerOrders(commands=sorted(found.stop), paused=sorted(found.pause))


LEASE = Route(
    "commands.lease", "POST", "/api/commands/lease", "work", lease, body=Wish, patient=True
)
RENEW = Route("commands.renew", "POST", "/api/commands/renew", "work", renew, body=Holding)
REPORT = Route(
    "commands.report",
    "POST",
    "/api/commands/report",
    "work",
    report,
    query=Next,
    body=bytes,
    holds=Report | list[Report],
    body_max=REPORT_MAX,
)
CANCELLED = Route(
    "commands.cancelled",
    "GET",
    "/api/commands/cancelled",
    "work",
    cancelled,
    query=OfWorker,
    patient=True,
)
