"""What needs a person: forms that wait, work that no worker takes, recent failures."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from noetl.control import documents
from noetl.control.documents import moment
from noetl.control.records import cursor_of, unless_lost
from noetl.control.waits import LIVE_SECONDS
from noetl.model.commands import missing_labels, pool_of
from noetl.model.desk import (
    FailedLately,
    Form,
    Inbox,
    MissedTime,
    Overview,
    Queue,
    QueueList,
    RunningNow,
)
from noetl.model.execution_query import Condition, Term, Wanted
from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from noetl.control.orchestrator import Orchestrator
    from noetl.store import queue as stored
    from noetl.store.base import Runtimes
    from noetl.store.records import Records, Summary
    from noetl.store.triggers import Triggers

LATELY = 24 * 3600.0
SHOWN = 10
FAILED_LOOKED_AT = 100
SCHEDULES_LOOKED_AT = 200
FORMS_LOOKED_AT = 1000
"""Executions that are searched for forms that a caller may answer."""
CHANGES_LOOKED_AT = 100
"""How many changed executions are checked for forms; among more, some may have one."""
COMMANDS_LOOKED_AT = 2000
"""How many waiting commands, oldest first, are counted by kind."""
_ASKS: Wanted = (Term((Condition("waits", "form"), Condition("waits_unknown"))),)
_FAILED: Wanted = (Term((Condition("status", "FAILED"),)), Term((Condition("no_parent"),)))
"""What failed below another execution is that one's to answer for: it has failed, too, or coped."""
_RUNNING: Wanted = (Term((Condition("status", "RUNNING"), Condition("status", "PENDING"))),)
_PAUSED: Wanted = (Term((Condition("status", "PAUSED"),)),)


