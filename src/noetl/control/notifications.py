"""Notifications: playbooks that tell people how other executions went.

A rule (`kind: Notification`) says what to tell of. When an execution begins, waits or ends, or a
time of a schedule is missed, a row for each rule that it concerns is written in the same
transaction: a notice. Whichever server looks after due rows (`control/triggers.py`) starts the
rule's playbook for it, in one transaction with the row that says that it was told. So a server that
dies loses no notice, and none is told twice.

* `failed`, `recovered`, `waiting`, `missed`: the notice is due at once.
* `late`: it is due when the execution should have ended; one that has ended is dropped then.
* Of one path and one kind of error one message is started in a `window`: the row of the window is
  written with the execution that tells it, on condition that it is not there.
* `recovered` needs to know that a path was failing: a row of its own says so, until it is told.
  Without that row a failure is news, also within the window of one before.
* A rule that was registered at one server is not known to the others until they hear of it or look
  for themselves, and what they commit meanwhile has no notices. So the row of the rule is due once
  all of them must have looked: the server that settles it then writes the missing notices.

An execution that a notification started is never told of: a message that cannot be sent would be
told of by another that cannot be sent. It is seen like any execution that failed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from noetl.control.clock import heard
from noetl.control.documents import moment
from noetl.control.live import fold
from noetl.control.records import matching, unless_lost
from noetl.control.trigger_documents import (
    TriggerDocuments,
    TriggerServices,
    TriggerState,
    payload_of,
    scope_of,
)
from noetl.control.triggers import LOOK_SECONDS
from noetl.errors import BadRequest, Conflict, EvaluationFailed, NoetlError, NotFound, StoreError
from noetl.model.events import (
    Event,
    ExecutionProcessed,
    ExecutionRequested,
    StepWaiting,
    decode,
)
from noetl.model.execution_query import parse
from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState
from noetl.model.triggers import (
    NoticeKind,
    Notification,
    Schedule,
    TriggerChange,
    TriggerRow,
    TriggerTime,
)
from noetl.store.catalog import CatalogEntry
from noetl.store.retention import Ended

if TYPE_CHECKING:
    from noetl.dsl import Compiled
    from noetl.store.log import Log
    from noetl.store.records import Records
    from noetl.store.retention import Retention

logger = logging.getLogger(__name__)

NOTICE = "Notice"
"""The kind of their rows."""
FAILING, WINDOW = "failing", "window"
IN_ORDER: tuple[NoticeKind, ...] = ("failed", "recovered")
"""Whether these are told depends on what was told of the path before."""
HEARD_SECONDS = 2 * LOOK_SECONDS
"""Seconds after its registration by which every server knows a rule, or has stopped."""
TOLD_OF = ExecutionRequested | ExecutionProcessed | StepWaiting
UNFINISHED = parse("status:active", 0.0)
FROM_OUTSIDE = ("form", "event")
"""What a step waits for that somebody is told of; the time of a next try comes by itself."""
RULES_MAX = 10_000
PROBLEM_MAX = 500
OURS = "noetl/notify/"
"""The prefix of the playbooks that come with this package."""


class NotificationState(TriggerState, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a rule beside its document."""

    problem: str = ""
    """Why the last message could not be made."""
    unheard_since: float | None = None
    """When the rule began to apply, if other servers may not know it yet."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a rule tells people of."""

    on: NoticeKind
    path: str
    """The path of the playbook; of a missed time, that of the schedule."""
    at: float
    execution_id: ExecutionId | None = None
    version: int | None = None
    status: str = ""
    step: str = ""
    kind: str = ""
    """Of the error."""
    message: str = ""
    labels: dict[str, str] = {}
    started_at: float | None = None
    schedule: str = ""
    time: float | None = None
    """Of the schedule."""


_decode_notice = msgspec.json.Decoder(Notice).decode


