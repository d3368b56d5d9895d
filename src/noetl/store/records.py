"""Lists of executions: the row of each, finding and counting them, and queries saved by name.

What a query says travels as parameters. The text of a statement is put together from the `where_…`
statements of the store's file, and from nothing else.

A list must be quick whatever people type, so two kinds of conditions are looked up first. There
are few playbooks and many executions: a pattern or a word is compared with each different path
once, and executions are found by the paths that match. A label that few executions have is found
by its index; one that many have is read from the rows, which are walked anyway.
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
    """The row of an execution that lists show. Always equal to the fold of its events."""

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
    """The step that it failed in; empty if in none. None: written by a version without this."""
    waits: str | None = None
    """What from outside a step waits for, `form` or `event`; empty: nothing. None: as above."""


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    """A query of executions that was saved under a name."""

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
        """Executions that match, newest first; `before` is where the last page ended
        (requested_at, id). `now` is for how long those that have not ended have taken."""

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        """How many executions match."""

    async def span(self, wanted: Wanted = (), *, now: float = 0.0) -> tuple[float, float] | None:
        """When the first and the last execution that match were requested; None if none does."""

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        """How many executions match by time and status, from `begin` to before `end`: number of
        the bucket, status and count, for those that are not empty, in order."""

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        """The values of a label and how many executions have each, most frequent first."""

    async def unfinished(self) -> list[ExecutionId]:
        """Every execution that has not ended."""

    async def views(self) -> list[SavedView]:
        """All, by name."""

    async def put_view(self, view: SavedView) -> None:
        """Create it, or replace it."""

    async def delete_view(self, name: str) -> bool:
        """Whether there was one."""


PLACE = "/* conditions */"
"""Where a statement has its conditions."""
_decode_steps = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


class Dialect(NamedTuple):
    """What differs between stores, beside their files of statements."""

    queries: Mapping[str, str]
    parameter: re.Pattern[str]
    """A parameter in a condition; its group is the name."""
    named: str
    """A parameter of that name, as `str.format` takes it."""
    glob: Callable[[str], str]
    """A pattern with `*` and `?` as the store matches it."""
    listed: Callable[[tuple[str, ...]], Any]
    """Several texts as one parameter."""


PATHS_MAX = 5000
"""Different paths that are compared with a pattern; where there are more, executions are."""
FEW = 10_000
"""Executions with a label that are still found one by one."""


class Lookup(NamedTuple):
    """How to ask for a condition, given what the store holds."""

    fragment: str
    paths: tuple[str, ...] = ()


LOOKED_UP = {
    "path_like": ("paths_like", "path_like_among"),
    "text": ("paths_with_text", "text_among"),
    "label": ("labelled", "label_few"),
    "any_label": ("labelled_at_all", "any_label_few"),
}
"""Field → the statement that looks it up, and the condition that follows from what was found."""


ENDS = {status: status.lower() for status in TERMINAL}
"""Status → the condition for it."""


async def looked_up(
    dialect: Dialect, wanted: Wanted, column: Callable[[str, dict[str, Any]], Awaitable[list[Any]]]
) -> dict[Condition, Lookup]:
    """Better ways to ask for the conditions of a query, where there are any.

    `column` asks a statement of the store for its only column.
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
                # A null at the end says that there are no more.
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
    """Text that LIKE … ESCAPE '\\' takes as it is."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def composed(
    dialect: Dialect,
    name: str,
    wanted: Wanted,
    now: float,
    lookups: Mapping[Condition, Lookup] | None = None,
) -> tuple[str, dict[str, Any]]:
    """The named statement with the conditions of a query in it, and the values of these."""
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

    The first page begins where the query says `until`: stores begin to walk an index at the place
    that is named here, and would else pass over all that is newer.
    """
    before_at, before_id = before or (_latest(wanted), "")
    return {"before_at": before_at, "before_id": before_id, "limit": limit}


def _latest(wanted: Wanted) -> float:
    """No execution that matches is as new as this."""
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
    """Labels as their column holds them: null where there are none."""
    return msgspec.json.encode(labels, order="sorted").decode() if labels else None


def summary_of(**row: Any) -> Summary:
    """The columns of a row as its summary."""
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
