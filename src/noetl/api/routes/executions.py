"""/api/executions: start, inspect and act on executions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from noetl.api.long_polls import seconds, while_wanted
from noetl.api.route import (
    FILE,
    IDEMPOTENCY_KEY,
    NEWS,
    Body,
    Caller,
    Header,
    Query,
    Reply,
    Route,
    Services,
)
from noetl.api.routes.catalog import Version, number_of
from noetl.control import documents, task_logs
from noetl.control.bulk import RERUNS
from noetl.errors import BadRequest
from noetl.model.answers import (
    Cancelled,
    EventPage,
    ExecutionCount,
    ExecutionDocument,
    ExecutionPage,
    ExecutionStatus,
    Histogram,
    LabelCount,
    LabelCounts,
    Logs,
    Paused,
    Started,
)
from noetl.model.execution_query import STATUSES, Wanted, exactly, moment, parse
from noetl.model.retrospect import ForkDocument, StepWhyDocument, WhyDocument
from noetl.model.spelling import did_you_mean
from noetl.model.state import TERMINAL
from noetl.model.triggers import TRIGGERS

LIMIT_MAX = 1000
Limit = Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)]
Seq = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
KEY_MAX = 255
OWN_KEYS = (*(f"{kind.lower()}/" for kind in TRIGGERS), RERUNS)
"""Keys of executions that triggers and bulk actions start. A caller who used one would prevent such
a start.
"""
LAST_EVENT_ID = Header("Last-Event-ID", "The `id` of the last event received.")


class StartExecution(Body, frozen=True, kw_only=True):
    """Which playbook to start, and with what workload."""

    path: str | None = None
    catalog_id: str | None = None
    version: Version = None
    workload: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    """Another name for `workload`."""
    parent_execution_id: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Merged over those of the playbook."""


class Pause(Body, frozen=True, kw_only=True):
    """Why it is paused."""

    reason: str = ""


class Fork(Body, frozen=True, kw_only=True):
    """The event to continue from, and what to change."""

    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    """This event and everything after it happen again."""
    iteration: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    """Repeat only this iteration of the event's loop."""
    failed: bool = False
    """Repeat only the failed iterations of the event's loop."""
    version: Version = None
    ctx: dict[str, Any] | None = None
    """Written to ctx first: dotted path → value."""
    dry_run: bool = False
    """Only return the plan."""


class WhichWhy(Query, frozen=True, kw_only=True):
    """A step, and a moment given by the number of an event."""

    step: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)] | None = None


class Cancel(Body, frozen=True, kw_only=True):
    """Why it is cancelled."""

    reason: str = ""
    cascade: bool = True
    """Also cancel the executions that it called; otherwise they continue, and their results are
    unused.
    """


class Resume(Body, frozen=True, kw_only=True):
    """No parameters."""


class Rerun(Body, frozen=True, kw_only=True, rename={"step": "from"}):
    """The step to start from, and values to merge over the old workload."""

    step: str | None = None
    workload: dict[str, Any] | None = None


class Matching(Query, frozen=True, kw_only=True):
    """Which executions."""

    q: str = ""
    """A query such as `status:failed path:shop/* took:>5m since:2d`; all parameters must hold."""
    status: str | None = None
    path: str | None = None
    parent: str | None = None
    since: str | None = None
    """A moment (RFC 3339) or a duration such as `1h`."""
    label: dict[str, str] = msgspec.field(default_factory=dict)
    """`label.NAME=VALUE`: only executions with this label; with several, only those with all."""


class Which(Matching, frozen=True, kw_only=True):
    """Which executions to list, and which columns."""

    cursor: str | None = None
    """`next_cursor` of the previous page."""
    limit: Limit = 50
    workload: Annotated[tuple[str, ...], msgspec.Meta(max_length=20)] = ()
    """Fields of the workload to show in each row, e.g. `region` or `shop.name`; may be repeated."""


class WhichBuckets(Matching, frozen=True, kw_only=True):
    """Which executions to count, and the maximum number of buckets."""

    buckets: Annotated[int, msgspec.Meta(ge=4, le=1000)] = 100


class Labelled(Query, frozen=True, kw_only=True):
    """Which executions count."""

    since: str | None = None
    """A moment (RFC 3339) or a duration such as `1h`."""
    limit: Limit = 100


