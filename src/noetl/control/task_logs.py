"""What the tasks of an execution printed, read from its events.

`task.log` has lines as they came; `task.done` has the end of everything, and says how much of it
was told before. So each event can be read without the others, and a page may begin anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from noetl.control import documents
from noetl.errors import BadRequest
from noetl.model.answers import LogEntry, Logs
from noetl.model.events import LAST_EVENT, SinkProcessed, TaskDone, TaskLogged, decode
from noetl.model.ids import ExecutionId
from noetl.store.log import EventRow

TYPES = ("task.log", "task.done", "sink.processed")
NEWS = (*TYPES, LAST_EVENT)
"""What is worth waking for: after the last event nothing more is printed."""
PAGE = 500
SCANNED_MAX = 20 * PAGE
"""Events that one question may look at: a pattern may match none of them."""
PATTERN_MAX = 1_000
PATTERN_MEMORY = 8 * 1024 * 1024

ReadEvents = Callable[..., Awaitable[list[EventRow]]]


async def page(
    events: ReadEvents,
    execution_id: ExecutionId,
    status: str,
    *,
    step: str | None,
    grep: str | None,
    after: int,
    limit: int,
) -> Logs:
    """What was printed after an event: at most `limit` entries. Raises BadRequest."""
    matches = None if grep is None else pattern(grep).search
    entries: list[LogEntry] = []
    for _ in range(SCANNED_MAX // PAGE):
        rows = await events(execution_id, after=after, limit=PAGE, types=TYPES, step=step)
        for row in rows:
            after = row.seq
            found = _entry(row, matches)
            if found is not None:
                entries.append(found)
                if len(entries) == limit:
                    return _logs(execution_id, status, entries, after, more=True)
        if len(rows) < PAGE:
            return _logs(execution_id, status, entries, after, more=False)
    return _logs(execution_id, status, entries, after, more=True)


def _logs(
    execution_id: ExecutionId, status: str, entries: list[LogEntry], after: int, *, more: bool
) -> Logs:
    return Logs(
        execution_id=execution_id, status=status, entries=entries, next_after=after, more=more
    )


def text_of(fact: object) -> str:
    """What an event shows that was printed and that no event before it showed."""
    match fact:
        case TaskLogged():
            return fact.text
        case TaskDone() | SinkProcessed():
            return fact.log[fact.told :]
    return ""


def _entry(row: EventRow, matches: Callable[[str], Any] | None) -> LogEntry | None:
    fact = decode(row.body)
    text = text_of(fact)
    if matches is not None and text:
        text = "".join(line for line in text.splitlines(keepends=True) if matches(line.rstrip()))
    if not text:
        return None
    assert isinstance(fact, TaskLogged | TaskDone | SinkProcessed)
    return LogEntry(
        seq=row.seq,
        timestamp=documents.moment(row.at),
        step=fact.step,
        step_run_id=fact.step_run_id,
        task=fact.task,
        attempt=fact.attempt,
        iteration=fact.iteration,
        text=text,
    )


def pattern(source: str) -> Any:
    """A pattern of RE2, whose search time grows with the text alone. Raises BadRequest."""
    import re2  # loaded by the first pattern: most questions have none

    if len(source) > PATTERN_MAX:
        raise BadRequest(f"a pattern may have at most {PATTERN_MAX:,} characters.")
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except (re2.error, ValueError):
        raise BadRequest(
            f'"{source}" is not a regular expression that RE2 knows (it has no look-around and no'
            " back-references)."
        ) from None
