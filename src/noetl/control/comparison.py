"""Two executions side by side: where they differ, and how long their steps took."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from noetl.control import documents
from noetl.control.records import events, row_of
from noetl.errors import TooLarge
from noetl.model import events as facts
from noetl.model import refs
from noetl.model.events import Event, decode
from noetl.model.ids import ExecutionId, StepRunId
from noetl.model.retrospect import (
    ComparedDocument,
    DiffDocument,
    Difference,
    StepTimes,
)

if TYPE_CHECKING:
    from noetl.store.log import Log
    from noetl.store.records import Records, Summary

DIFFERENCES_MAX = 500
EVENTS_MAX = 300_000
"""Events of one execution that are compared at most."""
VALUE_MAX = 1000
TOLD = (
    *("playbook.request.evaluated", "step.scheduled", "step.done", "step.failed", "step.skipped"),
    *("step.cancelled", "next.selected", "task.done", "sink.processed"),
)
Key = tuple[str, int, int | None, str, int]
"""Step, run, iteration, task, attempt; a step run itself has no task."""


class _Entry(NamedTuple):
    seq: int
    status: str
    told: Any
    """The value, or the checksum of a large one."""
    route: tuple[str, ...] = ()


class _Account:
    """What is compared of one execution."""

    def __init__(self) -> None:
        self.workload: dict[str, Any] = {}
        self.entries: dict[Key, _Entry] = {}
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._runs: dict[StepRunId, tuple[str, int, float]] = {}
        self._calls: dict[tuple[str, int, int | None, str], int] = {}

    def see(self, seq: int, fact: Event) -> None:
        match fact:
            case facts.RequestEvaluated():
                self.workload = fact.workload
            case facts.StepScheduled():
                self._runs[fact.step_run_id] = (fact.step, fact.number, fact.at)
                self.counts[fact.step] = self.counts.get(fact.step, 0) + 1
            case facts.StepSkipped():
                self.entries[fact.step, 0, None, "", 0] = _Entry(seq, "skipped", None)
            case facts.StepDone() | facts.StepFailed() | facts.StepCancelled():
                self._end(seq, fact)
            case facts.NextSelected():
                self._route(fact)
            case _:
                self._call(seq, fact)

    def _end(self, seq: int, fact: facts.StepDone | facts.StepFailed | facts.StepCancelled) -> None:
        step, number, begun = self._runs.get(fact.step_run_id, (fact.step, 1, fact.at))
        self.seconds[step] = self.seconds.get(step, 0.0) + max(0.0, fact.at - begun)
        match fact:
            case facts.StepDone():
                entry = _Entry(seq, "done", _told(fact.result))
            case facts.StepFailed():
                entry = _Entry(seq, "failed", fact.error.message)
            case _:
                entry = _Entry(seq, "cancelled", None)
        self.entries[step, number, None, "", 0] = entry

    def _route(self, fact: facts.NextSelected) -> None:
        step, number, _ = self._runs.get(fact.step_run_id, (fact.step, 1, 0.0))
        key = (step, number, None, "", 0)
        if key in self.entries:
            self.entries[key] = self.entries[key]._replace(route=tuple(fact.targets))

    def _call(self, seq: int, fact: Any) -> None:
        """A call; tries and pages of the same task are numbered in their order."""
        step, number, _ = self._runs.get(fact.step_run_id, (fact.step, 1, 0.0))
        place = (step, number, fact.iteration, fact.task)
        self._calls[place] = attempt = self._calls.get(place, 0) + 1
        outcome = fact.outcome
        told = _told(outcome.result) if outcome.is_ok else outcome.error.message
        self.entries[(*place, attempt)] = _Entry(seq, outcome.status, told)


def _told(value: Any) -> Any:
    """A value, or for a large one what tells it from others."""
    what = refs.about(value, refs.UNSEALED)
    if what is not None:
        return f"sha256:{what.checksum}"
    data = refs.encode(value)
    return value if len(data) <= VALUE_MAX else f"sha256:{hashlib.sha256(data).hexdigest()}"


async def _account(
    log: Log, records: Records, execution_id: ExecutionId
) -> tuple[Summary, _Account]:
    summary = await row_of(records, execution_id)
    account, count = _Account(), 0
    async for row in events(log, execution_id, types=TOLD):
        account.see(row.seq, decode(row.body))
        count += 1
        if count > EVENTS_MAX:
            raise TooLarge(
                f"execution {execution_id} has more than {EVENTS_MAX:,} events to compare."
                " `noetl executions events` shows parts of it."
            )
    return summary, account


async def diff(log: Log, records: Records, a: ExecutionId, b: ExecutionId) -> DiffDocument:
    """How the second differs from the first. Raises NotFound and TooLarge."""
    of_a, one = await _account(log, records, a)
    of_b, other = await _account(log, records, b)
    found = [*_inputs(of_a, of_b, one, other), *_entries(one, other)]
    if of_a.status != of_b.status:
        text = f"it is {of_a.status} in the first and {of_b.status} in the second"
        found.append(Difference(what="status", text=text, a=of_a.status, b=of_b.status))
    steps = dict.fromkeys([*one.counts, *other.counts])
    return DiffDocument(
        a=_compared(of_a),
        b=_compared(of_b),
        same=not found,
        differences=found[:DIFFERENCES_MAX],
        more=len(found) > DIFFERENCES_MAX,
        steps=[
            StepTimes(
                step=step,
                runs_a=one.counts.get(step, 0),
                runs_b=other.counts.get(step, 0),
                seconds_a=round(one.seconds.get(step, 0.0), 6),
                seconds_b=round(other.seconds.get(step, 0.0), 6),
            )
            for step in steps
        ],
    )


def _compared(row: Summary) -> ComparedDocument:
    took = None if row.ended_at is None else round(row.ended_at - row.requested_at, 6)
    return documents.of(ComparedDocument, row, duration_seconds=took)


def _inputs(of_a: Summary, of_b: Summary, one: _Account, other: _Account) -> list[Difference]:
    found = []
    if (of_a.path, of_a.digest) != (of_b.path, of_b.digest):
        names = [f"{row.path} version {row.version or '(a file)'}" for row in (of_a, of_b)]
        text = f"the playbook is {names[0]} in the first and {names[1]} in the second"
        found.append(Difference(what="playbook", text=text, a=of_a.digest, b=of_b.digest))
    for key in dict.fromkeys([*one.workload, *other.workload]):
        was, now = one.workload.get(key), other.workload.get(key)
        if was != now:
            text = f"`workload.{key}` differs"
            found.append(Difference(what="workload", text=text, a=_told(was), b=_told(now)))
    return found


def _entries(one: _Account, other: _Account) -> list[Difference]:
    """What differs, in the order of the first execution; what only the second has by its own."""
    found: list[tuple[int, Difference]] = []
    for key, was in one.entries.items():
        now = other.entries.get(key)
        if now is None:
            text = f"{_named(key)} is only in the first"
            found.append((was.seq, _difference("only_a", text, key, was.status, None, was, None)))
            continue
        if was.status != now.status:
            text = f"{_named(key)} is {was.status} in the first and {now.status} in the second"
            found.append((was.seq, _difference("outcome", text, key, was.told, now.told, was, now)))
        elif was.told != now.told:
            text = f"{_named(key)} yields something else"
            found.append((was.seq, _difference("result", text, key, was.told, now.told, was, now)))
        if was.route != now.route:
            text = f"after {_named(key)} it goes to {_targets(was)} in the first, and to"
            text += f" {_targets(now)} in the second"
            routes = (list(was.route), list(now.route))
            found.append((was.seq, _difference("route", text, key, *routes, was, now)))
    for key, now in other.entries.items():
        if key not in one.entries:
            text = f"{_named(key)} is only in the second"
            found.append((now.seq, _difference("only_b", text, key, None, now.status, None, now)))
    return [difference for _, difference in sorted(found, key=lambda pair: pair[0])]


def _difference(
    what: Any, text: str, key: Key, a: Any, b: Any, was: _Entry | None, now: _Entry | None
) -> Difference:
    step, run, iteration, task, attempt = key
    return Difference(
        what=what,
        text=text,
        step=step,
        run=run or None,
        iteration=iteration,
        task=task,
        attempt=attempt or None,
        a=a,
        b=b,
        seq_a=was.seq if was is not None else None,
        seq_b=now.seq if now is not None else None,
    )


def _targets(entry: _Entry) -> str:
    return ", ".join(f"`{target}`" for target in entry.route) or "nothing"


def _named(key: Key) -> str:
    step, run, iteration, task, attempt = key
    name = f"`{step}.{task}`" if task else f"`{step}`"
    more = [f"run {run}"] if run > 1 else []
    more += [f"iteration {iteration}"] if iteration is not None else []
    more += [f"call {attempt}"] if attempt > 1 else []
    return f"{name} ({', '.join(more)})" if more else name
