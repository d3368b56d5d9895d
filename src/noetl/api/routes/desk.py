"""The overview, the inbox, queues, saved views, and bulk actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from noetl.api.route import NEWS, Body, Caller, Header, Query, Reply, Route, Services
from noetl.api.routes.catalog import Number
from noetl.api.routes.executions import Limit, key_of
from noetl.api.topics import position_of
from noetl.control import documents
from noetl.control.records import place_of
from noetl.errors import BadRequest, NotFound
from noetl.model.answers import Deleted
from noetl.model.desk import (
    BulkAction,
    BulkDone,
    Form,
    Inbox,
    LatestRuns,
    Overview,
    QueueList,
    VersionDiff,
    VersionList,
    View,
    ViewList,
)
from noetl.model.execution_query import Condition, Term, parse
from noetl.model.signals import may_answer
from noetl.store.records import SavedView

if TYPE_CHECKING:
    from noetl.api.rights import Principal

LAST_POSITION = Header("Last-Event-ID", "The `id` of the last `position` received.")


class WhichForms(Query, frozen=True, kw_only=True):
    """Which page."""

    cursor: str | None = None
    """`next_cursor` of the previous page."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    role: str | None = None
    """Only forms for this role."""
    mine: bool = False
    """Only forms that the caller may answer."""


class BulkActing(Body, frozen=True, kw_only=True):
    """Which executions, and the action to apply to each."""

    action: BulkAction
    q: str | None = None
    """All executions that match this query; an empty query matches every execution."""
    ids: Annotated[list[str], msgspec.Meta(max_length=1000)] | None = None
    """Or these executions."""
    dry_run: bool = False
    """Change nothing; return how many it would affect."""
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class LatestOf(Body, frozen=True, kw_only=True):
    """Which playbooks, and how many executions of each."""

    paths: Annotated[list[str], msgspec.Meta(max_length=500)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=30)] = 10


class SaveView(Body, frozen=True, kw_only=True):
    """A query, and the columns to show."""

    q: Annotated[str, msgspec.Meta(max_length=2000)]
    columns: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=200)], ...], msgspec.Meta(max_length=50)
    ] = ()


class WhichVersions(Query, frozen=True, kw_only=True):
    """Which versions."""

    before: Number | None = None
    """Only versions below this one."""
    limit: Limit = 50


