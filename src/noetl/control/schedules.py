"""Schedules: executions that are started at times, each exactly once, by any number of servers.

There is no leader and no lock. Each schedule has one row with a revision: up to which time all is
decided (`since`), what runs, and when a server has to look next. A server whose timer fires reads
the row, decides one turn (`decide`, a pure function), and stores it on condition that the row still
has that revision, together with the first events of the execution that it starts. Of several
servers that decide the same, one is stored; the others see that the row has moved, and look again.
So a server may die at any moment: what it decided is stored whole or not at all, and a row that is
still due is found by another server.

What makes a turn:

* a time that waits (`buffered`) is started when nothing runs, and nothing would cancel it;
* a time that is due is started, or skipped, or made to wait, as `overlap` says;
* a time that is decided later than the `catchup_window` is missed;
* an execution that failed pauses the schedule, if it is to.

Each time has a row with its outcome. The idempotency key of an execution is its schedule
and its time, so that not even a mistake here could start a time twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from noetl.control.documents import moment
from noetl.control.trigger_documents import (
    ATTEMPTS_MAX,
    TriggerDocuments,
    TriggerServices,
    TriggerState,
)
from noetl.control.zones import zone_of
from noetl.errors import BadRequest, Conflict, Finished, NoetlError, NotFound, StoreError
from noetl.model import calendar
from noetl.model.ids import ExecutionId, derive
from noetl.model.state import TERMINAL, ExecutionState
from noetl.model.triggers import Schedule, TimeOutcome, TriggerChange, TriggerRow, TriggerTime
from noetl.store.catalog import CatalogEntry
from noetl.store.records import Records
from noetl.templates import Scope, compile_value

if TYPE_CHECKING:
    from noetl.dsl import Compiled

logger = logging.getLogger(__name__)

LEEWAY_SECONDS = 10.0
"""A time decided so soon after it was due is never missed, whatever `catchup_window` says."""
RECHECK_SECONDS = 30.0
"""While times wait for the end of an execution, how often it is checked for: news may be lost."""
MISSED_MAX = 1000
"""More missed times in a row than this are one row."""
BACKFILL_MAX = 10_000
FIRST_MOMENT = datetime(2, 1, 1, tzinfo=UTC).timestamp()
"""Before it, some zones have no local time."""


class ScheduleState(TriggerState, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a schedule beside its document."""

    since: float
    """All times up to this one are decided, or were before it was there."""
    running: tuple[ExecutionId, ...] = ()
    """Executions that it started and that are not known to have ended."""
    waiting: bool = False
    """Some times are buffered."""


class Turn(NamedTuple):
    """What is decided about a schedule at one moment. At most one execution is started."""

    state: ScheduleState
    next_at: float | None
    times: tuple[TriggerTime, ...] = ()
    start: TriggerTime | None = None
    """The time to start; its row says `started` once there is an execution."""
    cancel: tuple[ExecutionId, ...] = ()
    """Executions to cancel first; then the schedule is decided again."""


def decide(
    schedule: Schedule,
    zone: tzinfo,
    state: ScheduleState,
    *,
    now: float,
    ended: dict[ExecutionId, str],
    buffered: list[TriggerTime],
) -> Turn:
    """What is to be done now. `ended` has the status of each running execution that has ended;
    `buffered` the oldest times that wait.
    """
    running = tuple(one for one in state.running if one not in ended)
    failed = [one for one, status in ended.items() if status == "FAILED"]
    state = msgspec.structs.replace(state, running=running, waiting=bool(buffered))
    if schedule.pause_on_failure and failed and state.status == "active":
        reason = f"execution {failed[-1]} failed (pause_on_failure)"
        return Turn(msgspec.structs.replace(state, status="paused", reason=reason), None)
    if state.status != "active":
        return Turn(state, None)
    if schedule.overlap == "cancel_other" and buffered:
        # What waits would be cancelled at once by a time that is due: that one is first.
        due = _decide_due(schedule, zone, state, now, len(buffered))
        if due.start is not None or due.cancel:
            return due
    is_free = not running or schedule.overlap == "allow_all"
    if buffered and is_free:
        state = msgspec.structs.replace(state, waiting=len(buffered) > 1)
        return Turn(state, _after_start(schedule, zone, state, now), start=buffered[0])
    return _decide_due(schedule, zone, state, now, len(buffered))


