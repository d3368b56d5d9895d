"""How the writes of many iterations become one: folded in iteration order, not arrival."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl.model.net import Reducer, Values

Writes = list[tuple[int, Any]]
"""Iteration and value, in order."""


class ReducerConflict(Exception):
    """Two iterations wrote the same key, and nothing says how the writes combine."""


def reduced(
    reducers: Mapping[str, Reducer], patches: Mapping[int, Values], ctx: Values | None = None
) -> Values:
    """What all iterations together write to ctx, on top of what a reduced key has there."""
    writes: dict[str, Writes] = {}
    for iteration in sorted(patches):
        for key, value in patches[iteration].items():
            writes.setdefault(key, []).append((iteration, value))
    for key in writes:
        _refuse_overlap(key, writes)
    return {
        key: _fold(key, reducers.get(key), writes[key], _found(ctx or {}, key))
        for key in sorted(writes)
    }


def _found(values: Values, path: str) -> Any:
    """What stands at a dotted path; None if nothing does."""
    found: Any = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _refuse_overlap(key: str, writes: Mapping[str, Writes]) -> None:
    """`a` and `a.b` are the same place: who wrote which would decide what is left."""
    above = key.rpartition(".")[0]
    while above:
        if above in writes:
            whole = [iteration for iteration, _ in writes[above]]
            part = [iteration for iteration, _ in writes[key]]
            if len({*whole, *part}) > 1:
                raise ReducerConflict(
                    f"iteration {whole[0]} wrote ctx.{above} and iteration {part[-1]} wrote"
                    f" ctx.{key}, which is a part of it. Write to separate keys."
                )
        above = above.rpartition(".")[0]


def _fold(key: str, reducer: Reducer | None, writes: Writes, before: Any) -> Any:
    values = [value for _, value in writes]
    if reducer is None:
        if len(writes) > 1:
            first, second = writes[0][0], writes[1][0]
            raise ReducerConflict(
                f"iterations {first} and {second} both wrote ctx.{key}. Say how the writes"
                f" combine: `loop.spec.policy.reduce: {{{key}: append}}`."
            )
        return values[0]
    for iteration, value in writes:
        if reducer in _TAKES and not isinstance(value, _TAKES[reducer]):
            raise ReducerConflict(
                f"ctx.{key} cannot be combined by `{reducer}`: iteration {iteration} wrote"
                f" {type(value).__name__}. Check what iterations write."
            )
    if before is not None and reducer in _ADDS_TO and not isinstance(before, _ADDS_TO[reducer]):
        raise ReducerConflict(
            f"ctx.{key} cannot be combined by `{reducer}`: before the loop it was"
            f" {type(before).__name__}. Give the loop a key of its own."
        )
    try:
        return _FOLDS[reducer](values, before)
    except TypeError as error:
        raise ReducerConflict(
            f"ctx.{key} cannot be combined by `{reducer}`: {error}. Check what iterations write."
        ) from None


def _merged(values: list[Any], before: Any) -> Any:
    total: Values = dict(before or {})
    for value in values:
        total.update(value)
    return total


def _with(values: list[Any], before: Any) -> list[Any]:
    return values if before is None else [before, *values]


_TAKES: dict[str, type | tuple[type, ...]] = {
    "extend": list,
    "merge": dict,
    "sum": (int, float),
}
"""What a value must be for the reducer to make sense of it."""
_ADDS_TO: dict[str, type | tuple[type, ...]] = {
    "append": list,
    "extend": list,
    "merge": dict,
    "sum": (int, float),
    "count": int,
}
"""What ctx must hold already for the reducer to add to it, if it holds anything."""
_FOLDS: dict[str, Callable[[list[Any], Any], Any]] = {
    "append": lambda values, before: [*(before or []), *values],
    "extend": lambda values, before: [*(before or []), *(one for value in values for one in value)],
    "sum": lambda values, before: sum(values, before or 0),
    "min": lambda values, before: min(_with(values, before)),
    "max": lambda values, before: max(_with(values, before)),
    "merge": _merged,
    "count": lambda values, before: (before or 0) + len(values),
    "last": lambda values, before: values[-1],
    "first": lambda values, before: _with(values, before)[0],
}