class Notifications(TriggerDocuments[Notification, NotificationState]):
    """Everything one can do with notifications."""

    document = Notification
    state = NotificationState

    def __init__(
        self,
        services: TriggerServices,
        log: Log,
        records: Records,
        retention: Retention,
        count: Callable[[NoticeKind, str], None],
    ) -> None:
        """`count` counts what became of each notice."""
        super().__init__(services)
        self._log = log
        self._records = records
        self._retention = retention
        self._count = count
        self.rules: list[Notification] = []
        """Those that apply, as far as this process knows."""
        self._stale = asyncio.Event()
        self._settling: dict[str, asyncio.Task[None]] = {}
        """By path of a rule: its failures and recoveries are being told in order."""

    # --- What is told of ---

    def stale(self) -> None:
        """Rules may have changed."""
        self._stale.set()

    async def refresh(self) -> None:
        """Read which rules there are."""
        self._stale.clear()
        found = await self.all("", "", RULES_MAX)
        self.rules = [rule for rule, state in found if state.status == "active"]

    async def run(self) -> None:
        """Follow the rules, for ever."""
        while True:
            await heard(self._stale, self._triggers.look_seconds)
            try:
                await self.refresh()
            except StoreError as error:
                logger.warning("notifications could not be read: %s", error)
                await self._clock.sleep(1.0)
                self._stale.set()

    def of_execution(
        self, execution_id: ExecutionId, state: ExecutionState, events: Sequence[Event]
    ) -> tuple[TriggerRow, ...]:
        """Rows to write with these events."""
        return tuple(_notices(self.rules, execution_id, state, events))

    def noticed(self, rows: Sequence[TriggerRow]) -> None:
        """These notices are stored."""
        self._triggers.announce(min(row.next_at or 0.0 for row in rows))

    def of_missed(self, schedule: Schedule, time: TriggerTime) -> tuple[TriggerRow, ...]:
        """Rows to write with a time that was missed."""
        notice = Notice(
            on="missed",
            path=schedule.playbook.path,
            at=time.decided_at,
            message=time.reason,
            schedule=schedule.path,
            time=time.time,
        )
        return tuple(
            _row(rule, notice, notice.at)
            for rule in self.rules
            if "missed" in rule.on
            and not rule.labels
            and any(_fits(rule, path) for path in (schedule.path, schedule.playbook.path))
        )

    # --- Rules that servers had not heard of ---

    def next_look(self, document: Notification, state: NotificationState) -> float | None:
        if state.unheard_since is None or state.status != "active":
            return None
        return state.unheard_since + HEARD_SECONDS

    def renewed(
        self, document: Notification, digest: str, version: int, old: NotificationState | None
    ) -> NotificationState:
        return self._begun(super().renewed(document, digest, version, old))

    def resumed(self, state: NotificationState) -> NotificationState:
        return self._begun(super().resumed(state))

    def _begun(self, state: NotificationState) -> NotificationState:
        has_others = math.isfinite(self._triggers.look_seconds)
        since = self._clock.now() if has_others else None
        return msgspec.structs.replace(state, unheard_since=since)

    async def settle(self, row: TriggerRow) -> None:
        if row.kind == NOTICE:
            await self._settle_notice(row)
            return
        try:
            rule, state = await self.find(row.path)
        except NotFound:
            return
        # Write the notices of what servers did that had not heard of the rule.
        due = self.next_look(rule, state)
        if due is None or state.unheard_since is None or due > self._clock.now():
            return
        rows = await self._overlooked(rule, state.unheard_since)
        if rows:
            logger.info(
                "a notification was not known to every server at once; %d notices are written now",
                len(rows),
                extra={"path": rule.path},
            )
            await self._rows.change(TriggerChange(rows=tuple(rows)))

        def heard(now: NotificationState) -> NotificationState:
            since = None if now.unheard_since == state.unheard_since else now.unheard_since
            return msgspec.structs.replace(now, unheard_since=since)

        await self.change(rule.path, heard)

    async def _overlooked(self, rule: Notification, since: float) -> list[TriggerRow]:
        """Notices since then of which nothing was told, nor was held back by what was told."""
        rows, told = [], []
        for execution_id in await self._moved_since(rule, since):
            for row in await unless_lost(self._happened(rule, execution_id, since)) or ():
                notice = _decode_notice(row.state)
                if await self._records.by_key(_start_key(row)) is None:
                    rows.append((row, notice))
                else:
                    told.append(notice)
        return [row for row, notice in rows if not _is_covered(rule, notice, told)]

    async def _happened(
        self, rule: Notification, execution_id: ExecutionId, since: float
    ) -> list[TriggerRow]:
        """The notices of an execution since then."""
        loaded = await self._log.load(execution_id)
        if loaded is None:
            return []
        types = [str(kind.__struct_config__.tag) for kind in get_args(TOLD_OF)]
        found = await self._log.events(execution_id, types=types)
        events = [decode(one.body) for one in found if one.at >= since]
        return list(_notices([rule], execution_id, fold(loaded), events))

    async def _moved_since(self, rule: Notification, since: float) -> list[ExecutionId]:
        """Executions that ended after that in a way that the rule tells of; those that began after
        it or wait, if it tells of such."""
        found = []
        ends = {"FAILED"} if {"failed", "recovered"} & {*rule.on} else set()
        ends |= {"COMPLETED"} if "recovered" in rule.on else set()
        last: Ended | None = None
        while ends and (
            page := await self._retention.ended(before=math.inf, since=since, after=last)
        ):
            found += [one.execution_id for one in page if one.status in ends]
            last = page[-1]
        if not {"late", "waiting"} & {*rule.on}:
            return found
        async for one in matching(self._records, UNFINISHED):
            if one.waits in FROM_OUTSIDE or one.requested_at >= since:
                found.append(one.execution_id)
        return found

    # --- Telling ---

    async def _settle_notice(self, row: TriggerRow) -> None:
        """Tell what a notice says, or drop it."""
        current = await self._rows.get(row.path, row.key)
        if current is None:
            return
        gone = TriggerChange(row=current, gone=True)
        if current.key.startswith((WINDOW, FAILING)):
            if current.next_at is not None and current.next_at <= self._clock.now():
                await self._rows.change(gone)
            return
        notice = _decode_notice(current.state)
        try:
            rule, state = await self.find(row.path)
        except NotFound:
            await self._rows.change(gone)
            return
        if state.status != "active" or not await self._still_holds(notice):
            await self._rows.change(gone)
            return
        if "recovered" not in rule.on or notice.on not in IN_ORDER:
            await self._settle_one(rule, notice, current)
            return
        if rule.path not in self._settling:
            settling = asyncio.create_task(self._settle_in_order(rule))
            self._settling[rule.path] = settling
            settling.add_done_callback(lambda _: self._settling.pop(rule.path))
        await self._settling[rule.path]

    async def _settle_in_order(self, rule: Notification) -> None:
        """Settle failures and recoveries as they happened: they are due together, but a path must
        be known to fail before it can work again, and to work again before it can fail anew."""
        found: list[TriggerRow] = []
        for on in IN_ORDER:
            after = (rule.path, f"{on}/")
            while page := await self._rows.of_kind(NOTICE, prefix=rule.path, after=after):
                ours = [one for one in page if one.path == rule.path and _is_of(one, on)]
                found += ours
                if len(ours) < len(page):
                    break
                after = (rule.path, page[-1].key)
        by_path: dict[str, list[tuple[Notice, TriggerRow]]] = {}
        notices = [(_decode_notice(row.state), row) for row in found]
        for notice, row in sorted(notices, key=lambda one: _order(one[0])):
            by_path.setdefault(notice.path, []).append((notice, row))

        async def settle(told: list[tuple[Notice, TriggerRow]]) -> None:
            for notice, row in told:
                await self._settle_one(rule, notice, row)

        for problem in await asyncio.gather(*map(settle, by_path.values()), return_exceptions=True):
            if problem is not None:
                raise problem

    async def _settle_one(self, rule: Notification, notice: Notice, row: TriggerRow) -> None:
        gone = TriggerChange(row=row, gone=True)
        guard, rows = await self._guard(rule, notice)
        if notice.on not in rule.on or guard is None:
            # It is remembered that the path fails, and no more.
            await self._rows.change(msgspec.structs.replace(gone, rows=rows))
            self._count(notice.on, "repeated")
            return
        if guard.row is None:
            guard = msgspec.structs.replace(gone, rows=rows)
        await self._tell(rule, notice, row, msgspec.structs.replace(guard, rows=rows))
        # If the row is still there, its guard holds back the next look at it.
        await self._rows.change(gone)

    async def _still_holds(self, notice: Notice) -> bool:
        if notice.on not in ("late", "waiting") or notice.execution_id is None:
            return True
        found = await self._records.summary(notice.execution_id)
        if found is None or found.ended_at is not None:
            return False
        return notice.on == "late" or found.waits in FROM_OUTSIDE

    async def _guard(
        self, rule: Notification, notice: Notice
    ) -> tuple[TriggerChange | None, tuple[TriggerRow, ...]]:
        """What is written with the message, so that it is told once; None: it was told. And rows
        to keep either way.
        """
        rows: tuple[TriggerRow, ...] = ()
        is_news = False
        if "recovered" in rule.on and notice.on in IN_ORDER:
            failing = f"{FAILING}/{_digest(notice.path)}"
            known = await self._rows.get(rule.path, failing)
            if notice.on == "recovered":
                if known is None or float(known.state) > notice.at:
                    return None, ()
                return TriggerChange(row=known, gone=True), ()
            # What people were told last is that it works, whatever they were told before.
            is_news = known is None
            state = repr(notice.at).encode()
            rows = (TriggerRow(path=rule.path, key=failing, kind=NOTICE, state=state),)
        if not rule.window or notice.on == "waiting":
            return TriggerChange(), rows
        key = _window_key(notice)
        now = self._clock.now()
        found = await self._rows.get(rule.path, key)
        is_open = found is not None and found.next_at is not None and found.next_at > now
        if is_open and not is_news:
            return None, rows
        window = found or TriggerRow(path=rule.path, key=key, kind=NOTICE)
        window = msgspec.structs.replace(window, next_at=now + rule.window)
        return TriggerChange(row=window), rows

    async def _tell(
        self, rule: Notification, notice: Notice, row: TriggerRow, guard: TriggerChange
    ) -> None:
        key = _start_key(row)
        try:
            if rule.target.playbook.version is None:
                await self._keep_ours(rule)
            scope = scope_of("notification", view(rule, notice), notice.at, key)
            await self.start(
                rule.path,
                rule.target.playbook,
                payload_of(rule.target, "notification", scope),
                key=key,
                trigger=lambda _: guard,
            )
        except Conflict:
            return  # Another server has told it, or tells another of the same window.
        except (BadRequest, EvaluationFailed) as error:
            logger.error('notification "%s" tells nothing: %s', rule.path, error)
            self._count(notice.on, "refused")
            await self._say(rule.path, f"a message could not be made: {error}")
            return
        except NoetlError as error:
            await self._say(rule.path, f"messages wait: {error}")
            raise
        self._count(notice.on, "sent")
        await self._say(rule.path, "")

    async def _say(self, path: str, problem: str) -> None:
        problem = problem[:PROBLEM_MAX]
        if (await self.find(path))[1].problem != problem:
            await self.change(path, lambda state: msgspec.structs.replace(state, problem=problem))

    async def _keep_ours(self, rule: Notification) -> None:
        """A playbook of this package is in the catalog when a rule needs it."""
        name = rule.target.playbook.path.removeprefix(OURS)
        file = files("noetl") / "playbooks" / f"{name}.yaml"
        if rule.target.playbook.path == OURS + name and "/" not in name and file.is_file():
            await self._catalog.register(file.read_text(encoding="utf-8"))

    # --- What people do with notifications ---

    async def register(self, text: str, compiled: Compiled) -> CatalogEntry:
        assert isinstance(compiled.trigger, Notification)
        await self._keep_ours(compiled.trigger)
        entry = await super().register(text, compiled)
        await self.refresh()
        return entry

    async def delete(self, path: str) -> None:
        """It tells nothing any more, and what it had told of is forgotten: registered again, it
        begins anew.
        """
        await super().delete(path)
        await self._rows.forget(path, NOTICE)

    def changed(self, path: str) -> None:
        super().changed(path)
        self.stale()


