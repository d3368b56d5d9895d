"""External events: answers, messages, approvals, and everything else that an execution waits
for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.api.route import Body, Caller, Route, Services, refuse_nul, unknown_field
from noetl.api.routes.commands import take_report
from noetl.errors import BadRequest, NoetlError
from noetl.model.answers import EventsTaken, SignalMatched
from noetl.model.commands import Report

EVENTS_MAX = 1000


class External(Body, frozen=True, kw_only=True):
    """An external event."""

    name: str
    data: Any = None
    step: str | None = None
    event_id: str | None = None
    """The sender's id of the event: sending the same id again changes nothing."""


class Addressed(External, frozen=True, kw_only=True):
    """An external event for one execution."""

    execution_id: str


async def send_event(
    services: Services, caller: Caller, *, execution_id: str, body: External
) -> EventsTaken:
    """Send an event to one execution."""
    return _taken([await _signal(services, caller, execution_id, body)])


class WhomToSignal(Body, frozen=True, kw_only=True):
    """An external event for all executions that wait for it and match."""

    name: str
    data: Any = None
    match: str = ""
    """A condition on `workload`, `ctx`, `labels`, `execution_id` and `path` of each execution."""
    labels: dict[str, str] | None = None
    """Only executions with these labels."""
    path: str | None = None
    """Only executions of this playbook."""
    event_id: str | None = None
    """The sender's id of the event: sending the same id again changes nothing."""


async def send_matching(services: Services, caller: Caller, *, body: WhomToSignal) -> SignalMatched:
    """Send an event to every execution that waits for it and matches. One of `match`, `labels` and
    `path` is required.
    """
    if not (body.match or body.labels or body.path):
        raise BadRequest("name the executions: by `match`, `labels` or `path`.")
    found = await services.executions.signal_matching(
        body.name,
        body.data,
        match=body.match,
        labels=body.labels,
        path=body.path,
        signal_id=body.event_id,
        actor=caller.actor,
        roles=caller.principal.answers_as,
    )
    return SignalMatched(
        execution_ids=[execution_id for execution_id, _ in found],
        duplicates=sum(known for _, known in found),
    )


async def send(services: Services, caller: Caller, *, body: bytes) -> EventsTaken:
    """One event or a list: external events by name, or reports of a worker under its leases."""
    try:
        several = msgspec.json.decode(body, type=dict[str, Any] | list[dict[str, Any]])
        sent = several if isinstance(several, list) else [several]
        found = [_read(one) for one in sent]
    except msgspec.MsgspecError as error:
        strange = unknown_field(str(error), Addressed)
        raise strange or BadRequest(f"this is not an event: {error}.") from None
    if len(found) > EVENTS_MAX:
        raise BadRequest(f"at most {EVENTS_MAX} events at once.")
    if any(isinstance(one, Addressed) for one in found):
        caller.principal.require("operate")
        refuse_nul(body)
    outcomes: list[tuple[str, bool]] = []
    for one in found:
        try:
            outcomes.append(await _send_one(services, caller, one))
        except NoetlError as error:
            if outcomes:
                count = len(outcomes)
                error.args = (f"event [{count}] of the list: {error} Those before it were taken.",)
            raise
    return _taken(outcomes)


async def _send_one(
    services: Services, caller: Caller, one: Report | Addressed
) -> tuple[str, bool]:
    if isinstance(one, Addressed):
        return await _signal(services, caller, one.execution_id, one)
    await take_report(services, caller.principal, one)
    return one.command_id, False


def _read(sent: dict[str, Any]) -> Report | Addressed:
    if "token" in sent:
        return msgspec.convert(sent, Report)
    return msgspec.convert(sent, Addressed)


async def _signal(
    services: Services, caller: Caller, execution_id: str, event: External
) -> tuple[str, bool]:
    """Its id, and whether it was already known."""
    return await services.executions.signal(
        execution_id,
        event.name,
        event.data,
        step=event.step,
        signal_id=event.event_id,
        actor=caller.actor,
        roles=caller.principal.answers_as,
    )


def _taken(outcomes: list[tuple[str, bool]]) -> EventsTaken:
    return EventsTaken(
        status="ok",
        event_ids=[event_id for event_id, _ in outcomes],
        duplicates=sum(known for _, known in outcomes),
    )


SEND_EVENT = Route(
    "executions.send_event",
    "POST",
    "/api/executions/{execution_id}/events",
    "operate",
    send_event,
    body=External,
)
SEND = Route(
    "events.send",
    "POST",
    "/api/events",
    "events.send",
    send,
    body=bytes,
    aliases=("/v1/events",),
    holds=Addressed | Report | list[Addressed | Report],
)
SEND_MATCHING = Route(
    "events.send_matching", "POST", "/api/signals", "operate", send_matching, body=WhomToSignal
)