class WhichEvents(Query, frozen=True, kw_only=True):
    """Which events, and how long to wait for the first."""

    after: Seq = 0
    limit: Limit = 100
    type: tuple[str, ...] = ()
    step: str | None = None
    wait: float = 0.0


class WhichLogs(Query, frozen=True, kw_only=True):
    """Which lines, and how long to wait for the first."""

    step: str | None = None
    grep: str | None = None
    """A regular expression (RE2): only lines that it matches are returned."""
    after: Seq = 0
    limit: Limit = 100
    wait: float = 0.0


class After(Query, frozen=True, kw_only=True):
    """From where on."""

    after: Seq = 0


# --- Starting ----------------------------------------------------------------------------------


async def start(services: Services, caller: Caller, *, body: StartExecution) -> Started:
    """Start an execution. An `Idempotency-Key` that was used before returns the execution it
    started.
    """
    if body.workload is not None and body.payload is not None:
        raise BadRequest("`payload` is another name for `workload`: give only one of them.")
    version = number_of(body.version)
    entry = await services.catalog.wanted(body.path, body.catalog_id, version)
    given = body.workload or body.payload or {}
    execution_id = await services.executions.start(
        entry.digest,
        entry.path,
        entry.version,
        given,
        key=key_of(caller),
        parent=body.parent_execution_id,
        is_newest=version is None and body.catalog_id is None,
        actor=caller.actor,
        labels=body.labels,
    )
    return await _started(services, execution_id)