def _fits(rule: Notification, path: str) -> bool:
    return not rule.paths or any(fnmatchcase(path, pattern) for pattern in rule.paths)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _notices(
    rules: Sequence[Notification],
    execution_id: ExecutionId,
    state: ExecutionState,
    events: Sequence[Event],
) -> Iterator[TriggerRow]:
    """The notices of these rules for an execution in this state, after these events."""
    is_ours = state.actor is not None and state.actor.kind == "notification"
    # What a playbook calls is told of by the playbook that called it.
    if is_ours or state.parent is not None:
        return
    error = state.failure
    changed = msgspec.structs.replace
    for event in events:
        if not isinstance(event, TOLD_OF):
            continue
        notice = Notice(
            on="failed",
            path=state.path,
            at=event.at,
            execution_id=execution_id,
            version=state.version,
            status=state.status,
            labels=state.labels,
            started_at=state.requested_at,
        )
        for rule in rules:
            if not (_fits(rule, state.path) and rule.labels.items() <= state.labels.items()):
                continue
            match event:
                case ExecutionRequested() if "late" in rule.on:
                    yield _row(rule, changed(notice, on="late"), event.at + rule.late)
                case StepWaiting(listens=listens) if listens is not None and "waiting" in rule.on:
                    yield _row(rule, changed(notice, on="waiting", step=event.step), event.at)
                case ExecutionProcessed(status="FAILED") if {"failed", "recovered"} & {*rule.on}:
                    failed = changed(
                        notice,
                        step=state.failed_step,
                        kind="" if error is None else error.kind,
                        message="" if error is None else error.message,
                    )
                    yield _row(rule, failed, event.at)
                case ExecutionProcessed(status="COMPLETED") if "recovered" in rule.on:
                    yield _row(rule, changed(notice, on="recovered"), event.at)


