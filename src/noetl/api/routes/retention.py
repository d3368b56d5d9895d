"""Retention: how long executions are kept, holds, removal and the archive."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec

from noetl.api.route import FILE, Body, Caller, Query, Reply, Route, Services
from noetl.control import documents
from noetl.errors import BadRequest
from noetl.model.answers import (
    ArchivedDocument,
    ArchivePage,
    ExecutionArchived,
    ExecutionDeleted,
    ForgottenDocument,
    HoldDocument,
    KeepDocument,
    PrunedDocument,
    Released,
    RetentionDocument,
)
from noetl.model.retention import keep_rules

ONE = "/api/executions/{execution_id}"
DAY = 86400


class Since(Query, frozen=True, kw_only=True):
    """From which day on removed executions are counted."""

    since: str | None = None
    """A date, e.g. 2026-11-17; by default all."""


class Prune(Body, frozen=True, kw_only=True):
    """What to remove."""

    keep: str | None = None
    """Rules to use instead of NOETL_KEEP, in the same syntax."""
    dry_run: bool = False
    """Remove nothing; return what would be removed."""


class HoldIt(Body, frozen=True, kw_only=True):
    """Why it is held."""

    note: str = ""


class WhichArchived(Query, frozen=True, kw_only=True):
    """Which recordings."""

    prefix: str = ""
    """The beginning of their names, e.g. `shop/orders/2026-11`."""
    after: str = ""
    """Where the previous page ended."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


async def show(services: Services, caller: Caller, *, query: Since) -> RetentionDocument:
    """The retention rules, the executions on hold, and how many were removed, by day, path and
    status.
    """
    try:
        since = datetime.fromisoformat(query.since or "1970-01-01")
    except ValueError:
        raise BadRequest(f'`since` is "{query.since}", not a date such as 2026-11-17.') from None
    first = int(since.replace(tzinfo=since.tzinfo or UTC).timestamp() // DAY)
    return RetentionDocument(
        keep=[
            KeepDocument(executions=rule.written, seconds=rule.seconds)
            for rule in services.retention.keep.rules
        ],
        archive=services.retention.has_archive,
        holds=[documents.of(HoldDocument, one) for one in await services.store.retention.holds()],
        forgotten=[
            documents.of(
                ForgottenDocument,
                one,
                day=datetime.fromtimestamp(one.day * DAY, UTC).date().isoformat(),
            )
            for one in await services.store.retention.forgotten(since_day=first)
        ],
    )


async def prune(services: Services, caller: Caller, *, body: Prune) -> PrunedDocument:
    """Remove executions whose retention time is over, each with everything it called. An execution
    that has not ended, is held, or has results that a rerun reuses, is kept.
    """
    keep = None
    if body.keep is not None:
        try:
            keep = keep_rules(body.keep)
        except ValueError as error:
            raise BadRequest(f"`keep`: {error}.") from None
    pruned = await services.retention.prune(keep, dry_run=body.dry_run)
    if not body.dry_run and pruned.executions:
        details = f"{pruned.executions} executions"
        await services.access.note(caller.actor, "executions.prune", "", details=details)
    by_path = dict(pruned.by_path.most_common())
    return documents.of(PrunedDocument, pruned, dry_run=body.dry_run, by_path=by_path)


async def delete(services: Services, caller: Caller, *, execution_id: str) -> ExecutionDeleted:
    """Remove an execution that has ended, with everything it called and all their records."""
    count = await services.retention.delete(execution_id)
    await services.access.note(caller.actor, "execution.delete", execution_id)
    return ExecutionDeleted(execution_id=execution_id, executions=count)


async def hold(
    services: Services, caller: Caller, *, execution_id: str, body: HoldIt
) -> HoldDocument:
    """Keep an execution, and everything it called, until it is released."""
    held = await services.retention.hold(execution_id, body.note, str(caller.actor))
    await services.access.note(caller.actor, "execution.hold", execution_id, details=body.note)
    return documents.of(HoldDocument, held)


async def release(services: Services, caller: Caller, *, execution_id: str) -> Released:
    """Release an execution: it is removed when its retention time is over."""
    await services.retention.release(execution_id)
    await services.access.note(caller.actor, "execution.release", execution_id)
    return Released(execution_id=execution_id)


async def archive(services: Services, caller: Caller, *, execution_id: str) -> ExecutionArchived:
    """Write an execution that has ended, and everything it called, to the archive. It is not
    removed.
    """
    names = await services.retention.archive(execution_id)
    await services.access.note(caller.actor, "execution.archive", execution_id)
    return ExecutionArchived(execution_id=execution_id, names=names)


async def archived(services: Services, caller: Caller, *, query: WhichArchived) -> ArchivePage:
    """Recordings in the archive, by name: `PATH/DAY/ID.noetl`."""
    found = services.retention.require_archive()
    listed = await found.names(query.prefix, query.after, query.limit + 1)
    page, more = listed[: query.limit], len(listed) > query.limit
    return ArchivePage(
        recordings=[
            documents.of(ArchivedDocument, one, archived_at=one.modified_at) for one in page
        ],
        next_after=page[-1].name if more else None,
    )


async def recording(services: Services, caller: Caller, *, name: str) -> Reply[bytes]:
    """One recording, as a file that `noetl ui` opens."""
    pieces = await services.retention.require_archive().get(name)
    file = name.rpartition("/")[2].replace('"', "")
    return Reply(pieces, headers=(("Content-Disposition", f'attachment; filename="{file}"'),))


SHOW = Route("retention.get", "GET", "/api/retention", "read", show, query=Since)
PRUNE = Route("executions.prune", "POST", "/api/retention/prune", "manage", prune, body=Prune)
DELETE = Route("executions.delete", "DELETE", ONE, "manage", delete)
HOLD = Route("executions.hold", "POST", f"{ONE}/hold", "operate", hold, body=HoldIt)
RELEASE = Route("executions.release", "DELETE", f"{ONE}/hold", "operate", release)
ARCHIVE = Route("executions.archive", "POST", f"{ONE}/archive", "operate", archive)
ARCHIVED = Route("archive.list", "GET", "/api/archive", "read", archived, query=WhichArchived)
RECORDING = Route(
    "archive.get", "GET", "/api/archive/{name}", "read", recording, media=FILE, deep=True
)