def key_of(caller: Caller) -> str | None:
    """The idempotency key of the request. Raises BadRequest if it cannot be one."""
    key = caller.header(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not 0 < len(key) <= KEY_MAX:
        raise BadRequest(
            f"an Idempotency-Key has 1 to {KEY_MAX} characters, and this one has {len(key)}."
            " Send another, or none."
        )
    if key.startswith(OWN_KEYS):
        raise BadRequest(
            f"an Idempotency-Key that begins with {key.partition('/')[0]}/ is for what NoETL itself"
            " starts. Choose another."
        )
    return key


async def _started(services: Services, execution_id: str) -> Started:
    state = await services.orchestrator.last_known(execution_id)
    return Started(
        execution_id=execution_id, status=state.status, path=state.path, version=state.version
    )


async def rerun(services: Services, caller: Caller, *, execution_id: str, body: Rerun) -> Started:
    """Run the same playbook again, optionally from a step on, with what was recorded before it. An
    `Idempotency-Key` that was used before returns the execution it started.
    """
    new = await services.executions.rerun(
        execution_id,
        step=body.step,
        workload=body.workload,
        actor=caller.actor,
        key=key_of(caller),
    )
    return await _started(services, new)


async def fork(
    services: Services, caller: Caller, *, execution_id: str, body: Fork
) -> ForkDocument:
    """Start a new execution that continues from an event of this one.

    What was recorded before the event still counts, and none of those calls is made again. The plan
    says which recorded calls are reused and which happen again; with `dry_run` only the plan is
    returned. An `Idempotency-Key` that was used before returns the execution it started.
    """
    from noetl.control import forks

    version = body.version
    if version == "latest":
        request = await forks.request_of(services.store.log, execution_id)
        version = (await services.catalog.entry(request.path)).version
    wish = forks.Wish(
        seq=body.seq,
        iteration=body.iteration,
        failed=body.failed,
        version=number_of(version),
        ctx=body.ctx or {},
    )
    if body.dry_run:
        planned = await services.executions.planned_fork(execution_id, wish)
        return ForkDocument(plan=planned.document)
    new, plan = await services.executions.fork(
        execution_id, wish, actor=caller.actor, key=key_of(caller)
    )
    return documents.of(ForkDocument, await _started(services, new), plan=plan)


# --- Looking -----------------------------------------------------------------------------------


async def listing(services: Services, caller: Caller, *, query: Which) -> ExecutionPage:
    """Executions that match a query, newest first."""
    return await services.records.page(
        _wanted(query, services.clock.now()),
        now=services.clock.now(),
        cursor=query.cursor,
        limit=query.limit,
        fields=query.workload,
    )


async def count(services: Services, caller: Caller, *, query: Matching) -> ExecutionCount:
    """How many executions match a query."""
    now = services.clock.now()
    return await services.records.count(_wanted(query, now), now=now)


async def histogram(services: Services, caller: Caller, *, query: WhichBuckets) -> Histogram:
    """Executions that match a query, by time and status, in buckets of a round width."""
    now = services.clock.now()
    return await services.records.histogram(_wanted(query, now), now=now, buckets=query.buckets)


def _wanted(query: Matching, now: float) -> Wanted:
    """The whole query: `q` together with the other parameters."""
    status = None if query.status is None else query.status.upper()
    if status is not None and status not in STATUSES:
        hint = did_you_mean(status, STATUSES)
        raise BadRequest(f"status is one of {', '.join(STATUSES)}.{hint}")
    others = exactly(
        status=status,
        path=query.path,
        parent=query.parent,
        since=_since(query.since, now),
        labels=query.label,
    )
    return (*parse(query.q, now), *others)


def _since(text: str | None, now: float) -> float | None:
    found = None if text is None else moment(text, now)
    if text is not None and found is None:
        raise BadRequest("`since` is a moment like 2026-01-31T12:00:00Z or a duration like 1h.")
    return found


async def labels(services: Services, caller: Caller, *, name: str, query: Labelled) -> LabelCounts:
    """The values of a label, and how many executions have each."""
    since = _since(query.since, services.clock.now())
    found = await services.store.records.label_counts(name, since=since, limit=query.limit)
    values = [LabelCount(value=value, executions=count) for value, count in found]
    return LabelCounts(label=name, values=values)


async def show(services: Services, caller: Caller, *, execution_id: str) -> ExecutionDocument:
    """The whole execution."""
    return await services.executions.shown(execution_id)


async def status(services: Services, caller: Caller, *, execution_id: str) -> ExecutionStatus:
    """The status of an execution, in short form."""
    state = await services.orchestrator.state(execution_id)
    return documents.status(execution_id, state)


async def events(
    services: Services, caller: Caller, *, execution_id: str, query: WhichEvents
) -> EventPage:
    """Events after a number; with `wait`, the answer waits for the first one."""
    await services.records.require(execution_id, query.type, query.step)
    look = services.executions.next_events(
        execution_id,
        after=query.after,
        limit=query.limit + 1,
        wait=seconds(query.wait),
        types=query.type,
        step=query.step,
    )
    rows = await while_wanted(services, caller, look) or [] if query.wait else await look
    shown = rows[: query.limit]
    return EventPage(
        events=[documents.event(execution_id, row) for row in shown],
        next_after=shown[-1].seq if shown else query.after,
        more=len(rows) > query.limit,
    )


async def logs(services: Services, caller: Caller, *, execution_id: str, query: WhichLogs) -> Logs:
    """What tasks printed, in order; with `wait`, the answer waits for the first line.

    `grep` is a regular expression (RE2): only lines that it matches are returned.
    """
    chosen: dict[str, Any] = {"step": query.step, "grep": query.grep, "limit": query.limit}
    found = await services.records.logs(execution_id, after=query.after, **chosen)
    is_over = found.status in TERMINAL
    if seconds(query.wait) and not found.entries and not found.more and not is_over:
        look = services.executions.next_events(
            execution_id, after=found.next_after, limit=1, wait=query.wait, types=task_logs.NEWS
        )
        if await while_wanted(services, caller, look):
            found = await services.records.logs(execution_id, after=found.next_after, **chosen)
    return found


async def export(services: Services, caller: Caller, *, execution_id: str) -> Reply[bytes]:
    """The whole execution as one file: log, net, graph and large results, with a checksum.

    `noetl ui FILE` shows it without a server.
    """
    from noetl.control.recordings import recorded

    pieces = await recorded(services.store, execution_id, services.clock.now())
    name = f'attachment; filename="{execution_id}.noetl"'
    return Reply(pieces, headers=(("Content-Disposition", name),))


async def stream(
    services: Services, caller: Caller, *, execution_id: str, query: After
) -> Reply[str]:
    """Events as they happen, as server-sent events; `Last-Event-ID` continues a broken stream.

    After the last event the answer is 204, which tells a browser not to reconnect.
    """
    last = caller.header(LAST_EVENT_ID)
    begin = query.after if last is None else _event_number(last)
    if not await services.streams.look(execution_id, begin):
        return Reply(None, status=204)
    frames = services.streams.frames(execution_id, begin)
    return Reply(frames, headers=(("X-Accel-Buffering", "no"),))


def _event_number(last: str) -> int:
    if not (last.isascii() and last.isdecimal() and len(last) < 19):
        raise BadRequest("`Last-Event-ID` is a number, the `id` of the last event received.")
    return int(last)


async def why(
    services: Services, caller: Caller, *, execution_id: str, query: WhichWhy
) -> WhyDocument:
    """What an unfinished execution waits for: which worker has it, and until when.

    With `step` also why that step ran or did not, up to the event `seq`: guards are evaluated again
    on the data of that moment.
    """
    status, reasons = await services.executions.why(execution_id)
    told: StepWhyDocument | None = None
    if query.step is not None:
        from noetl.control.explanation import inquiry

        store, programs = services.store, services.orchestrator.programs
        asked = await inquiry(
            store.log,
            store.records,
            store.bodies,
            programs,
            execution_id,
            step=query.step,
            seq=query.seq,
        )
        told = await services.evaluator.why(asked, caller.name)
    elif query.seq is not None:
        raise BadRequest(
            "`seq` needs a `step`: it explains why that step ran, or did not, up to that event."
        )
    return WhyDocument(execution_id=execution_id, status=status, waits_for=reasons, step=told)


# --- Acting ------------------------------------------------------------------------------------


async def cancel(
    services: Services, caller: Caller, *, execution_id: str, body: Cancel
) -> Cancelled:
    """Stop an execution for good. Running calls are interrupted.

    An execution that undoes what was done stops that when it is cancelled again. A request under an
    `Idempotency-Key` that was used before is no second cancellation.
    """
    count = await services.executions.cancel(
        execution_id, body.reason, cascade=body.cascade, actor=caller.actor, key=key_of(caller)
    )
    now = await _started(services, execution_id)
    return documents.of(Cancelled, now, cancelled=count)


async def pause(services: Services, caller: Caller, *, execution_id: str, body: Pause) -> Paused:
    """Begin nothing new in an execution: no step, iteration, task or retry. Running calls continue
    to their end.

    `unconfirmed` are workers that have not confirmed the pause in time: they may still begin
    something until they are reached, or lose their leases.
    """
    unconfirmed = await services.executions.pause(execution_id, body.reason, actor=caller.actor)
    now = await _started(services, execution_id)
    return documents.of(Paused, now, unconfirmed=unconfirmed)


async def resume(services: Services, caller: Caller, *, execution_id: str, body: Resume) -> Started:
    """Let a paused execution go on."""
    await services.executions.resume(execution_id, actor=caller.actor)
    return await _started(services, execution_id)


ALL, ONE = "/api/executions", "/api/executions/{execution_id}"
START = Route(
    "executions.start",
    "POST",
    ALL,
    "operate",
    start,
    body=StartExecution,
    aliases=("/api/execute",),
    keyed=True,
)
RERUN = Route("executions.rerun", "POST", f"{ONE}/rerun", "operate", rerun, body=Rerun, keyed=True)
FORK = Route("executions.fork", "POST", f"{ONE}/fork", "operate", fork, body=Fork, keyed=True)
LIST = Route("executions.list", "GET", ALL, "read", listing, query=Which)
LABELS = Route(
    "executions.labels", "GET", "/api/labels/{name}", "read", labels, query=Labelled, deep=True
)
COUNT = Route("executions.count", "GET", f"{ALL}/count", "read", count, query=Matching)
HISTOGRAM = Route(
    "executions.histogram", "GET", f"{ALL}/histogram", "read", histogram, query=WhichBuckets
)
GET = Route("executions.get", "GET", ONE, "read", show)
STATUS = Route("executions.status", "GET", f"{ONE}/status", "read", status)
EVENTS = Route("executions.events", "GET", f"{ONE}/events", "read", events, query=WhichEvents)
LOGS = Route("executions.logs", "GET", f"{ONE}/logs", "read", logs, query=WhichLogs)
EXPORT = Route("executions.export", "GET", f"{ONE}/export", "read", export, media=FILE)
STREAM = Route(
    "executions.stream",
    "GET",
    f"{ONE}/stream",
    "read",
    stream,
    query=After,
    headers=(LAST_EVENT_ID,),
    media=NEWS,
    statuses=(204,),
)
WHY = Route("executions.why", "GET", f"{ONE}/why", "read", why, query=WhichWhy)
CANCEL = Route(
    "executions.cancel", "POST", f"{ONE}/cancel", "operate", cancel, body=Cancel, keyed=True
)
PAUSE = Route("executions.pause", "POST", f"{ONE}/pause", "operate", pause, body=Pause)
RESUME = Route("executions.resume", "POST", f"{ONE}/resume", "operate", resume, body=Resume)
