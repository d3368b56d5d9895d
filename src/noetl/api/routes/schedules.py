"""/api/schedules: when playbooks start, and the outcome of each time."""

from __future__ import annotations

import re
from datetime import UTC
from typing import Annotated

import msgspec

from noetl.api.route import Caller, Query, Route, Services
from noetl.api.routes.executions import key_of
from noetl.api.routes.trigger_documents import Documents, NamedDocument
from noetl.control import documents
from noetl.control.schedules import ScheduleState, local
from noetl.control.zones import zone_of
from noetl.errors import BadRequest
from noetl.model.duration import timestamp
from noetl.model.trigger_answers import (
    Backfilled,
    ScheduleDocument,
    ScheduleItem,
    ScheduleList,
    ScheduleStarted,
    ScheduleTime,
)
from noetl.model.triggers import Schedule

Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class WhichTimes(Query, frozen=True, kw_only=True):
    """How many times to return."""

    next: Count = 5
    times: Count = 20
    before: str | None = None
    """Only times before this moment (RFC 3339)."""


class Backfill(NamedDocument, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """A range of times (RFC 3339; without an offset, local to the schedule's zone)."""

    first: str
    last: str
    dry_run: bool = False
    """Start nothing; return what would be started."""


async def show(
    services: Services, caller: Caller, *, path: str, query: WhichTimes
) -> ScheduleDocument:
    """A schedule with its next times, and the outcome of the last ones."""
    before = float("inf") if query.before is None else _moment(query.before, "before", "UTC")
    schedule, state = await services.schedules.find(path)
    zone = zone_of(schedule.timezone)
    coming = services.schedules.upcoming(schedule, state, query.next)
    done = []
    if query.times:
        done = await services.store.triggers.times(path, before=before, limit=query.times)
    [item] = await _with_last(services, [await _item(services, schedule, state)])
    return documents.of(
        ScheduleDocument,
        item,
        schedule,
        next_times=[local(time, zone) for time in coming] if zone is not None else [],
        times=[documents.of(ScheduleTime, one) for one in done],
    )


async def run(services: Services, caller: Caller, *, body: NamedDocument) -> ScheduleStarted:
    """Start an execution now, regardless of times, overlap and pause. An `Idempotency-Key` that was
    used before returns the execution it started.
    """
    execution_id, is_known = await services.schedules.start_now(body.path, key=key_of(caller))
    if not is_known:
        act, path = "schedule.run", body.path
        await services.access.note(caller.actor, act, path, execution_id=execution_id)
    return ScheduleStarted(execution_id=execution_id, path=body.path)


async def backfill(services: Services, caller: Caller, *, body: Backfill) -> Backfilled:
    """Start the times of a past range, one after the other. No time is started twice."""
    schedule, _ = await services.schedules.find(body.path)
    first = _moment(body.first, "from", schedule.timezone)
    last = _moment(_whole_day(body.last), "to", schedule.timezone)
    if last < first:
        raise BadRequest("`to` is before `from`.")
    new, known = await services.schedules.backfill(body.path, first, last, dry_run=body.dry_run)
    if new and not body.dry_run:
        details = f"{len(new)} times from {body.first} to {body.last}"
        await services.access.note(caller.actor, "schedule.backfill", body.path, details=details)
    zone = zone_of(schedule.timezone)
    return Backfilled(
        times=[local(time, zone) for time in new] if zone is not None else [],
        known=[documents.of(ScheduleTime, one) for one in known],
        dry_run=body.dry_run,
    )


async def _item(services: Services, schedule: Schedule, state: ScheduleState) -> ScheduleItem:
    is_active = state.status == "active"
    coming = services.schedules.upcoming(schedule, state, 1) if is_active else []
    return documents.of(
        ScheduleItem,
        schedule,
        state,
        playbook=schedule.playbook.path,
        playbook_version=schedule.playbook.version,
        next_time=coming[0] if coming else None,
        last=None,
    )


async def _with_last(services: Services, items: list[ScheduleItem]) -> list[ScheduleItem]:
    """The schedules, each with the outcome of its newest time."""
    found = await services.store.triggers.last_times([one.path for one in items])
    last = {one.path: documents.of(ScheduleTime, one) for one in found}
    return [msgspec.structs.replace(one, last=last.get(one.path)) for one in items]


def _whole_day(written: str) -> str:
    """A range that ends with a day without a time includes that day."""
    is_day = re.fullmatch(r"\d{4}-\d{2}-\d{2}", written) is not None
    return f"{written}T23:59:59.999999" if is_day else written


def _moment(written: str, key: str, timezone: str) -> float:
    """The time of a moment as written; without an offset it is local time of the zone."""
    found = timestamp(written, zone_of(timezone) or UTC)
    if found is None:
        raise BadRequest(f"`{key}` is a moment like 2026-01-31T12:00:00Z or a day like 2026-01-31.")
    return found


DOCUMENTS = Documents("schedules", item=_item, show=show, query=WhichTimes, completed=_with_last)
LIST = DOCUMENTS.listing(ScheduleList)
GET = DOCUMENTS.get()
PAUSE = DOCUMENTS.pause()
RESUME = DOCUMENTS.resume()
RUN = Route(
    "schedules.run", "POST", "/api/schedules/run", "operate", run, body=NamedDocument, keyed=True
)
BACKFILL = Route(
    "schedules.backfill", "POST", "/api/schedules/backfill", "operate", backfill, body=Backfill
)
DELETE = DOCUMENTS.delete()