def _row(rule: Notification, notice: Notice, due: float) -> TriggerRow:
    about = notice.execution_id or f"{notice.schedule}/{notice.time!r}"
    return TriggerRow(
        path=rule.path,
        key=f"{notice.on}/{about}" + (f"/{notice.step}" if notice.on == "waiting" else ""),
        kind=NOTICE,
        next_at=due,
        state=msgspec.json.encode(notice),
    )


def _start_key(row: TriggerRow) -> str:
    """The idempotency key of the execution that tells a notice."""
    return f"notification/{row.path}/{row.key}"


def _window_key(notice: Notice) -> str:
    return f"{WINDOW}/{_digest(notice.on, notice.schedule, notice.path, notice.kind)}"


def _is_of(row: TriggerRow, on: NoticeKind) -> bool:
    return row.key.startswith(f"{on}/")


def _order(notice: Notice) -> tuple[float, bool]:
    """In which failures and recoveries of a path happened."""
    return notice.at, notice.on == "recovered"


def _is_covered(rule: Notification, notice: Notice, told: Sequence[Notice]) -> bool:
    """Whether a notice needs no message of its own, because of what was told."""
    works_since = -math.inf
    if notice.on == "failed":
        recovered = [one.at for one in told if one.on == "recovered" and one.path == notice.path]
        works_since = max(recovered, default=-math.inf)
    return notice.at <= works_since or any(
        one.on != "waiting"
        and _window_key(one) == _window_key(notice)
        and abs(one.at - notice.at) < rule.window
        and one.at > works_since
        for one in told
    )


