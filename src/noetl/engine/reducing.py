"""How the writes of many iterations become one: folded in iteration order, not arrival."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl.model.net import Reducer, Values


class ReducerConflict(Exception):
    """Two iterations wrote the same key, and nothing says how the writes combine."""


def _merged(total: Any, value: Any) -> Any:
    return {**total, **value}


_FOLDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    # How the first write becomes the total, and how each further one is added to it.
    "append": (lambda value: [value], lambda total, value: [*total, value]),
    "extend": (list, lambda total, value: [*total, *value]),
    "sum": (lambda value: value, lambda total, value: total + value),
    "min": (lambda value: value, min),
    "max": (lambda value: value, max),
    "merge": (lambda value: value, _merged),
    "count": (lambda _: 1, lambda total, _: total + 1),
    "last": (lambda value: value, lambda _, value: value),
    "first": (lambda value: value, lambda total, _: total),
}


def reduced(reducers: Mapping[str, Reducer], patches: Mapping[int, Values]) -> Values:
    """What all iterations together write to ctx."""
    writes: dict[str, list[tuple[int, Any]]] = {}
    for iteration in sorted(patches):
        for key, value in patches[iteration].items():
            writes.setdefault(key, []).append((iteration, value))
    return {key: _fold(key, reducers.get(key), found) for key, found in sorted(writes.items())}


def _fold(key: str, reducer: Reducer | None, writes: list[tuple[int, Any]]) -> Any:
    if reducer is None:
        if len(writes) > 1:
            first, second = writes[0][0], writes[1][0]
            raise ReducerConflict(
                f"iterations {first} and {second} both wrote ctx.{key}. Say how the writes"
                f" combine: `loop.spec.policy.reduce: {{{key}: append}}`."
            )
        return writes[0][1]
    values = [value for _, value in writes]
    if reducer == "append":
        return values
    if reducer == "extend":
        return [item for value in values for item in value]
    begin, add = _FOLDS[reducer]
    try:
        total = begin(values[0])
        for value in values[1:]:
            total = add(total, value)
    except TypeError as error:
        raise ReducerConflict(
            f"ctx.{key} cannot be combined by `{reducer}`: {error}. Check what iterations write."
        ) from None
    return total
