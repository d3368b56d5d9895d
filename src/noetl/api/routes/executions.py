"""/api/executions: start, look at and act on executions."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import msgspec
from litestar import Request, Response
from litestar.params import HeaderParameter, Parameter, QueryParameter

from noetl.api.manners import Body
from noetl.api.routes.catalog import Version, number_of
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.api.waiting import seconds, while_wanted
from noetl.control import documents, task_logs
from noetl.control.task_logs import Logs
from noetl.errors import BadRequest, NotFound
from noetl.model.duration import seconds as duration
from noetl.model.state import TERMINAL

LIMIT_MAX = 1000
Asked = Request[Any, Any, Any]
Limit = Annotated[int, Parameter(ge=1, le=LIMIT_MAX)]
Seq = Annotated[int, Parameter(ge=0, le=2**62)]
Key = Annotated[str | None, HeaderParameter(name="Idempotency-Key")]
STATUSES = ("PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED")


class Start(Body, frozen=True, kw_only=True):
    """Which playbook, and with what."""

    path: str | None = None
    catalog_id: str | None = None
    version: Version = None
    workload: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    """Another name for workload."""
    parent_execution_id: str | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True):
    execution_id: str
    status: str
    path: str
    version: int | None


class Paused(Started, frozen=True, kw_only=True):
    unconfirmed: list[str]
    """Workers that have not confirmed the pause."""


class Cancelled(Started, frozen=True, kw_only=True):
    cancelled: int
    """How many executions were: this one, and those below it that were not over."""


class Reason(Body, frozen=True, kw_only=True):
    reason: str = ""


class Cancel(Reason, frozen=True, kw_only=True):
    cascade: bool = True
    """Executions that its steps called end with it; else they go on, and nobody waits for them."""


class Rerun(Body, frozen=True, kw_only=True, rename={"step": "from"}):
    step: str | None = None
    workload: dict[str, Any] | None = None


# --- Starting ----------------------------------------------------------------------------------


@route("POST", ["/api/execute", "/api/executions"], right="operate", direct=True)
async def start(services: Services, request: Asked, data: Start, key: Key = None) -> Started:
    """Start an execution; under a key that was used before, it is that execution."""
    if data.workload is not None and data.payload is not None:
        raise BadRequest("`payload` is another name for `workload`: give one of them.")
    version = number_of(data.version)
    entry = await services.catalog.wanted(data.path, data.catalog_id, version)
    given = data.workload or data.payload or {}
    execution_id = await services.executions.start(
        entry.digest,
        entry.path,
        entry.version,
        given,
        key=key,
        parent=data.parent_execution_id,
        is_newest=version is None and data.catalog_id is None,
        actor=request.user.actor,
    )
    services.metrics.started.inc()
    return await _started(services, execution_id)


async def _started(services: Services, execution_id: str) -> Started:
    state = await services.orchestrator.last_known(execution_id)
    return Started(
        execution_id=execution_id, status=state.status, path=state.path, version=state.version
    )


@route("POST", "/api/executions/{execution_id:str}/rerun", right="operate")
async def rerun(services: Services, request: Asked, execution_id: str, data: Rerun) -> Started:
    """The same playbook again, perhaps from a step on with what was there before it."""
    new = await services.executions.rerun(
        execution_id, step=data.step, workload=data.workload, actor=request.user.actor
    )
    services.metrics.started.inc()
    return await _started(services, new)


# --- Looking -----------------------------------------------------------------------------------


@route("GET", "/api/executions", right="read")
async def listing(
    services: Services,
    status: str | None = None,
    path: str | None = None,
    parent: str | None = None,
    since: str | None = None,
    cursor: str | None = None,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Executions, newest first. `since` is a moment (RFC 3339) or a span like `1h`."""
    if status is not None and status not in STATUSES:
        raise BadRequest(f"status is one of {', '.join(STATUSES)}.")
    found = await services.store.summaries(
        status=status,
        path=path,
        parent=parent,
        since=None if since is None else _since(since, services.clock.now()),
        before=None if cursor is None else _cursor_read(cursor),
        limit=limit + 1,
    )
    shown = found[:limit]
    more = _cursor(shown[-1].requested_at, shown[-1].execution_id) if found[limit:] else None
    return {"executions": [documents.summary(row) for row in shown], "next_cursor": more}


def _since(text: str, now: float) -> float:
    span = duration(text)
    if span is not None:
        return now - span
    moment = documents.at(text)
    if moment is None:
        raise BadRequest("`since` is a moment like 2026-01-31T12:00:00Z or a span like 1h.")
    return moment


def _cursor(at: float, execution_id: str) -> str:
    return base64.urlsafe_b64encode(f"{at!r}/{execution_id}".encode()).decode().rstrip("=")


