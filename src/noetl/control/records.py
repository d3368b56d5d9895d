"""Executions as they are stored: the row of one, all rows that match, the events of one in pages.

For code that looks back at executions, in any process on the database.
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET

from noetl.control import documents, task_logs
from noetl.errors import BadRequest, Corrupted, NotFound
from noetl.model import net as nets
from noetl.model.answers import (
    ExecutionCount,
    ExecutionPage,
    Histogram,
    HistogramBucket,
    LogEntry,
    Logs,
)
from noetl.model.events import NAMES
from noetl.model.execution_query import Wanted
from noetl.model.ids import ExecutionId
from noetl.model.spelling import did_you_mean, no_such_step
from noetl.store import records as stored
from noetl.store.records import Summary

if TYPE_CHECKING:
    from noetl.store.catalog import Catalog
    from noetl.store.log import EventRow, Log

logger = logging.getLogger(__name__)
T = TypeVar("T")

PAGE = 1000
LOGS_SCANNED_MAX = 10_000
"""Events that one question about logs looks at: a pattern may match none of them."""
WIDTHS = (
    *(1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0),
    *(hours * 3600.0 for hours in (1, 3, 6, 12, 24, 168, 672, 2016, 8064)),
)
"""Seconds that a bucket of a histogram may span, each a multiple of the one before."""
FINE_BUCKETS = 2000


def no_execution(execution_id: ExecutionId) -> NotFound:
    return NotFound(f"there is no execution {execution_id}.")


async def row_of(records: stored.Records, execution_id: ExecutionId) -> Summary:
    """The row of an execution. Raises NotFound."""
    found = await records.summary(execution_id)
    if found is None:
        raise no_execution(execution_id)
    return found


async def unless_lost(reading: Awaitable[T]) -> T | None:
    """What is read of one execution among many. None if it was just deleted or is damaged: that
    must not hide the others.
    """
    try:
        return await reading
    except NotFound:
        return None
    except Corrupted as error:
        logger.warning("a damaged execution is left out: %s", error)
        return None


async def matching(
    records: stored.Records, wanted: Wanted = (), *, now: float = 0.0
) -> AsyncIterator[Summary]:
    """Every execution that matches, newest first."""
    before: tuple[float, ExecutionId] | None = None
    while rows := await records.summaries(wanted, now=now, before=before, limit=PAGE):
        for row in rows:
            yield row
        before = (rows[-1].requested_at, rows[-1].execution_id)


async def events(
    log: Log,
    execution_id: ExecutionId,
    *,
    after: int = 0,
    types: Sequence[str] = (),
    step: str | None = None,
) -> AsyncIterator[EventRow]:
    """The events of an execution after that one, in order."""
    rows = await log.events(execution_id, after=after, limit=PAGE, types=types, step=step)
    while rows:
        for row in rows:
            yield row
        if len(rows) < PAGE:
            return
        after = rows[-1].seq
        rows = await log.events(execution_id, after=after, limit=PAGE, types=types, step=step)


def _width(first: float, last: float, buckets: int) -> float:
    """The width of at most so many buckets. A bucket begins at a round moment, so there is one
    more than would fit from the first to the last."""
    return next((one for one in WIDTHS if (last - first) / one + 2 <= buckets), WIDTHS[-1])


def cursor_of(row: Summary) -> str:
    """The cursor of a page that ends with this row."""
    text = f"{row.requested_at!r}/{row.execution_id}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(cursor: str) -> tuple[float, ExecutionId]:
    """Where the page before a cursor ended."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        at, slash, execution_id = text.partition("/")
        if slash:
            return float(at), execution_id
    except ValueError:
        pass  # said below, with whatever else a cursor can be that we did not give
    raise BadRequest("`cursor` is what `next_cursor` of the page before was.")


FIELD_MAX = 1000
"""Bytes of JSON of a workload's field in a list; of a larger one the beginning is shown."""
WORKLOADS = 20
"""Workloads that are read at once: each may be large."""


