"""What an execution did, when: the line of each step run, its loops iteration by iteration, and the
chain of step runs that decided how long it took.

Reading a log takes as long as it is, so it is read once: what was found is kept for the executions
that were looked at last, and the next look reads only what is new. A loop keeps four numbers for
each iteration, so that the next failed one of a hundred thousand is found at once.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from noetl.control import documents
from noetl.control.documents import moment
from noetl.control.records import events, row_of
from noetl.engine.evolve import evolve
from noetl.errors import NotFound
from noetl.model import events as facts
from noetl.model.events import ChainRestarted, Event, PollIteration, decode
from noetl.model.ids import ExecutionId, StepRunId, TokenId
from noetl.model.retrospect import CriticalPath, CriticalRun
from noetl.model.state import ExecutionState
from noetl.model.timeline import (
    IterationDocument,
    IterationErrorDocument,
    IterationPage,
    IterationStatus,
    LoopLine,
    LoopMomentDocument,
    RunLine,
    Span,
    SpanKind,
    Timeline,
)

if TYPE_CHECKING:
    from noetl.store.log import Log
    from noetl.store.records import Records

KEPT = 16
"""Executions whose lines are kept."""
STRIPS_MAX = 50_000
"""Buckets of all loops of an answer: where there are many loops, each has fewer."""
ERRORS_MAX = 500
"""Different errors of a loop that are told apart; the rest count as one."""
OTHER_ERRORS = "other errors"
NOT_BEGUN, RUNNING, DONE, FAILED, CANCELLED = range(5)
STATUSES: tuple[IterationStatus | None, ...] = (None, "running", "done", "failed", "cancelled")


class Loop:
    """The iterations of one run, by number."""

    def __init__(self, run: Run, total: int | None) -> None:
        self.run = run
        self.total = total
        self.statuses = bytearray()
        self._begun = array("d")
        self._ended = array("d")
        self._seqs = array("q")
        """The event that ended an iteration; until then the one that began it."""
        self._errors: dict[str, list[int]] = {}
        """Message → how many failed with it, the first that did, and the message's number."""
        self._messages: list[str] = []
        self._error_of: dict[int, int] = {}
        """Failed iterations → number of the message."""

    def _grow(self, number: int) -> None:
        missing = number + 1 - len(self.statuses)
        if missing > 0:
            self.statuses.extend(bytes(missing))
            self._begun.extend([0.0] * missing)
            self._ended.extend([0.0] * missing)
            self._seqs.extend([0] * missing)

    def begin(self, number: int, seq: int, at: float) -> None:
        self._grow(number)
        if self.statuses[number] == NOT_BEGUN:
            self.statuses[number] = RUNNING
            self._begun[number] = at
            self._seqs[number] = seq

    def end(self, number: int, seq: int, at: float, error: str | None) -> None:
        self._grow(number)
        if self.statuses[number] == NOT_BEGUN:
            self._begun[number] = at
        self.statuses[number] = DONE if error is None else FAILED
        self._ended[number], self._seqs[number] = at, seq
        if error is not None:
            self._fail(number, error)

    def cancel_the_others(self) -> None:
        """The run has ended, and with it the iterations that had begun and not ended."""
        self.statuses = self.statuses.replace(bytes([RUNNING]), bytes([CANCELLED]))

    def _fail(self, number: int, message: str) -> None:
        if message not in self._errors:
            if len(self._errors) >= ERRORS_MAX:
                message = OTHER_ERRORS
            if message not in self._errors:
                self._errors[message] = [0, number, len(self._messages)]
                self._messages.append(message)
        counted = self._errors[message]
        counted[0] += 1
        counted[1] = min(counted[1], number)
        self._error_of[number] = counted[2]

    def line(self, buckets: int) -> LoopLine:
        """The loop in short: counts, and how its iterations are spread by number and over time."""
        total = max(self.total or 0, len(self.statuses))
        size = max(-(-total // buckets), 1)
        strip = []
        for first in range(0, total, size):
            part = self.statuses[first : first + size]
            strip.append((part.count(DONE), part.count(FAILED), part.count(RUNNING)))
        return LoopLine(
            total=self.total,
            **self._counts(),
            bucket_size=size,
            strip=strip,
            over_time=self._over_time(buckets),
        )

    def _counts(self) -> dict[str, int]:
        told = {"done": DONE, "failed": FAILED, "running": RUNNING}
        return {name: self.statuses.count(status) for name, status in told.items()}

    def _over_time(self, buckets: int) -> list[LoopMomentDocument]:
        ends = [at for at in self._ended if at]
        if not ends:
            return []
        first, last = min(at for at in self._begun if at), max(ends)
        width = max((last - first) / buckets, 0.001)
        counted: dict[int, list[int]] = {}
        for status, at in zip(self.statuses, self._ended, strict=True):
            if status in (DONE, FAILED):
                number = min(int((at - first) / width), buckets - 1)
                counted.setdefault(number, [0, 0])[status == FAILED] += 1
        return [
            LoopMomentDocument(
                start=moment(first + number * width),
                end=moment(first + (number + 1) * width),
                done=counted[number][0],
                failed=counted[number][1],
            )
            for number in sorted(counted)
        ]

    def page(self, status: IterationStatus | None, after: int, limit: int) -> IterationPage:
        """Iterations with a number above `after`, of one status or all that have begun."""
        numbers = self._numbers(status, after + 1)
        shown = [number for _, number in zip(range(limit), numbers, strict=False)]
        more = next(numbers, None) is not None if len(shown) == limit else False
        errors = sorted(self._errors.items(), key=lambda item: (-item[1][0], item[0]))
        return IterationPage(
            step=self.run.step,
            step_run_id=self.run.step_run_id,
            total=self.total,
            **self._counts(),
            errors=[
                IterationErrorDocument(message=message, count=count, first=first)
                for message, (count, first, _) in errors
            ],
            iterations=[self._shown(number) for number in shown],
            next_after=shown[-1] if shown else after,
            more=more,
        )

    def _numbers(self, status: IterationStatus | None, start: int) -> Iterator[int]:
        if status is None:
            yield from (n for n in range(start, len(self.statuses)) if self.statuses[n])
            return
        wanted = bytes([STATUSES.index(status)])
        # A search through bytes: a hundred thousand are passed over in microseconds.
        number = self.statuses.find(wanted, start)
        while number >= 0:
            yield number
            number = self.statuses.find(wanted, number + 1)

    def _shown(self, number: int) -> IterationDocument:
        begun, ended = self._begun[number], self._ended[number]
        error = self._error_of.get(number)
        status = STATUSES[self.statuses[number]]
        assert status is not None
        return IterationDocument(
            iteration=number,
            status=status,
            started_at=moment(begun),
            ended_at=moment(ended) if ended else None,
            duration_seconds=round(max(ended - begun, 0.0), 6) if ended else None,
            error=None if error is None else self._messages[error],
            seq=self._seqs[number],
        )


class Run:
    """One run of a step: what it spent its time with."""

    def __init__(self, fact: facts.StepScheduled, seq: int) -> None:
        self.step_run_id = fact.step_run_id
        self.step = fact.step
        self.number = fact.number
        self.seq = seq
        self.scheduled_at = fact.at
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.status = "running"
        self.attempts = 0
        self.error: str | None = None
        self.children: list[ExecutionId] = []
        self.loop: Loop | None = None
        self._spans: list[tuple[SpanKind, float, float]] = []
        self._open: tuple[SpanKind, float] | None = ("queue", fact.at)

    def turn(self, kind: SpanKind | None, at: float) -> None:
        """A span of another kind begins; None: only the last one ends."""
        if self._open is not None:
            before, since = self._open
            if kind == before:
                return
            if at > since:
                self._spans.append((before, since, at))
        self._open = None if kind is None else (kind, at)

    def begin(self, at: float) -> None:
        if self.started_at is None:
            self.started_at = at
        self.turn("run", at)

    def end(self, status: str, at: float, error: str | None = None) -> None:
        self.turn(None, at)
        self.status, self.ended_at, self.error = status, at, error
        if self.loop is not None:
            self.loop.cancel_the_others()

    @property
    def spans(self) -> list[tuple[SpanKind, float, float | None]]:
        """What it spent its time with, from when to when; the last may be under way."""
        return [*self._spans, *([(*self._open, None)] if self._open is not None else [])]

    def line(self, buckets: int) -> RunLine:
        return documents.of(
            RunLine,
            self,
            spans=[
                Span(kind=kind, start=moment(start), end=moment(end))
                for kind, start, end in self.spans
            ],
            loop=None if self.loop is None else self.loop.line(buckets),
        )


class Lines:
    """The lines of one execution, as far as its log was read."""

    def __init__(self) -> None:
        self.seq = 0
        self.runs: dict[StepRunId, Run] = {}
        self.senders: dict[StepRunId, list[StepRunId]] = {}
        """For each run the runs that sent its tokens."""
        self._sender_of: dict[TokenId, StepRunId] = {}
        """Of each token that no run has consumed yet."""
        self.lock = asyncio.Lock()

    def see(self, seq: int, fact: Event) -> None:
        """Take the next event."""
        self.seq = seq
        match fact:
            case facts.StepScheduled():
                self.runs[fact.step_run_id] = Run(fact, seq)
            case facts.TokenCreated(source=str(sender)):
                self._sender_of[fact.token_id] = sender
            case facts.TokenConsumed():
                sent_by = self._sender_of.pop(fact.token_id, None)
                if sent_by is not None:
                    self.senders.setdefault(fact.step_run_id, []).append(sent_by)
            case facts.ExecutionForked():
                self._take_over(seq, fact)
            case _:
                run = self.runs.get(getattr(fact, "step_run_id", None) or "")
                if run is not None:
                    self._see(run, seq, fact)

    def critical(self, now: float) -> list[Run]:
        """The runs from the one that ended last back along the tokens that each waited for, in
        their order.
        """
        ends = {key: run.ended_at or now for key, run in self.runs.items()}
        path: list[Run] = []
        current = max(self.runs, key=ends.__getitem__, default=None)
        while current is not None and len(path) <= len(self.runs):
            path.append(self.runs[current])
            before = [one for one in self.senders.get(current, ()) if one in self.runs]
            current = max(before, key=ends.__getitem__, default=None)
        return path[::-1]

    def _take_over(self, seq: int, fact: facts.ExecutionForked) -> None:
        """Loops that go on from another execution: what had ended there ended with this event."""
        state = ExecutionState()
        evolve(state, fact)
        for run_id, run in state.runs.items():
            if run.loop is None or run_id not in self.runs:
                continue
            line, kept = self.runs[run_id], run.loop
            line.loop = Loop(line, kept.total)
            errors = {one["index"]: one["error"]["message"] for one in kept.errors}
            put_away = [
                number
                for segment in kept.segments
                for number in range(segment * kept.segment, (segment + 1) * kept.segment)
                if kept.total is None or number < kept.total
            ]
            for number in sorted({*kept.results, *put_away}):
                line.loop.end(number, seq, fact.at, errors.get(number))

    def _see(self, run: Run, seq: int, fact: Event) -> None:
        at = fact.at
        match fact:
            case facts.StepStarted() | facts.TaskStarted(iteration=None):
                run.begin(at)
            case facts.TaskDone():
                run.attempts += 1
            case (
                facts.RetryStarted(iteration=None)
                | ChainRestarted(iteration=None)
                | PollIteration(iteration=None)
            ):
                run.turn("backoff", at)
            case facts.StepWaiting(iteration=None):
                run.turn(_wait_of(fact), at)
            case facts.StepResumed(iteration=None) | facts.CommandLost():
                if run.loop is None:
                    run.turn("queue", at)
            case facts.ChildStarted():
                if run.loop is None:
                    run.children.append(fact.child)
                    run.turn("child", at)
            case facts.LoopStarted():
                run.loop = Loop(run, fact.total)
            case facts.IterationStarted():
                run.begin(at)
                self._loop(run).begin(fact.iteration, seq, at)
            case facts.IterationDone():
                self._loop(run).end(fact.iteration, seq, at, None)
            case facts.IterationFailed():
                self._loop(run).end(fact.iteration, seq, at, fact.error.message)
            case facts.StepDone():
                run.end("done", at)
            case facts.StepFailed():
                run.end("failed", at, fact.error.message)
            case facts.StepSkipped():
                run.end("skipped", at)
            case facts.StepCancelled():
                run.end("cancelled", at)

    def _loop(self, run: Run) -> Loop:
        if run.loop is None:
            run.loop = Loop(run, None)
        return run.loop


def _wait_of(fact: facts.StepWaiting) -> SpanKind:
    if fact.child is not None:
        return "child"
    if fact.listens is not None:
        return "person" if fact.listens.form else "event"
    return "backoff"


class Timelines:
    """Lines of the executions that were looked at last."""

    def __init__(self, log: Log, records: Records) -> None:
        self._log = log
        self._records = records
        self._kept: OrderedDict[ExecutionId, Lines] = OrderedDict()

    async def timeline(
        self, execution_id: ExecutionId, *, after: int, limit: int, buckets: int
    ) -> Timeline:
        """Step runs that were scheduled after an event, in order."""
        lines = await self._lines(execution_id)
        chosen = [run for run in lines.runs.values() if run.seq > after]
        shown = chosen[:limit]
        loops = sum(run.loop is not None for run in shown)
        buckets = max(min(buckets, STRIPS_MAX // max(loops, 1)), 1)
        return Timeline(
            execution_id=execution_id,
            seq=lines.seq,
            runs=[run.line(buckets) for run in shown],
            next_after=shown[-1].seq if shown else after,
            more=len(chosen) > limit,
        )

    async def iterations(
        self,
        execution_id: ExecutionId,
        step_run_id: StepRunId,
        *,
        status: IterationStatus | None,
        after: int,
        limit: int,
    ) -> IterationPage:
        """Iterations of a loop, by number. Raises NotFound."""
        run = (await self._lines(execution_id)).runs.get(step_run_id)
        if run is None or run.loop is None:
            what = "has no run" if run is None else "has no loop in the run"
            raise NotFound(f"execution {execution_id} {what} {step_run_id}.")
        return run.loop.page(status, after, limit)

    async def critical_path(self, execution_id: ExecutionId, now: float) -> CriticalPath:
        """The chain of step runs that decided how long it took, and what the time went to. Raises
        NotFound.
        """
        summary = await row_of(self._records, execution_id)
        shown: list[CriticalRun] = []
        total: dict[str, float] = {}
        last: float | None = None
        for run in (await self._lines(execution_id)).critical(now):
            begun, ended = run.scheduled_at, run.ended_at or now
            by_kind: dict[str, float] = {}
            for kind, since, until in run.spans:
                seconds = max(0.0, (until or now) - since)
                by_kind[kind] = round(by_kind.get(kind, 0.0) + seconds, 6)
            for name, spent in by_kind.items():
                total[name] = round(total.get(name, 0.0) + spent, 6)
            shown.append(
                documents.of(
                    CriticalRun,
                    run,
                    run=run.number,
                    start=begun,
                    end=run.ended_at,
                    seconds=round(ended - begun, 6),
                    before=round(max(0.0, begun - last), 6) if last is not None else 0.0,
                    by_kind=by_kind,
                )
            )
            last = ended
        return CriticalPath(
            execution_id=execution_id,
            status=summary.status,
            seconds=round((summary.ended_at or now) - summary.requested_at, 6),
            by_kind=total,
            runs=shown,
        )

    async def _lines(self, execution_id: ExecutionId) -> Lines:
        """The lines of an execution, up to its last event. Raises NotFound."""
        await row_of(self._records, execution_id)
        lines = self._kept.setdefault(execution_id, Lines())
        self._kept.move_to_end(execution_id)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        async with lines.lock:
            async for row in events(self._log, execution_id, after=lines.seq):
                lines.see(row.seq, decode(row.body))
        return lines