def _cursor_read(cursor: str) -> tuple[float, str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        at, slash, execution_id = text.partition("/")
        if slash:
            return float(at), execution_id
    except ValueError:
        pass  # said below, with whatever else a cursor can be that we did not give
    raise BadRequest("`cursor` is what `next_cursor` of the page before was.")


@route("GET", "/api/executions/{execution_id:str}", right="read")
async def show(services: Services, execution_id: str) -> dict[str, Any]:
    """The whole execution."""
    return await services.executions.document(execution_id)


@route("GET", "/api/executions/{execution_id:str}/status", right="read")
async def status(services: Services, execution_id: str) -> dict[str, Any]:
    """The short form."""
    state = await services.orchestrator.state(execution_id)
    return documents.status(execution_id, state)


@route("GET", "/api/executions/{execution_id:str}/events", right="read")
async def events(
    services: Services,
    request: Request[Any, Any, Any],
    execution_id: str,
    after: Seq = 0,
    limit: Limit = 100,
    event_type: Annotated[list[str] | None, QueryParameter(name="type")] = None,
    step: str | None = None,
    wait: float = 0.0,
) -> dict[str, Any]:
    """Events after a number; with `wait`, not before there is one or the time is over."""
    types = tuple(event_type or ())
    await services.records.require(execution_id, types, step)
    look = services.executions.next_events(
        execution_id, after=after, limit=limit + 1, wait=seconds(wait), types=types, step=step
    )
    rows = await while_wanted(services, request, look) or [] if wait else await look
    shown = rows[:limit]
    return {
        "events": [documents.event(execution_id, row) for row in shown],
        "next_after": shown[-1].seq if shown else after,
        "more": len(rows) > limit,
    }


@route("GET", "/api/executions/{execution_id:str}/logs", right="read")
async def logs(
    services: Services,
    request: Request[Any, Any, Any],
    execution_id: str,
    step: str | None = None,
    grep: str | None = None,
    after: Seq = 0,
    limit: Limit = 100,
    wait: float = 0.0,
) -> Logs:
    """What tasks printed, in order; with `wait`, not before there is more or the time is over.

    `grep` is a regular expression of RE2: only the lines that it finds are shown.
    """
    chosen: dict[str, Any] = {"step": step, "grep": grep, "limit": limit}
    found = await services.records.logs(execution_id, after=after, **chosen)
    if seconds(wait) and not found.entries and not found.more and found.status not in TERMINAL:
        look = services.executions.next_events(
            execution_id, after=found.next_after, limit=1, wait=wait, types=task_logs.NEWS
        )
        if await while_wanted(services, request, look):
            found = await services.records.logs(execution_id, after=found.next_after, **chosen)
    return found


@route(
    "GET",
    "/api/executions/{execution_id:str}/stream",
    right="read",
    media_type="text/event-stream",
)
async def stream(
    services: Services,
    request: Request[Any, Any, Any],
    execution_id: str,
    after: Seq = 0,
    last: Annotated[str | None, HeaderParameter(name="Last-Event-ID")] = None,
) -> Response[Any]:
    """Events as they happen, as server-sent events; `Last-Event-ID` goes on where it broke off.

    After the last one 204 tells a browser not to connect again.
    """
    begin = after if last is None else _event_number(last)
    summary = await services.store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}.")
    if summary.status in TERMINAL:
        heads = await services.store.heads([execution_id])
        if begin >= heads[execution_id]:
            return Response(None, status_code=204)
    if request.scope.get("is_head"):
        return Response(None, media_type="text/event-stream")
    return services.streams.answer(execution_id, begin)


def _event_number(last: str) -> int:
    if not (last.isascii() and last.isdecimal() and len(last) < 19):
        raise BadRequest("`Last-Event-ID` is the `id` of the last event that was read, a number.")
    return int(last)


@route("GET", "/api/executions/{execution_id:str}/why", right="read")
async def why(services: Services, execution_id: str) -> dict[str, Any]:
    """What an unfinished execution waits for: who has it, until when."""
    state = await services.orchestrator.state(execution_id)
    reasons = await services.executions.why(execution_id)
    return {"execution_id": execution_id, "status": state.status, "waits_for": reasons}


# --- Acting ------------------------------------------------------------------------------------


@route("POST", "/api/executions/{execution_id:str}/cancel", right="operate")
async def cancel(
    services: Services, request: Asked, execution_id: str, data: Cancel | None = None
) -> Cancelled:
    """Stop it for good. What runs just now is interrupted."""
    wish = data or Cancel()
    count = await services.executions.cancel(
        execution_id, wish.reason, cascade=wish.cascade, actor=request.user.actor
    )
    now = await _started(services, execution_id)
    return Cancelled(**msgspec.structs.asdict(now), cancelled=count)


@route("POST", "/api/executions/{execution_id:str}/pause", right="operate")
async def pause(
    services: Services, request: Asked, execution_id: str, data: Reason | None = None
) -> Paused:
    """Begin nothing new in it: no step, iteration, task or retry. Calls that run end.

    `unconfirmed` are workers that have not confirmed it in time: they may begin something until
    they are heard of again, or lose their leases."""
    reason = (data or Reason()).reason
    actor = request.user.actor
    unconfirmed = await services.executions.pause(execution_id, reason, actor=actor)
    started = await _started(services, execution_id)
    return Paused(**msgspec.structs.asdict(started), unconfirmed=unconfirmed)


@route("POST", "/api/executions/{execution_id:str}/resume", right="operate")
async def resume(services: Services, request: Asked, execution_id: str) -> Started:
    """Let it go on."""
    await services.executions.resume(execution_id, actor=request.user.actor)
    return await _started(services, execution_id)


routes = [start, rerun, listing, show, status, events, logs, stream, why, cancel, pause, resume]
