"""Lists of executions: their rows, searching and counting them, and saved queries.

The values of a query travel as parameters. The text of a statement is composed from the `where_…`
statements of the store's file, and from nothing else.

A list must be fast for any query, so two kinds of conditions are looked up first. There are few
playbooks and many executions: a pattern or a word is compared once with each distinct path, and
executions are found by the matching paths. A label that few executions have is found by its index;
one that many have is read from the rows, which are walked anyway.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from noetl.model.execution_query import Condition, Wanted
from noetl.model.ids import ExecutionId
from noetl.model.state import TERMINAL


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The row of an execution in lists. Always equal to the fold of its events."""

    execution_id: ExecutionId
    path: str
    version: int | None
    digest: str
    status: str
    requested_at: float
    ended_at: float | None = None
    parent_execution_id: ExecutionId | None = None
    idempotency_key: str | None = None
    current_steps: tuple[str, ...] = ()
    error: str | None = None
    labels: dict[str, str] = {}
    failed_step: str | None = None
    """The step it failed in; empty if in none. None: written by a version without this field."""
    waits: str | None = None
    """What a step waits for from outside, `form` or `event`; empty: nothing. None: as above."""


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    """A saved query of executions."""

    name: str
    q: str
    columns: tuple[str, ...] = ()
    owner: str = ""
    updated_at: float = 0.0