def _field(workload: Any, name: str) -> Any:
    """A field of the workload, by a path such as `shop.region`; None if there is none."""
    for part in name.split("."):
        if not isinstance(workload, dict):
            return None
        workload = workload.get(part)
    written = msgspec.json.encode(workload)
    if len(written) <= FIELD_MAX:
        return workload
    text = workload if isinstance(workload, str) else written.decode()
    return text[: FIELD_MAX // 5] + "…"


class Records:
    """What a store knows of executions."""

    def __init__(self, log: Log, records: stored.Records, catalog: Catalog) -> None:
        self._log = log
        self._records = records
        self._catalog = catalog

    async def page(
        self,
        wanted: Wanted,
        *,
        now: float,
        cursor: str | None = None,
        limit: int,
        fields: tuple[str, ...] = (),
    ) -> ExecutionPage:
        """Executions that match a query, newest first; `fields` of the workload with them."""
        before = None if cursor is None else place_of(cursor)
        found = await self._records.summaries(wanted, now=now, before=before, limit=limit + 1)
        shown = found[:limit]
        found_fields = await self._fields([row.execution_id for row in shown], fields)
        rows = [
            documents.summary(row, found_fields[row.execution_id] if fields else UNSET)
            for row in shown
        ]
        return ExecutionPage(
            executions=rows, next_cursor=cursor_of(shown[-1]) if found[limit:] else None
        )

    async def _fields(
        self, execution_ids: list[ExecutionId], names: tuple[str, ...]
    ) -> dict[ExecutionId, dict[str, Any]]:
        """These fields of their workloads."""
        found = {execution_id: dict.fromkeys(names) for execution_id in execution_ids}
        for first in range(0, len(execution_ids) if names else 0, WORKLOADS):
            some = execution_ids[first : first + WORKLOADS]
            for execution_id, events in (await self._log.openings(some)).items():
                for fact in msgspec.json.decode(events):
                    if fact["type"] == "playbook.request.evaluated":
                        workload = fact["workload"]
                        found[execution_id] = {name: _field(workload, name) for name in names}
        return found

    async def count(self, wanted: Wanted, *, now: float) -> ExecutionCount:
        """How many executions match."""
        return ExecutionCount(count=await self._records.count(wanted, now=now))

    async def histogram(self, wanted: Wanted, *, now: float, buckets: int) -> Histogram:
        """Executions that match by time and status, in at most so many buckets of a round width.

        Most queries are answered by one look at the executions that match, in fine buckets from the
        first execution there is to the last. Only what lies close together is looked at again.
        """
        span = await self._records.span()
        if span is None:
            return Histogram(start=None, end=None, bucket_seconds=0.0, total=0, buckets=[])
        fine = _width(*span, FINE_BUCKETS)
        counted = await self._counted(wanted, now, *span, fine)
        if not counted:
            return Histogram(start=None, end=None, bucket_seconds=0.0, total=0, buckets=[])
        first, last = min(counted) * fine, (max(counted) + 1) * fine
        width = _width(first, last, buckets)
        if width < fine:
            counted = await self._counted(wanted, now, first, last, width)
            first, last = min(counted) * width, (max(counted) + 1) * width
        merged: dict[int, dict[str, int]] = {}
        for number, counts in counted.items():
            place = merged.setdefault(math.floor(number * min(fine, width) / width), {})
            for status, count in counts.items():
                place[status] = place.get(status, 0) + count
        return Histogram(
            start=documents.moment(min(merged) * width),
            end=documents.moment((max(merged) + 1) * width),
            bucket_seconds=width,
            total=sum(sum(counts.values()) for counts in merged.values()),
            buckets=[
                HistogramBucket(start=documents.moment(number * width), counts=merged[number])
                for number in sorted(merged)
            ],
        )

    async def _counted(
        self, wanted: Wanted, now: float, first: float, last: float, width: float
    ) -> dict[int, dict[str, int]]:
        """Counts by status in buckets of a width; a bucket's number is its time by the width."""
        begin = math.floor(first / width)
        end = math.floor(last / width) + 1
        found: dict[int, dict[str, int]] = {}
        for number, status, count in await self._records.histogram(
            wanted, now=now, begin=begin * width, width=width, end=end * width
        ):
            found.setdefault(begin + number, {})[status] = count
        return found

    async def require(
        self, execution_id: ExecutionId, types: tuple[str, ...], step: str | None
    ) -> None:
        """Raises BadRequest for a type that no event has, NotFound for a step that is none."""
        for name in types:
            if name not in NAMES:
                hint = did_you_mean(name, NAMES)
                raise BadRequest(f'there is no type of event "{name}".{hint}')
        if step is not None:
            await self._require_step(await row_of(self._records, execution_id), step)

    async def logs(
        self,
        execution_id: ExecutionId,
        *,
        step: str | None = None,
        grep: str | None = None,
        after: int = 0,
        limit: int = PAGE,
    ) -> Logs:
        """A page of what its tasks printed. Raises BadRequest and NotFound."""
        row = await row_of(self._records, execution_id)
        if step is not None:
            await self._require_step(row, step)
        matches = None if grep is None else task_logs.pattern(grep).search
        entries: list[LogEntry] = []
        scanned, more = 0, False
        async for event in events(
            self._log, execution_id, after=after, types=task_logs.TYPES, step=step
        ):
            after = event.seq
            scanned += 1
            if (entry := task_logs.entry(event, matches)) is not None:
                entries.append(entry)
            if len(entries) == limit or scanned == LOGS_SCANNED_MAX:
                more = True
                break
        return Logs(
            execution_id=execution_id,
            status=row.status,
            entries=entries,
            next_after=after,
            more=more,
        )

    async def _require_step(self, row: Summary, step: str) -> None:
        body = await self._catalog.net(row.digest)
        if body is None:
            return  # its net is lost, its events are not
        steps = [one.name for one in nets.decode(body).steps]
        if step not in steps:
            raise NotFound(no_such_step(step, steps, row.path))