def _decide_due(
    schedule: Schedule, zone: tzinfo, state: ScheduleState, now: float, waiting: int
) -> Turn:
    decided: list[TriggerTime] = []
    since, running = state.since, state.running
    coming = _due(schedule, zone, since)
    time, due = next(coming, (None, None))
    missed = 0
    while time is not None and due is not None and due <= now:
        following, following_due = next(coming, (None, None))
        outcome: TimeOutcome = "skipped"
        reason = ""
        if now - due > max(schedule.catchup_window, LEEWAY_SECONDS):
            missed += 1
            if missed > MISSED_MAX:
                return _leap(schedule, state, now, decided)
            outcome = "missed"
            reason = f"no server was there until {moment(now)}, and catchup_window is over"
        elif schedule.overlap == "cancel_other" and following_due and following_due <= now:
            reason = "a later time was due as well"
        elif schedule.overlap == "cancel_other" and running:
            return Turn(state, now, cancel=running)
        elif schedule.overlap in ("allow_all", "cancel_other") or not (running or waiting):
            outcome = "started"
        elif schedule.overlap == "buffer_all" or (schedule.overlap == "buffer_one" and not waiting):
            outcome = "buffered"
            waiting += 1
        elif schedule.overlap == "buffer_one":
            reason = "another time waits already for the end of the execution that runs"
        else:
            reason = f"execution {running[0]} was running" if running else "others waited"
        what = TriggerTime(
            path=schedule.path, time=time, outcome=outcome, reason=reason, decided_at=now
        )
        since, time, due = time, following, following_due
        if outcome == "started":
            state = msgspec.structs.replace(state, since=since, waiting=waiting > 0)
            return Turn(state, _after_start(schedule, zone, state, now), tuple(decided), what)
        decided.append(what)
    if waiting and running:
        due = now + RECHECK_SECONDS if due is None else min(due, now + RECHECK_SECONDS)
    state = msgspec.structs.replace(state, since=since, waiting=waiting > 0)
    return Turn(state, due, tuple(decided))


def _after_start(
    schedule: Schedule, zone: tzinfo, state: ScheduleState, now: float
) -> float | None:
    """When to look again at a schedule of which an execution is being started."""
    due = next((due for _, due in _due(schedule, zone, state.since)), None)
    if not state.waiting:
        return due
    if schedule.overlap == "allow_all":
        return now
    return now + RECHECK_SECONDS if due is None else min(due, now + RECHECK_SECONDS)


def _due(schedule: Schedule, zone: tzinfo, since: float) -> Iterator[tuple[float, float]]:
    """Times and when each is due."""
    for time in calendar.times_after(schedule, zone, since):
        yield time, calendar.due_at(schedule, zone, time)


def _leap(schedule: Schedule, state: ScheduleState, now: float, decided: list[TriggerTime]) -> Turn:
    """One row for all missed times, where there are too many."""
    horizon = now - max(schedule.catchup_window, LEEWAY_SECONDS) - schedule.jitter
    first = msgspec.structs.replace(
        decided[0],
        reason=f"no server was there; neither this time nor any before {moment(horizon)} was"
        " started. `noetl schedules backfill` starts them.",
    )
    return Turn(msgspec.structs.replace(state, since=horizon), now, (first,))


def key_of(path: str, time: float) -> str:
    """The idempotency key of the execution of a time."""
    return f"schedule/{path}/{moment(time)}"


