"""Views: results as templates read them, in every form that playbooks use.

A view stands in the scope in place of a result. It answers lookups (`response.paging.hasMore`,
`result[0].id`, `fetch.data`); every other use of the result gets the plain value. Views occur only
in the scope and as results of a view's lookups, never inside plain data, so plain data need not be
searched for them.

A tool declares the view of its results (`ToolShape.view`); `Views` finds it. A new kind of view is
a subclass of `ResultView` with a `get` of its own, and a name in `VIEWS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Final

from noetl.errors import EvaluationFailed
from noetl.model.toolshape import ToolShape, ViewName
from noetl.templates.taint import Tainted, uncovered

LOOP = "loop"
"""Stands for the result of a loop, where other results have a tool kind."""
TIME_FIELDS: dict[type, tuple[str, ...]] = {
    datetime: ("year", "month", "day", "hour", "minute", "second"),
    date: ("year", "month", "day"),
    time: ("hour", "minute", "second"),
    timedelta: ("days", "seconds"),
}


class Missing:
    """The result of a lookup that finds nothing; `None` is a value like any other."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
REFERENCE_KEYS: Final = frozenset({"_ref", "_store", "_preview"})
"""What a large result, which is kept by reference, can be asked beside its own keys."""


class AliasedName(str):
    """A text that also equals its other names: `event.name` is `step.done` and `step.exit`."""

    __slots__ = ("aliases",)

    aliases: frozenset[str]

    def __new__(cls, name: str, aliases: frozenset[str]) -> AliasedName:
        made = super().__new__(cls, name)
        made.aliases = aliases
        return made

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or (type(other) is str and other in self.aliases)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class View:
    """A result as templates see it: lookups go through `get`, all else through `plain`."""

    __slots__ = ()

    @property
    def plain(self) -> object:
        """The value as JSON, python code and every filter see it."""
        raise NotImplementedError

    def get(self, key: object) -> object:
        """What `view.key` or `view[key]` reads, or MISSING."""
        raise NotImplementedError

    @property
    def keys(self) -> object:
        """What has the keys that people are told of."""
        return self.plain

    def part(self, bounds: slice) -> object:
        """What `view[a:b]` reads; MISSING if the result is not a list or text."""
        return sliced(self.plain, bounds)


class ResultView(View):
    """Any result. `.data` and `.result` are the result itself unless it has that key."""

    __slots__ = ("_plain",)

    def __init__(self, plain: object) -> None:
        self._plain = plain

    @property
    def plain(self) -> object:
        return self._plain

    def get(self, key: object) -> object:
        found = lookup(self._plain, key)
        if found is MISSING and key in ("data", "result"):
            return self
        return found


class AnswerView(ResultView):
    """The answer of a web service: keys that the envelope lacks are looked up in the body, and
    `body` is another name of `data`.
    """

    __slots__ = ()

    def get(self, key: object) -> object:
        found = lookup(self._plain, key)
        if found is not MISSING:
            return found
        body = lookup(self._plain, "data")
        found = lookup(body, key)
        if found is MISSING and key == "body":
            return body
        if found is MISSING and key in ("data", "result"):
            return self
        return found


class LoopView(ResultView):
    """The result of a loop: `.errors` exists even if no iteration failed."""

    __slots__ = ()

    def get(self, key: object) -> object:
        found = super().get(key)
        return [] if found is MISSING and key == "errors" else found


class RowsView(ResultView):
    """Rows of a statement: `[0].id`, `.rows`, `.row_count`, `.columns`, `.command_0.rows`."""

    __slots__ = ()

    @property
    def rows(self) -> object:
        return self._plain if isinstance(self._plain, list) else lookup(self._plain, "rows")

    def get(self, key: object) -> object:
        if type(key) is int:
            return lookup(self.rows, key)
        found = super().get(key)
        if found is MISSING and isinstance(self._plain, list):
            if key == "rows":
                return self._plain
            if key == "row_count":
                return len(self._plain)
        return found

    def part(self, bounds: slice) -> object:
        return sliced(self.rows, bounds)


VIEWS: Mapping[ViewName, type[ResultView]] = {
    "plain": ResultView,
    "answer": AnswerView,
    "rows": RowsView,
}


class Views(dict[str, type[ResultView]]):
    """The view of each tool kind's results, as its tool declares; found when the first of them is
    read. Results of a kind that is not installed here are read by their own keys.
    """

    def __init__(self, tool_of: Callable[[str], ToolShape | None]) -> None:
        super().__init__({"": ResultView, LOOP: LoopView})
        self._tool_of = tool_of

    def __missing__(self, kind: str) -> type[ResultView]:
        tool = self._tool_of(kind)
        found = self[kind] = VIEWS[tool.view] if tool is not None else ResultView
        return found


class OutcomeView(ResultView):
    """The envelope of a finished task; its `result` is read through the view of the tool's kind."""

    __slots__ = ("_seen_as",)

    def __init__(self, seen_as: type[ResultView], plain: Mapping[str, object]) -> None:
        super().__init__(dict(plain))
        self._seen_as = seen_as

    @property
    def keys(self) -> object:
        return self._plain

    def get(self, key: object) -> object:
        found = lookup(self._plain, key)
        if key == "result" and found is not MISSING:
            return view(self._seen_as, found)
        if key == "data" and found is MISSING:
            return self.get("result")
        return found


