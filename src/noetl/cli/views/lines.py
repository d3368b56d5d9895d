"""Describes events in words: one line each, for output without a live view."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.cli.output import as_text, counted, cut, one_line, printable
from noetl.control.documents import event_words
from noetl.model.duration import timestamp
from noetl.model.events import ChildFinished, ChildStarted, StepFailed, StepWaiting, decode

if TYPE_CHECKING:
    from noetl.cli.views.source_lines import Locator
    from noetl.model.answers import LogEntry
    from noetl.model.signals import Listening
    from noetl.store.log import EventRow

DETAIL_MAX = 160


class Telling:
    """The events of an execution, one line each; it remembers when steps began."""

    def __init__(self, execution_id: str, locator: Locator, after: int = 0) -> None:
        self._execution_id = execution_id
        self.locator = locator
        self.after = after
        """The number of the last event that was told."""
        self._begun: dict[str, float] = {}

    async def line(self, row: EventRow) -> str | None:
        """The line for an event; None for an event that would be noise."""
        if row.type == "step.failed":
            fact = decode(row.body)
            assert isinstance(fact, StepFailed)
            message = await self.locator.message(self._execution_id, fact.step, fact.error)
            text: str | None = _failed(fact.step, message)
        else:
            text = plain_line(row, self._execution_id)
        if row.type == "step.scheduled":
            self._begun[row.step_run_id] = row.at
        elif row.type in ("step.done", "step.failed", "step.cancelled"):
            begun = self._begun.pop(row.step_run_id, None)
            if text is not None and begun is not None:
                text = f"{text} ({length(row.at - begun)})"
        return text


def of_what_is_there(rows: Sequence[EventRow]) -> list[EventRow]:
    """Without what announces a child that was refused: no such execution began. Its end is stored
    with its announcement.
    """
    from noetl.engine.evolve import never_began

    refused = set()
    for row in rows:
        if row.type == "child.finished":
            fact = decode(row.body)
            assert isinstance(fact, ChildFinished)
            if never_began(fact):
                refused.add(fact.child)
    if not refused:
        return list(rows)

    def announces(row: EventRow) -> bool:
        fact = decode(row.body) if row.type in ("step.waiting", "child.started") else None
        return isinstance(fact, StepWaiting | ChildStarted) and fact.child in refused

    return [row for row in rows if not announces(row)]


MORE_MAX = 200


def more_about(error: dict[str, Any] | None) -> list[str]:
    """The details of an error beside its message, in a line or two: the code that a rule gave it,
    the body of an answer, the place in a statement, the last output of a command, the execution
    that failed.
    """
    details = (error or {}).get("details")
    if not isinstance(details, dict):
        return []
    lines: list[str] = []
    if isinstance(code := details.get("code"), str | int):
        lines.append(f"its code is {_shortened(str(code))}")
    if isinstance(body := details.get("body"), str) and body.strip():
        lines.append(f"it answered: {_shortened(body)}")
    if isinstance(sql := details.get("sql"), str):
        lines += [line[:MORE_MAX] for line in sql.splitlines()[:2]]
    if isinstance(said := details.get("stderr"), str) and said.strip():
        last = said.strip().splitlines()[-1]
        if last not in str((error or {}).get("message")):
            lines.append(f"it said: {_shortened(last)}")
    if isinstance(child := details.get("execution_id"), str):
        lines.append(f"`noetl executions show {child}` shows it")
    return lines


def _shortened(text: str) -> str:
    return cut(one_line(text.strip()), MORE_MAX)


def failed_iterations(step: dict[str, Any]) -> str:
    """How many iterations of a step failed, and why; empty if none did."""
    loop = step.get("loop") or {}
    failed = loop.get("failed", 0)
    if not failed:
        return ""
    reasons = sorted(loop.get("errors", ()), key=lambda one: -int(one["count"]))
    shown = [f"{one['count']} × {_shortened(one['message'])}" for one in reasons[:REASONS_SHOWN]]
    rest = failed - sum(one["count"] for one in reasons[:REASONS_SHOWN])
    if rest > 0 and shown:
        shown.append(f"{rest} × for other reasons")
    why = f": {', '.join(shown)}" if shown else ""
    return f"{failed} of {loop['total']} iterations failed{why}"


REASONS_SHOWN = 3


def plain_line(row: EventRow, execution_id: str) -> str | None:
    """The line for an event of an execution; None for an event that would be noise."""
    make = _SAID.get(row.type)
    if make is None:
        return None
    fact = decode(row.body)
    listens = getattr(fact, "listens", None)
    if listens is not None:
        return f"{row.step}: {_listening(listens, execution_id)}"
    return make(fact)


def _listening(listens: Listening, execution_id: str) -> str:
    """What a waiting step waits for, and the command that sends it."""
    how = how_to_tell(listens.events, bool(listens.form), execution_id)
    return f"waits for {event_words(listens.events)}" + (f"; {how}" if how else "")


def how_to_tell(events: Sequence[str], asks: bool, execution_id: str) -> str:
    """The command that ends the wait; empty if only time can."""
    if asks:
        return f"`noetl executions answer {execution_id}` answers"
    return f"`noetl signal {execution_id} --name …` tells it" if events else ""


def printed_lines(entry: LogEntry) -> list[str]:
    """What a task printed, each line with its step."""
    who = speaker(entry.step, entry.task, entry.iteration)
    return [f"{who} | {printable(line)}" for line in entry.text.splitlines()]


def step_time(step: dict[str, Any]) -> str:
    """How long the last run of a step took, or has taken so far."""
    begun = timestamp(step["started_at"] or "")
    if begun is None:
        return ""
    ended = (
        time.time() if step["status"] == "running" else timestamp(step["ended_at"] or "") or begun
    )
    return length(ended - begun)


def _retry(fact: Any) -> str:
    wait = f" in {pause(fact.delay)}" if fact.delay else ""
    if fact.attempt == 1:
        return f"{fact.step}: {fact.task} asks for page {fact.page + 1}{wait}"
    return f"{fact.step}: {fact.task} is tried again{wait} (try {fact.attempt})"


def _printed(fact: Any) -> str | None:
    """What a task printed that was not shown before: while it runs, and when it ends."""
    from noetl.control.task_logs import text_of

    lines = "".join(f"\n  {line}" for line in text_of(fact).splitlines())
    if not lines:
        return None
    return f"{speaker(fact.step, fact.task, fact.iteration)} says{lines}"


def speaker(step: str, task: str, iteration: int | None) -> str:
    """The origin of a line: the step, the task unless it is the only one, the iteration in
    brackets.
    """
    name = step if task in (step, f"{step}_task") else f"{step}.{task}"
    return name if iteration is None else f"{name}[{iteration}]"


def _loop(fact: Any) -> str:
    if fact.total is None:
        return f"{fact.step}: a loop over rows, as long as there are any"
    return f"{fact.step}: a loop over {counted(fact.total, 'element')}"


def _failed(step: str, message: str) -> str:
    return f"{step}: failed: {one_line(message)}"


def _waiting(fact: Any) -> str:
    if fact.child is not None:
        return f"{fact.step}: waits for execution {fact.child}"
    return f"{fact.step}: waits until {clock_time(fact.until)}, holding no worker"


def _undoing(fact: Any) -> str | None:
    if fact.compensates is None:
        return None
    return f"{fact.step}: {f'is undone by {fact.block}' if fact.block else 'undoes what was done'}"


def _unmatched(fact: Any) -> str | None:
    """What a guard did not find is a warning at the end; that none held is none."""
    return None if fact.undefined else f"{fact.step}: none of its arcs held; its branch ends here"


_SAID: dict[str, Callable[[Any], str | None]] = {
    "step.scheduled": _undoing,
    "step.started": lambda fact: f"{fact.step}: started",
    "step.done": lambda fact: f"{fact.undone}: undone" if fact.undone else f"{fact.step}: done",
    "step.failed": lambda fact: _failed(fact.step, fact.error.message),
    "step.skipped": lambda fact: f"{fact.step}: skipped ({fact.reason})",
    "step.cancelled": lambda fact: f"{fact.step}: cancelled ({fact.reason})",
    "step.waiting": _waiting,
    "next.unmatched": _unmatched,
    "loop.started": _loop,
    "loop.done": lambda fact: f"{fact.step}: {fact.success} of {fact.total} iterations succeeded",
    "message.received": lambda fact: f"heard {fact.name}",
    "approval.received": lambda fact: f"heard {fact.name}",
    "retry.started": _retry,
    "task.log": _printed,
    "task.done": _printed,
    "sink.processed": _printed,
    "child.started": lambda fact: f"{fact.step}: runs {fact.path} as execution {fact.child}",
    "child.finished": lambda _: None,
    "command.lost": lambda fact: f"a lease was lost ({fact.reason}); its work is done again",
    "playbook.queued": lambda fact: f"waits for its turn: {_limits(fact.full)}",
    "playbook.paused": lambda fact: f"paused{_because(fact.reason)}",
    "playbook.resumed": lambda _: "resumed",
    "playbook.cancelled": lambda fact: f"cancelled{_because(fact.reason)}",
}
NEWS = tuple(_SAID)
"""The event types that are shown to people."""


def _limits(full: tuple[str, ...]) -> str:
    from noetl.engine.concurrency import described

    return one_line(" and ".join(map(described, full)) + " has no room")


def _because(reason: str) -> str:
    return f": {one_line(reason)}" if reason else ""


def event_line(row: EventRow) -> str:
    """Any event: number, time, name, step, and its other fields."""
    said = msgspec.to_builtins(decode(row.body))
    parts = [f"{row.seq:>5}", clock_time(row.at, precise=True), f"{row.type:<24}"]
    if row.step:
        parts.append(row.step)
    outcome = said.pop("outcome", None)
    for name, value in said.items():
        if name not in _UNSAID:
            parts.append(f"{name}={_detail(value)}")
    if outcome is not None:
        parts.append(_outcome(outcome))
    return "  ".join(parts)


_UNSAID = frozenset(
    {"type", "at", "step", "step_run_id", "digest", "progress", "settled", "report", "action_id"}
    | {"recorded_at", "seal"}
)


def _outcome(outcome: dict[str, Any]) -> str:
    if outcome["status"] == "ok":
        return f"ok={_detail(outcome.get('result'))}"
    error = outcome.get("error", {})
    return f"error={_detail(error.get('message'))} ({error.get('kind')})"


def _detail(value: Any) -> str:
    return cut(one_line(as_text(value)), DETAIL_MAX)


def clock_time(at: float | None, *, precise: bool = False) -> str:
    """A moment as local time, with its date unless that is today."""
    if at is None:
        return "-"
    moment = datetime.fromtimestamp(at).astimezone()
    text = moment.strftime("%H:%M:%S") + (f".{moment.microsecond // 1000:03d}" if precise else "")
    is_today = moment.date() == datetime.now().astimezone().date()
    return text if is_today else f"{moment:%Y-%m-%d} {text}"


def pause(seconds: float) -> str:
    """How long something waits: as written, unless it is long."""
    return f"{seconds:.3g} s" if seconds < 60 else length(seconds)


def length(seconds: float | None) -> str:
    """A duration, in short form."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