class Schedules(TriggerDocuments[Schedule, ScheduleState]):
    """Everything one can do with schedules."""

    document = Schedule
    state = ScheduleState

    def __init__(
        self,
        services: TriggerServices,
        records: Records,
        notices: Callable[[Schedule, TriggerTime], tuple[TriggerRow, ...]],
        count: Callable[[str, float | None], None],
    ) -> None:
        """`notices` makes the rows that are written with a missed time; `count` counts outcomes,
        and how late each time was started.
        """
        super().__init__(services)
        self._records = records
        self._notices = notices
        self._count = count

    def note_end(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        """An execution has ended here: times of its schedule may have waited for that."""
        if state.actor is not None and state.actor.kind == "schedule":
            self._triggers.touch(self.kind, state.actor.name)

    async def settle(self, row: TriggerRow) -> None:
        await self._decide_all(row.path)

    async def _decide_all(self, path: str) -> None:
        """Decide all that is to be decided about a schedule now."""
        for _ in range(ATTEMPTS_MAX):
            row = await self._rows.get(path)
            if row is None or row.kind != self.kind or not await self._advance(row):
                return

    async def _advance(self, row: TriggerRow) -> bool:
        """One turn; whether there may be another."""
        now = self._clock.now()
        state = self.decoded(row)
        schedule = await self.spec(state.digest)
        zone = _zone(schedule)
        ended = await self._ended(state.running)
        buffered = await self._rows.buffered(row.path, limit=2) if state.waiting else []
        turn = decide(schedule, zone, state, now=now, ended=ended, buffered=buffered)
        if turn.cancel:
            await self._cancel(schedule, turn.cancel)
            if len(await self._ended(turn.cancel)) == len(turn.cancel):
                return True
            # What undoes its work takes its time; its end is heard of, or found by looking.
            turn = turn._replace(next_at=now + RECHECK_SECONDS)
        if turn.start is not None:
            await self._start(schedule, zone, row, turn)
            return True
        if turn.state == state and turn.next_at == row.next_at and not turn.times:
            return False
        is_kept = await self._rows.change(self._change(schedule, row, turn.state, turn))
        if is_kept:
            self._count_all(turn.times)
            if turn.state.status == "paused" and state.status == "active":
                logger.warning(
                    "a schedule is paused: %s", turn.state.reason, extra={"path": row.path}
                )
        return not is_kept or (turn.next_at is not None and turn.next_at <= now)

    async def _ended(self, executions: Iterable[ExecutionId]) -> dict[ExecutionId, str]:
        """The status of each of these that runs no more."""
        ended = {}
        for execution_id in executions:
            summary = await self._records.summary(execution_id)
            status = "gone" if summary is None else summary.status
            if status in (*TERMINAL, "gone"):
                ended[execution_id] = status
        return ended

    async def _cancel(self, schedule: Schedule, others: Iterable[ExecutionId]) -> None:
        reason = "the next time of its schedule is due"
        for execution_id in others:
            with suppress(Finished, NotFound):
                await self._executions.cancel(
                    execution_id, reason, actor=self._actor(schedule.path)
                )

    async def _start(
        self,
        schedule: Schedule,
        zone: tzinfo,
        row: TriggerRow,
        turn: Turn,
        key: str | None = None,
    ) -> ExecutionId | None:
        """Start the execution of a time, with all that the turn decides. None: somebody else was
        faster, or it cannot be started, and its row says why.
        """
        assert turn.start is not None
        what = turn.start

        def stored(execution_id: ExecutionId) -> TriggerChange:
            started = msgspec.structs.replace(
                what, outcome="started", execution_id=execution_id, decided_at=self._clock.now()
            )
            running = (*turn.state.running, execution_id)
            state = msgspec.structs.replace(turn.state, running=running)
            return self._change(schedule, row, state, turn, started)

        try:
            execution_id = await self.start(
                schedule.path,
                schedule.playbook,
                rendered(schedule, zone, what, turn.state.version),
                key=key or key_of(schedule.path, what.time),
                trigger=stored,
            )
        except StoreError:
            raise
        except NoetlError as error:
            now_there = await self._rows.get(row.path)
            if isinstance(error, Conflict) and (
                now_there is None or now_there.revision != row.revision
            ):
                return None
            reason = f"it could not be started: {error}"
            missed = msgspec.structs.replace(
                what, outcome="missed", reason=reason, decided_at=self._clock.now()
            )
            before = await self._rows.times(row.path, before=what.time, limit=1)
            is_known = [(one.outcome, one.reason) for one in before] == [("missed", reason)]
            if await self._rows.change(self._change(schedule, row, turn.state, turn, missed)):
                # Once, not at every time; and who asks for a run now is told by the answer.
                if not is_known and what.origin != "run":
                    logger.warning("a schedule starts nothing: %s", error, extra={"path": row.path})
                self._count_all((*turn.times, missed))
            return None
        self._count_all(turn.times)
        late = self._clock.now() - calendar.due_at(schedule, zone, what.time)
        self._count("started", late if what.origin == "schedule" else None)
        return execution_id

    def _change(
        self,
        schedule: Schedule,
        row: TriggerRow,
        state: ScheduleState,
        turn: Turn,
        *more: TriggerTime,
    ) -> TriggerChange:
        """What a turn writes; what is told of missed times goes along."""
        times = (*turn.times, *more)
        notices = tuple(
            notice
            for time in times
            if time.outcome == "missed"
            for notice in self._notices(schedule, time)
        )
        changed = msgspec.structs.replace(
            row, next_at=turn.next_at, state=msgspec.json.encode(state)
        )
        return TriggerChange(row=changed, times=times, rows=notices)

    def _count_all(self, times: Iterable[TriggerTime]) -> None:
        for time in times:
            self._count(time.outcome, None)

    # --- What people do with schedules ---

    def next_look(self, document: Schedule, state: ScheduleState) -> float | None:
        if state.status != "active":
            return None
        if state.waiting:
            return self._clock.now()
        return next((due for _, due in _due(document, _zone(document), state.since)), None)

    def renewed(
        self, document: Schedule, digest: str, version: int, old: ScheduleState | None
    ) -> ScheduleState:
        """What ran goes on; a pause holds. Times before this moment are the old version's."""
        now = self._clock.now()
        if old is None:
            return ScheduleState(version=version, digest=digest, since=now)
        is_same = old.digest == digest and old.status != "deleted"
        since = old.since if is_same or old.status == "paused" else now
        made = super().renewed(document, digest, version, old)
        return msgspec.structs.replace(made, since=since)

    async def register(self, text: str, compiled: Compiled) -> CatalogEntry:
        """Keep a version. What is due by now is the old version's."""
        assert isinstance(compiled.trigger, Schedule)
        _zone(compiled.trigger)
        await self._decide_all(compiled.trigger.path)
        return await super().register(text, compiled)

    def upcoming(self, schedule: Schedule, state: ScheduleState, count: int) -> list[float]:
        """Its next times, whether it is paused or not."""
        since = max(state.since, self._clock.now()) if state.status == "paused" else state.since
        return list(islice(calendar.times_after(schedule, _zone(schedule), since), count))

    async def lacks(self, document: Schedule) -> str:
        _, state = await self.find(document.path)
        if state.status == "active" and not self.upcoming(document, state, 1):
            return "It is never due: its `end` has passed, or no time lies before it."
        return await super().lacks(document)

    def resumed(self, state: ScheduleState) -> ScheduleState:
        """What would have been due meanwhile is not started, unless by `backfill`."""
        return msgspec.structs.replace(super().resumed(state), since=self._clock.now())

    async def delete(self, path: str) -> None:
        """Times that waited are skipped: registered again, it would start them."""
        await super().delete(path)
        while waiting := await self._rows.buffered(path, limit=MISSED_MAX):
            now = self._clock.now()
            times = tuple(
                msgspec.structs.replace(
                    one, outcome="skipped", reason="the schedule was deleted", decided_at=now
                )
                for one in waiting
            )
            await self._rows.change(TriggerChange(times=times))
            self._count_all(times)

    async def start_now(self, path: str, *, key: str | None = None) -> tuple[ExecutionId, bool]:
        """An execution now, whatever the times, the overlap and a pause say, and whether it was
        known: under a key that was used before for this schedule, it is the one started then.
        """
        own = None if key is None else f"schedule/{derive(path, key)}"
        for _ in range(ATTEMPTS_MAX):
            row = await self.row(path)
            # After the row: whoever starts it now moves that.
            known = None if own is None else await self._records.by_key(own)
            if known is not None:
                return known.execution_id, True
            state = self.decoded(row)
            schedule = await self.spec(state.digest)
            what = TriggerTime(
                path=path, time=round(self._clock.now(), 3), outcome="started", origin="run"
            )
            turn = Turn(state, row.next_at, start=what)
            found = await self._start(schedule, _zone(schedule), row, turn, own)
            if found is not None:
                return found, False
            rows = await self._rows.times_between(path, what.time, what.time)
            if rows and rows[0].outcome == "missed":
                raise Conflict(rows[0].reason)
        raise self._contended(path)

    async def backfill(
        self, path: str, first: float, last: float, *, dry_run: bool
    ) -> tuple[list[float], list[TriggerTime]]:
        """Times from the first moment to the last that are to be started now, and what became of
        the others. They are started one after the other, or with `allow_all` at once. What was
        started before is not started again, however often this is called.
        """
        schedule, state = await self.find(path)
        horizon = state.since if state.status == "active" else self._clock.now()
        zone, last = _zone(schedule), min(last, horizon)
        wanted = []
        for time in calendar.times_after(schedule, zone, max(first - 1e-3, FIRST_MOMENT)):
            if time > last:
                break
            wanted.append(time)
            if len(wanted) > BACKFILL_MAX:
                raise BadRequest(
                    f"these are more than {BACKFILL_MAX:,} times. Choose a shorter span."
                )
        known = {
            one.time: one
            for one in await self._rows.times_between(path, first, last)
            if one.outcome in ("started", "buffered")
        }
        new = [time for time in wanted if time not in known]
        if new and not dry_run:
            now = self._clock.now()
            rows = tuple(
                TriggerTime(
                    path=path, time=time, outcome="buffered", origin="backfill", decided_at=now
                )
                for time in new
            )
            await self.change(
                path, lambda state: msgspec.structs.replace(state, waiting=True), rows
            )
        return new, [known[time] for time in wanted if time in known]


def _zone(schedule: Schedule) -> tzinfo:
    found = zone_of(schedule.timezone)
    if found is None:
        raise BadRequest(
            f'this machine does not know the time zone "{schedule.timezone}": install tzdata.'
        )
    return found


def rendered(schedule: Schedule, zone: tzinfo, what: TriggerTime, version: int) -> dict[str, Any]:
    """The workload of the execution of a time. Raises EvaluationFailed."""
    previous = calendar.previous_before(schedule, zone, what.time)
    about = {
        "path": schedule.path,
        "version": version,
        "time": local(what.time, zone),
        "utc": moment(what.time),
        "timezone": schedule.timezone,
        "previous": None if previous is None else local(previous, zone),
        "origin": what.origin,
    }
    scope = Scope(
        {"schedule": about},
        now=datetime.fromtimestamp(what.time, UTC),
        seed=key_of(schedule.path, what.time),
    )
    found = compile_value(schedule.workload).render(scope)
    assert isinstance(found, dict)
    return found


def local(time: float, zone: tzinfo) -> str:
    """RFC 3339, in the local time of a zone."""
    return datetime.fromtimestamp(time, zone).isoformat()