class EventView(ResultView):
    """An event. Its `name` also equals the event's other names."""

    __slots__ = ("_name",)

    def __init__(self, plain: Mapping[str, object], aliases: frozenset[str]) -> None:
        super().__init__(dict(plain))
        name = plain.get("name", MISSING)
        self._name = AliasedName(name, aliases) if isinstance(name, str) else name

    def get(self, key: object) -> object:
        return self._name if key == "name" else lookup(self._plain, key)


class ViewsByName(View):
    """A mapping of named results, as in `steps.<step>` and `<step>.results.<task>`."""

    __slots__ = ("_views",)

    def __init__(self, views: Mapping[str, object]) -> None:
        self._views = dict(views)

    @property
    def plain(self) -> object:
        return {
            name: part.plain if isinstance(part, View) else part
            for name, part in self._views.items()
        }

    def get(self, key: object) -> object:
        return lookup(self._views, key)

    def with_one(self, name: str, shown: object) -> ViewsByName:
        """A copy with this one replaced or added."""
        return ViewsByName({**self._views, name: shown})


class _Wrapped(View):
    """A view around another one, with further keys; keys of the other win."""

    __slots__ = ("_inner",)

    def __init__(self, inner: View) -> None:
        self._inner = inner

    @property
    def plain(self) -> object:
        return self._inner.plain

    def get(self, key: object) -> object:
        found = self._inner.get(key)
        if found is MISSING:
            return self._further(key)
        return self if found is self._inner else found

    def _further(self, key: object) -> object:
        """The value of a key that this view adds, or MISSING."""
        raise NotImplementedError

    def part(self, bounds: slice) -> object:
        return self._inner.part(bounds)


class StepView(_Wrapped):
    """A step of several tasks: the last one's result, and `.results.<task>` for each.

    A result with a key `results` of its own keeps it.
    """

    __slots__ = ("_tasks",)

    def __init__(self, last: View, tasks: Mapping[str, object]) -> None:
        super().__init__(last)
        self._tasks = ViewsByName(tasks)

    def _further(self, key: object) -> object:
        return self._tasks if key == "results" else MISSING


class KeptView(_Wrapped):
    """A result that is kept by reference: the reference is readable beside its own keys."""

    __slots__ = ("_reference",)

    def __init__(self, result: View, reference: object) -> None:
        super().__init__(result)
        self._reference = reference

    def _further(self, key: object) -> object:
        return lookup(self._reference, key) if key in REFERENCE_KEYS else MISSING


class SelectedView(_Wrapped):
    """A result with names for some of its fields: `output: {select: [{path, as}]}`."""

    __slots__ = ("_paths",)

    def __init__(self, result: View, paths: Mapping[str, str]) -> None:
        super().__init__(result)
        self._paths = paths

    def _further(self, key: object) -> object:
        if isinstance(key, str) and key in self._paths:
            return at_path(self._inner, self._paths[key])
        return MISSING


_KEYS = re.compile(r"[^.\[\]]+")


def at_path(value: object, path: str) -> object:
    """The value at a path such as `rows[0].id`, or MISSING."""
    for part in _KEYS.findall(path):
        key = part.strip("'\"")
        found = lookup(value, key)
        if found is MISSING and key.isdecimal():
            found = lookup(value, int(key))
        if found is MISSING:
            return MISSING
        value = found
    return value


class LostView(View):
    """A result whose body cannot be read: reading it fails and says why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    @property
    def plain(self) -> object:
        raise EvaluationFailed(self.why)

    def get(self, key: object) -> object:
        raise EvaluationFailed(self.why)


class Group(tuple[object, list[object]]):
    """One group of `groupby`: a pair that can also be read as `.grouper` and `.list`."""

    __slots__ = ()


def view(seen_as: type[ResultView], plain: object) -> View | Tainted:
    """The view of a result; for a tainted result, a tainted view."""
    if isinstance(plain, Tainted):
        return Tainted(view(seen_as, uncovered(plain)))
    return seen_as(plain)


def lookup(container: object, key: object) -> object:
    """What `container.key` and `container[key]` read: plain data only, never a Python attribute."""
    if type(container) is dict:
        # A container is no key of plain data, and a tuple would be hashed part by part.
        return MISSING if isinstance(key, list | dict | tuple) else container.get(key, MISSING)
    if isinstance(container, list | tuple | str):
        if isinstance(key, int) and -len(container) <= key < len(container):
            return container[key]
        if type(container) is Group and key in ("grouper", "list"):
            return container[0 if key == "grouper" else 1]
        return MISSING
    if isinstance(container, View):
        return container.get(key)
    if key in TIME_FIELDS.get(type(container), ()):
        return getattr(container, str(key))
    return MISSING


def sliced(container: object, bounds: slice) -> object:
    """What `container[a:b]` reads, for lists and texts."""
    if isinstance(container, View):
        return container.part(bounds)
    if isinstance(container, list | tuple | str):
        return container[bounds]
    return MISSING