class Records(Protocol):
    """What every store promises about lists."""

    async def summary(self, execution_id: ExecutionId) -> Summary | None:
        """The list row of one execution."""

    async def by_key(self, key: str) -> Summary | None:
        """The execution that was started under this idempotency key."""

    async def summaries(
        self,
        wanted: Wanted = (),
        *,
        now: float = 0.0,
        before: tuple[float, ExecutionId] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        """Executions that match, newest first; `before` is where the last page ended (requested_at,
        id). `now` is used for the duration of those that have not ended.
        """

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        """How many executions match."""

    async def span(self) -> tuple[float, float] | None:
        """When the first and the last execution were requested; None if there is none."""

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        """How many executions match by time and status, from `begin` to before `end`: bucket
        number, status and count, in order, without empty ones.
        """

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        """The values of a label and how many executions have each, most frequent first."""

    async def unfinished(self) -> list[ExecutionId]:
        """Every execution that has not ended."""

    async def ended(
        self, *, after: tuple[float, ExecutionId], before: float, limit: int
    ) -> list[tuple[float, ExecutionId]]:
        """When executions ended, and their ids, oldest first: of those that ended before a moment,
        called ones included. `after` is where the last page ended. Reads all executions."""

    async def views(self) -> list[SavedView]:
        """All, by name."""

    async def put_view(self, view: SavedView) -> None:
        """Create or replace it."""

    async def delete_view(self, name: str) -> bool:
        """Delete it. Returns whether it existed."""


PLACE = "/* conditions */"
"""Marks the place of the conditions in a statement."""
_decode_steps = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


class Dialect(NamedTuple):
    """What differs between stores, beside their SQL files."""

    queries: Mapping[str, str]
    parameter: re.Pattern[str]
    """A parameter in a condition; its group is the name."""
    named: str
    """A parameter of that name, for `str.format`."""
    glob: Callable[[str], str]
    """Translates a pattern with `*` and `?` for the store."""
    listed: Callable[[tuple[str, ...]], Any]
    """Several texts as one parameter."""


PATHS_MAX = 5000
"""How many distinct paths are compared with a pattern; beyond that, executions are."""
FEW = 10_000
"""How many executions with a label are still found one by one."""


class Lookup(NamedTuple):
    """How to look up a condition."""

    fragment: str
    paths: tuple[str, ...] = ()


LOOKED_UP = {
    "path_like": ("paths_like", "path_like_among"),
    "text": ("paths_with_text", "text_among"),
    "label": ("labelled", "label_few"),
    "any_label": ("labelled_at_all", "any_label_few"),
}
"""Field → the statement that looks it up, and the condition that follows from the result."""


ENDS = {status: status.lower() for status in TERMINAL}
"""Status → the condition for it."""


async def looked_up(
    dialect: Dialect, wanted: Wanted, column: Callable[[str, dict[str, Any]], Awaitable[list[Any]]]
) -> dict[Condition, Lookup]:
    """Better forms of the conditions of a query, if there are any.

    `column` runs a statement of the store and returns its only column.
    """
    found: dict[Condition, Lookup] = {}
    for term in wanted:
        for condition in {*term.conditions} - found.keys():
            if condition.field not in LOOKED_UP:
                continue
            statement, fragment = LOOKED_UP[condition.field]
            values = _values(condition, dialect)
            if condition.field in ("path_like", "text"):
                names = {"glob": values["glob"], "within": values["within"], "max": PATHS_MAX}
                paths = await column(statement, names)
                # A null at the end means that there are no more.
                if None in paths:
                    matching = tuple(path for path in paths if path is not None)
                    found[condition] = Lookup(fragment, matching)
            elif not term.negated:
                names = {"key": condition.key, "value": condition.value, "max": FEW + 1}
                [count] = await column(statement, names)
                if count <= FEW:
                    found[condition] = Lookup(fragment)
    return found


def like_glob(pattern: str) -> str:
    """For LIKE."""
    return like(pattern).replace("*", "%").replace("?", "_")


def like(text: str) -> str:
    """Text that LIKE … ESCAPE '\\' matches literally."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def composed(
    dialect: Dialect,
    name: str,
    wanted: Wanted,
    now: float,
    lookups: Mapping[Condition, Lookup] | None = None,
) -> tuple[str, dict[str, Any]]:
    """The named statement with the conditions of a query, and their values."""
    values: dict[str, Any] = {"now": now}
    terms = []
    for term in wanted:
        parts = []
        for condition in term.conditions:
            number = len(values)
            lookup = (lookups or {}).get(condition) or Lookup(_fragment(condition))
            given = _values(condition, dialect) | {"paths": dialect.listed(lookup.paths)}
            fragment = dialect.queries[f"where_{lookup.fragment}"]
            for found in {*dialect.parameter.findall(fragment)} - {"now"}:
                values[f"{found}_{number}"] = given[found]
            parts.append(dialect.parameter.sub(_numbered(dialect, number), fragment))
        joined = " OR ".join(parts)
        terms.append(f"({joined}) IS NOT TRUE" if term.negated else f"({joined})")
    said = "".join(f"\n   AND {term}" for term in terms)
    return dialect.queries[name].replace(PLACE, said), values


def _fragment(condition: Condition) -> str:
    """Where executions end is written out: an index of those that have ended is found by that."""
    if condition.field == "status":
        return ENDS.get(str(condition.value), "status")
    return condition.field


def _numbered(dialect: Dialect, number: int) -> Callable[[re.Match[str]], str]:
    return lambda found: (
        found[0] if found[1] == "now" else dialect.named.format(f"{found[1]}_{number}")
    )


def _values(condition: Condition, dialect: Dialect) -> dict[str, Any]:
    text = str(condition.value)
    in_json = _encode(text).decode() if condition.field == "step" else text
    return {
        "value": condition.value,
        "key": condition.key,
        "begin": f"{like(text)}%",
        "end": f"%{like(text)}",
        "within": f"%{like(in_json)}%",
        "glob": dialect.glob(text),
        "name": f"{_encode(condition.key).decode()}:",
        "pair": f"{_encode(condition.key).decode()}:{_encode(text).decode()}",
    }


def page(wanted: Wanted, before: tuple[float, ExecutionId] | None, limit: int) -> dict[str, Any]:
    """The values of a page, newest first.

    The first page begins at the query's `until`: stores start to walk an index at that point, and
    would otherwise skip everything newer.
    """
    before_at, before_id = before or (_latest(wanted), "")
    return {"before_at": before_at, "before_id": before_id, "limit": limit}


def _latest(wanted: Wanted) -> float:
    """No matching execution is newer than this."""
    return min(
        (
            max(float(condition.value) for condition in term.conditions)
            for term in wanted
            if not term.negated and all(one.field == "until" for one in term.conditions)
        ),
        default=math.inf,
    )


def counts(label: str, since: float | None, limit: int) -> dict[str, Any]:
    """The values of `label_counts`."""
    return {"label": label, "since": -math.inf if since is None else since, "limit": limit}


def encode_labels(labels: Mapping[str, str]) -> str | None:
    """Labels as stored in their column: null if there are none."""
    return msgspec.json.encode(labels, order="sorted").decode() if labels else None


def summary_of(**row: Any) -> Summary:
    """The summary from the columns of a row."""
    try:
        steps = _decode_steps(row["current_steps"])
    except msgspec.DecodeError:
        # Damaged. A list shows it as it is, for the sake of the other rows.
        steps = (row["current_steps"],)
    labels = _labels(row["labels"]) if row["labels"] is not None else {}
    return Summary(**{**row, "current_steps": steps, "labels": labels})


def _labels(written: str) -> dict[str, str]:
    try:
        return _decode_labels(written)
    except msgspec.DecodeError:
        return {"": written}  # Damaged, and shown as it is.
