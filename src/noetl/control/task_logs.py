"""What the tasks of an execution printed, read from its events.

`task.log` has lines as they came; `task.done` has the end of everything, and says how much of it
was told before. So each event can be read without the others, and a page may begin anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.control import documents
from noetl.errors import BadRequest
from noetl.model.answers import LogEntry
from noetl.model.events import LAST_EVENT, SinkProcessed, TaskDone, TaskLogged, decode
from noetl.model.patterns import BadPattern, compiled_pattern
from noetl.store.log import EventRow

TYPES = ("task.log", "task.done", "sink.processed")
NEWS = (*TYPES, LAST_EVENT)
"""Events worth waking for: after the last event nothing more is printed."""
PATTERN_MAX = 1_000


def text_of(fact: object) -> str:
    """The printed text in an event that no event before it showed."""
    match fact:
        case TaskLogged():
            return fact.text
        case TaskDone() | SinkProcessed():
            return fact.log[fact.told :]
    return ""


def entry(row: EventRow, matches: Callable[[str], Any] | None) -> LogEntry | None:
    """The printed text in an event, as an entry; None if there is none, or no line matches."""
    fact = decode(row.body)
    text = text_of(fact)
    if matches is not None and text:
        text = "".join(line for line in text.splitlines(keepends=True) if matches(line.rstrip()))
    if not text:
        return None
    return documents.of(LogEntry, fact, seq=row.seq, timestamp=row.at, text=text)


def pattern(source: str) -> Any:
    """The compiled pattern. Raises BadRequest."""
    if len(source) > PATTERN_MAX:
        raise BadRequest(f"a pattern may have at most {PATTERN_MAX:,} characters.")
    try:
        return compiled_pattern(source)
    except BadPattern:
        raise BadRequest(
            f'"{source}" is not a regular expression that RE2 knows (it has no look-around and no'
            " back-references)."
        ) from None