class WhichDiff(Query, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Which two versions."""

    first: Number
    last: Number


class WhichTopics(Query, frozen=True, kw_only=True):
    """Which topics."""

    topics: tuple[str, ...] = ()
    """`executions`, `execution:ID`, `inbox`, `workers`; separate several with commas."""


async def stream(services: Services, caller: Caller, *, query: WhichTopics) -> Reply[str]:
    """Changes of several topics over one connection, as server-sent events.

    `Last-Event-ID` continues after the last `position` received. A reader that has fallen too far
    behind receives `reset`, and loads the topic again.
    """
    topics = await services.topics.chosen(query.topics)
    place = position_of(caller.header(LAST_POSITION))
    frames = services.topics.frames(topics, place)
    return Reply(frames, headers=(("X-Accel-Buffering", "no"),))


async def overview(services: Services, caller: Caller) -> Overview:
    """What needs attention now (recent failures, forms waiting for the caller, work that no worker
    takes, missed times of schedules), what runs, and what starts next.
    """
    who = caller.principal
    return await services.desk.overview(
        services.clock.now(), lambda form: not who.may("operate") or _is_for(who, form)
    )


async def inbox(services: Services, caller: Caller, *, query: WhichForms) -> Inbox:
    """Waiting forms, those of the most recently started executions first: all, of one role, or
    `mine`.
    """
    before = None if query.cursor is None else place_of(query.cursor)
    who = caller.principal

    def shown(form: Form) -> bool:
        if query.role is not None and form.role != query.role:
            return False
        return not query.mine or _is_for(who, form)

    return await services.desk.inbox(before=before, limit=query.limit, shown=shown)


def _is_for(who: Principal, form: Form) -> bool:
    """Whether the caller may answer it."""
    return who.may("operate") and may_answer(form.role or "", who.answers_as)


async def queues(services: Services, caller: Caller) -> QueueList:
    """Waiting commands by pool and kind, and how long the oldest has waited."""
    return await services.desk.queues(services.clock.now())


async def bulk(services: Services, caller: Caller, *, body: BulkActing) -> BulkDone:
    """Cancel, pause, resume or rerun all executions that match a query, or those named by id.

    Executions in a status that the action does not apply to are left alone. At most 5 000 at once;
    with `dry_run` nothing changes, and the answer says how many it would affect. Under the same
    `Idempotency-Key` no execution is cancelled or run again twice.
    """
    if (body.q is None) == (body.ids is None):
        raise BadRequest("name the executions: either by a query `q` or by `ids`.")
    now = services.clock.now()
    if body.q is not None:
        wanted = parse(body.q, now)
    else:
        # An empty list becomes an id that no execution has.
        named = tuple(Condition("exact_id", one) for one in body.ids or [""])
        wanted = (Term(named),)
    return await services.bulk.act(
        body.action,
        wanted,
        now=now,
        dry_run=body.dry_run,
        reason=body.reason,
        actor=caller.actor,
        key=key_of(caller),
    )


async def latest(services: Services, caller: Caller, *, body: LatestOf) -> LatestRuns:
    """The last executions of each of some playbooks."""
    return await services.versions.latest_runs(body.paths, body.limit)


async def views(services: Services, caller: Caller) -> ViewList:
    """Saved queries, by name."""
    found = await services.store.records.views()
    return ViewList(views=[documents.of(View, row) for row in found])


async def save_view(services: Services, caller: Caller, *, name: str, body: SaveView) -> View:
    """Save a query under a name, for all users; an existing one is replaced."""
    now = services.clock.now()
    parse(body.q, now)
    if not name.strip() or len(name) > 100:
        raise BadRequest("the name of a view has 1 to 100 characters.")
    row = SavedView(name=name, q=body.q, columns=body.columns, owner=caller.name, updated_at=now)
    await services.store.records.put_view(row)
    await services.access.note(caller.actor, "view.put", name)
    return documents.of(View, row)


async def delete_view(services: Services, caller: Caller, *, name: str) -> Deleted:
    """Delete a saved query."""
    if not await services.store.records.delete_view(name):
        raise NotFound(f'there is no view "{name}".')
    await services.access.note(caller.actor, "view.delete", name)
    return Deleted(deleted=name)


async def versions(
    services: Services, caller: Caller, *, path: str, query: WhichVersions
) -> VersionList:
    """Versions of a playbook, newest first; its callers, what it calls, and its last 30 runs."""
    return await services.versions.listed(path, before=query.before, limit=query.limit)


async def diff(services: Services, caller: Caller, *, path: str, query: WhichDiff) -> VersionDiff:
    """How two versions of a playbook differ: in their texts and steps."""
    return await services.versions.diff(path, query.first, query.last)


STREAM = Route(
    "stream.topics",
    "GET",
    "/api/stream",
    "read",
    stream,
    query=WhichTopics,
    headers=(LAST_POSITION,),
    media=NEWS,
)
OVERVIEW = Route("overview.show", "GET", "/api/overview", "read", overview)
INBOX = Route("inbox.list", "GET", "/api/inbox", "read", inbox, query=WhichForms)
QUEUES = Route("queues.list", "GET", "/api/queues", "read", queues)
BULK = Route(
    "executions.bulk", "POST", "/api/executions/bulk", "operate", bulk, body=BulkActing, keyed=True
)
LATEST = Route("executions.latest", "POST", "/api/executions/latest", "read", latest, body=LatestOf)
VIEWS = Route("views.list", "GET", "/api/views", "read", views)
SAVE_VIEW = Route("views.save", "PUT", "/api/views/{name}", "operate", save_view, body=SaveView)
DELETE_VIEW = Route("views.delete", "DELETE", "/api/views/{name}", "operate", delete_view)
VERSIONS = Route(
    "versions.list", "GET", "/api/versions/{path}", "read", versions, query=WhichVersions, deep=True
)
DIFF = Route(
    "versions.diff", "GET", "/api/version-diff/{path}", "read", diff, query=WhichDiff, deep=True
)
