"""Events from outside: answers, messages, approvals, and whatever else an execution waits for."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request

from noetl.api.describing import described
from noetl.api.manners import Body, unknown_field
from noetl.api.rights import Principal
from noetl.api.routes.commands import take_report
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.errors import BadRequest
from noetl.model.commands import Report

EVENTS_MAX = 1000
Asked = Request[Any, Any, Any]


class External(Body, frozen=True, kw_only=True):
    """Something the world says to an execution."""

    name: str
    data: Any = None
    step: str | None = None
    event_id: str | None = None
    """The sender's own name for it: the same again changes nothing."""


class Addressed(External, frozen=True, kw_only=True):
    execution_id: str


@route("POST", "/api/executions/{execution_id:str}/events", right="operate")
async def send_event(
    services: Services, request: Asked, execution_id: str, data: External
) -> dict[str, Any]:
    """Send an event to one execution."""
    return _taken([await _signal(services, request.user, execution_id, data)])


@route(
    "POST",
    ["/api/events", "/v1/events"],
    right="events.send",
    raw=True,
    operation_class=described(Addressed, Report, several=True),
)
async def send(services: Services, request: Asked) -> dict[str, Any]:
    """One event or a list: from outside by name, or reports of a worker under its leases."""
    body = await request.body()
    try:
        several = msgspec.json.decode(body, type=dict[str, Any] | list[dict[str, Any]])
        sent = several if isinstance(several, list) else [several]
        found = [_read(one) for one in sent]
    except msgspec.MsgspecError as error:
        strange = unknown_field(str(error), Addressed)
        raise strange or BadRequest(f"this is no event: {error}.") from None
    if len(found) > EVENTS_MAX:
        raise BadRequest(f"at most {EVENTS_MAX} events at once.")
    outcomes = []
    for one in found:
        if isinstance(one, Report):
            await take_report(services, request.user, one)
            outcomes.append((one.command_id, False))
        else:
            request.user.require("operate")
            outcomes.append(await _signal(services, request.user, one.execution_id, one))
    return _taken(outcomes)


def _read(sent: dict[str, Any]) -> Report | Addressed:
    if "token" in sent:
        return msgspec.convert(sent, Report)
    return msgspec.convert(sent, Addressed)


async def _signal(
    services: Services, who: Principal, execution_id: str, event: External
) -> tuple[str, bool]:
    """Its id, and whether it was known already."""
    return await services.executions.signal(
        execution_id,
        event.name,
        event.data,
        step=event.step,
        signal_id=event.event_id,
        actor=who.actor,
    )


def _taken(outcomes: list[tuple[str, bool]]) -> dict[str, Any]:
    return {
        "status": "ok",
        "event_ids": [event_id for event_id, _ in outcomes],
        "duplicates": sum(known for _, known in outcomes),
    }


routes = [send_event, send]