class Desk:
    """Questions about all executions together."""

    def __init__(
        self,
        queue: stored.Queue,
        records: Records,
        triggers: Triggers,
        runtimes: Runtimes,
        orchestrator: Orchestrator,
    ) -> None:
        self._queue = queue
        self._records = records
        self._triggers = triggers
        self._runtimes = runtimes
        self._orchestrator = orchestrator

    async def inbox(
        self,
        *,
        before: tuple[float, ExecutionId] | None,
        limit: int,
        shown: Callable[[Form], bool] = lambda _: True,
    ) -> Inbox:
        """Forms that wait for people, of the executions that were started last first.

        Only those that are to be `shown`: so many executions are looked at that a page is filled,
        but no more than a bound; a page may have fewer and still not be the last.
        """
        forms: list[Form] = []
        last: Summary | None = None
        looked_at, more = 0, True
        while more and len(forms) < limit and looked_at < FORMS_LOOKED_AT:
            rows = await self._records.summaries(_ASKS, before=before, limit=limit + 1)
            more = len(rows) > limit
            for row in rows[:limit]:
                if len(forms) >= limit:
                    more = True
                    break
                state = await unless_lost(self._orchestrator.last_known(row.execution_id))
                if state is not None:
                    forms += [form for form in forms_of(row.execution_id, state) if shown(form)]
                last, looked_at = row, looked_at + 1
                before = (row.requested_at, row.execution_id)
        return Inbox(
            forms=forms,
            total=await self.asking(),
            next_cursor=cursor_of(last) if more and last is not None else None,
        )

    async def asking(self) -> int:
        """In how many executions a form waits."""
        return await self._records.count(_ASKS)

    async def asks_any(self, ids: Collection[ExecutionId]) -> bool:
        """Whether a form waits in one of these executions; among too many to look at, perhaps."""
        if not ids or len(ids) > CHANGES_LOOKED_AT:
            return bool(ids)
        named = Term(tuple(Condition("exact_id", one) for one in sorted(ids)))
        return bool(await self._records.summaries((*_ASKS, named), limit=1))

    async def queues(self, now: float) -> QueueList:
        """Commands that wait, by pool: how many, since when, of which kinds."""
        sizes = await self._queue.sizes()
        workers = await self._runtimes.all(kind="worker", since=now - LIVE_SECONDS)
        waiting = await self._queue.waiting_commands(limit=COMMANDS_LOOKED_AT)
        names = {pool_of(name) for name in sizes} | {pool_of(row.pool) for row in workers}
        found = []
        for name in sorted(names):
            own = [command for command in waiting if pool_of(command.pool) == name]
            kinds: dict[str, int] = {}
            for command in own:
                program = await self._orchestrator.programs.by_digest(command.digest)
                step = program.steps.get(command.step)
                for kind in sorted({task.kind for task in step.step.tasks}) if step else ():
                    kinds[kind] = kinds.get(kind, 0) + 1
            here = [row for row in workers if pool_of(row.pool) == name]
            since = min((command.at for command in own), default=None)
            named = {queue: size for queue, size in sizes.items() if pool_of(queue) == name}
            queues = list(named.values())
            found.append(
                Queue(
                    pool=name,
                    waiting=sum(free for free, _ in queues),
                    leased=sum(leased for _, leased in queues),
                    workers=len(here),
                    draining=sum(row.draining for row in here),
                    slots=sum(row.slots for row in here if not row.draining),
                    oldest_since=moment(since),
                    oldest_seconds=None if since is None else round(max(now - since, 0.0), 3),
                    oldest_execution_id=next(
                        (one.execution_id for one in own if one.at == since), None
                    ),
                    kinds=kinds,
                    kinds_of=len(own),
                    missing=missing_labels(named, [row.pool for row in here]),
                )
            )
        return QueueList(queues=found)

    async def overview(
        self, now: float, shown: Callable[[Form], bool] = lambda _: True
    ) -> Overview:
        """What needs a person now, and what runs; of the forms those that are to be `shown`."""
        lately: Wanted = (*_FAILED, Term((Condition("since", now - LATELY),)))
        failed = await self._records.summaries(lately, limit=FAILED_LOOKED_AT)
        newest = {row.path: row for row in reversed(failed)}  # the later one stays
        latest = [row for row in failed if newest[row.path] is row]
        running = await self._records.summaries(_RUNNING, limit=SHOWN)
        queues = (await self.queues(now)).queues
        inbox = await self.inbox(before=None, limit=SHOWN, shown=shown)
        missed, upcoming = await self._schedule_times(now)
        return Overview(
            failed=FailedLately(
                since=moment(now - LATELY),
                count=await self._records.count(lately),
                executions=[documents.summary(row) for row in latest[:SHOWN]],
                times=dict(Counter(row.path for row in failed)),
            ),
            forms=inbox,
            stuck=[queue for queue in queues if queue.waiting and not queue.slots],
            missed=missed,
            running=RunningNow(
                count=await self._records.count(_RUNNING),
                paused=await self._records.count(_PAUSED),
                executions=[documents.summary(row) for row in running],
            ),
            next_times=upcoming,
        )

    async def _schedule_times(self, now: float) -> tuple[list[MissedTime], list[MissedTime]]:
        """Times of schedules that were missed lately, and those that come next."""
        rows = await self._triggers.of_kind("Schedule", limit=SCHEDULES_LOOKED_AT)
        times = await self._triggers.last_times([row.path for row in rows], limit=20)
        missed = [(one.time, one.path, one.reason) for one in times if one.outcome == "missed"]
        lately = sorted((one for one in missed if one[0] >= now - LATELY), reverse=True)
        upcoming = sorted((row.next_at, row.path, "") for row in rows if row.next_at is not None)

        def shown(found: list[tuple[float, str, str]]) -> list[MissedTime]:
            return [
                MissedTime(schedule=path, time=moment(time), reason=reason)
                for time, path, reason in found[:SHOWN]
            ]

        return shown(lately), shown(upcoming)


def forms_of(execution_id: ExecutionId, state: ExecutionState) -> list[Form]:
    """The forms that wait in an execution."""
    found = []
    for run in state.runs.values():
        if run.listens is None or not run.listens.form:
            continue
        shown = documents.listening(run, state)
        found.append(documents.of(Form, shown, run, state, execution_id=execution_id))
    return found