def _spoken(seconds: float) -> str:
    """A span of time, in the largest unit that makes it a whole number."""
    units = ((86400, "day"), (3600, "hour"), (60, "minute"))
    size, unit = next((one for one in units if seconds % one[0] == 0), (1, "second"))
    count = seconds / size
    return f"{count:g} {unit}" if count == 1 else f"{count:g} {unit}s"


def view(rule: Notification, notice: Notice) -> dict[str, Any]:
    """A notice as templates read it."""
    path, where = notice.path, f" (execution {notice.execution_id})" if notice.execution_id else ""
    step = f" in step {notice.step}" if notice.step else ""
    words = {
        "failed": (f"{path} failed", f"{path} failed{step}: {notice.message}"),
        "recovered": (f"{path} works again", f"{path} works again"),
        "late": (f"{path} is late", f"{path} has not ended after {_spoken(rule.late)}"),
        "waiting": (f"{path} waits for an answer", f"{path} waits for an answer{step}"),
        "missed": (
            f"{notice.schedule} missed a time",
            f"{notice.schedule} did not start {path} at {moment(notice.time)}: {notice.message}",
        ),
    }
    title, text = words[notice.on]
    return {
        "on": notice.on,
        "title": title,
        "text": text + where,
        "path": path,
        "version": notice.version,
        "execution_id": notice.execution_id,
        "status": notice.status,
        "step": notice.step,
        "error": {"kind": notice.kind, "message": notice.message} if notice.message else None,
        "labels": notice.labels,
        "started_at": moment(notice.started_at),
        "time": moment(notice.at),
        "schedule": notice.schedule,
        "rule": rule.path,
    }
