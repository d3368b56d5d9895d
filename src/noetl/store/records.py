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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from noetl.model.execution_query import Condition, Wanted
from noetl.model.ids import ExecutionId
from noetl.model.state import TERMINAL
from noetl.store.database import Database, columns_of


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
    """What a step waits for, `form` or `event` from outside, or `timer`; empty: nothing. None: as
    above."""


class Run(NamedTuple):
    """An execution of a playbook, as far as a mark shows it."""

    path: str
    execution_id: ExecutionId
    status: str
    waits: str | None
    requested_at: float
    ended_at: float | None


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    """A saved query of executions."""

    name: str
    q: str
    columns: tuple[str, ...] = ()
    owner: str = ""
    updated_at: float = 0.0


PLACE = "/* conditions */"
"""Marks the place of the conditions in a statement."""
_OWN_PARAMETER = re.compile(r"(?<!:):(?!now\b)(\w+)")
"""A parameter of one condition; `now` is the same for all."""
_decode_steps = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode

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
    wanted: Wanted, column: Callable[..., Awaitable[list[Any]]]
) -> dict[Condition, Lookup]:
    """Better forms of the conditions of a query, if there are any.

    `column` is that of the database.
    """
    found: dict[Condition, Lookup] = {}
    for term in wanted:
        for condition in {*term.conditions} - found.keys():
            if condition.field not in LOOKED_UP:
                continue
            statement, fragment = LOOKED_UP[condition.field]
            if condition.field in ("path_like", "text"):
                paths = await column(statement, **_values(condition), max=PATHS_MAX)
                # A null at the end means that there are no more.
                if None in paths:
                    matching = tuple(path for path in paths if path is not None)
                    found[condition] = Lookup(fragment, matching)
            elif not term.negated:
                [count] = await column(statement, **_values(condition), max=FEW + 1)
                if count <= FEW:
                    found[condition] = Lookup(fragment)
    return found


def like(text: str) -> str:
    """Text that LIKE … ESCAPE '\\' matches literally."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def composed(
    queries: Mapping[str, str],
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
            suffix = f"_{len(values)}"
            lookup = (lookups or {}).get(condition) or Lookup(_fragment(condition))
            given = {**_values(condition), "paths": list(lookup.paths)}
            fragment = queries[f"where_{lookup.fragment}"]
            for found in {*_OWN_PARAMETER.findall(fragment)}:
                values[found + suffix] = given[found]
            parts.append(_OWN_PARAMETER.sub(rf":\1{suffix}", fragment))
        joined = " OR ".join(parts)
        terms.append(f"({joined}) IS NOT TRUE" if term.negated else f"({joined})")
    said = "".join(f"\n   AND {term}" for term in terms)
    return queries[name].replace(PLACE, said), values


def _fragment(condition: Condition) -> str:
    """Where executions end is written out: an index of those that have ended is found by that."""
    if condition.field == "status":
        return ENDS.get(str(condition.value), "status")
    return condition.field


def _values(condition: Condition) -> dict[str, Any]:
    """All forms of its value; a statement takes the one that it needs."""
    text = str(condition.value)
    in_json = _encode(text).decode() if condition.field == "step" else text
    return {
        "value": condition.value,
        "key": condition.key,
        "begin": f"{like(text)}%",
        "end": f"%{like(text)}",
        "within": f"%{like(in_json)}%",
        "glob": text.replace("[", "[[]"),
        "like": like(text).replace("*", "%").replace("?", "_"),
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


def columns_of_summary(summary: Summary) -> dict[str, Any]:
    """A summary as the columns of its row."""
    columns = msgspec.structs.asdict(summary)
    columns["current_steps"] = _encode(summary.current_steps).decode()
    labels = columns["labels"]
    columns["labels"] = msgspec.json.encode(labels, order="sorted").decode() if labels else None
    return columns


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


class Records:
    """Lists of executions, and saved queries of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def summary(self, execution_id: ExecutionId) -> Summary | None:
        """The list row of one execution."""
        return await self._database.row("summary", summary_of, execution_id=execution_id)

    async def by_key(self, key: str) -> Summary | None:
        """The execution that was started under this idempotency key."""
        return await self._database.row("summary_by_key", summary_of, key=key)

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
        found = await self._found("summaries", wanted, now, **page(wanted, before, limit))
        fields = Summary.__struct_fields__
        return [summary_of(**dict(zip(fields, row, strict=True))) for row in found]

    async def latest_runs(self, paths: Sequence[str], *, limit: int) -> list[Run]:
        """The newest executions of each of some playbooks, by path, newest first."""
        return await self._database.rows("latest_runs", Run, paths=list(paths), limit=limit)

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        """How many executions match."""
        [(count,)] = await self._found("executions_count", wanted, now)
        return int(count)

    async def span(self) -> tuple[float, float] | None:
        """When the first and the last execution were requested; None if there is none."""
        [(first, last)] = await self._database.tuples("executions_span")
        return None if first is None else (first, last)

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        """How many executions match by time and status, from `begin` to before `end`: bucket
        number, status and count, in order, without empty ones.
        """
        chosen = {"begin": begin, "width": width, "end": end}
        return sorted(await self._found("executions_histogram", wanted, now, **chosen))

    async def _found(self, name: str, wanted: Wanted, now: float, **values: Any) -> list[Any]:
        """Every row of a statement with the conditions of a query."""
        lookups = await looked_up(wanted, self._database.column)
        statement, chosen = composed(self._database.queries, name, wanted, now, lookups)
        return await self._database.composed(statement, chosen | values)

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        """The values of a label and how many executions have each, most frequent first."""
        return await self._database.tuples(
            "label_counts", label=label, since=-math.inf if since is None else since, limit=limit
        )

    async def unfinished(self) -> list[ExecutionId]:
        """Every execution that has not ended."""
        return await self._database.column("unfinished")

    async def ended(
        self, *, after: tuple[float, ExecutionId], before: float, limit: int
    ) -> list[tuple[float, ExecutionId]]:
        """When executions ended, and their ids, oldest first: of those that ended before a moment,
        called ones included. `after` is where the last page ended. Reads all executions."""
        at, execution_id = after
        return await self._database.tuples(
            "ended_since", at=at, execution_id=execution_id, before=before, limit=limit
        )

    async def views(self) -> list[SavedView]:
        """All, by name."""
        return await self._database.rows("views", SavedView)

    async def put_view(self, view: SavedView) -> None:
        """Create or replace it."""
        await self._database.change("put_view", **columns_of(view))

    async def delete_view(self, name: str) -> bool:
        """Delete it. Returns whether it existed."""
        return await self._database.change("delete_view", name=name) > 0
