"""Layers of `spec`: how outer settings reach a task, and what none of them may exceed."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Home, Where, deep, entries, field
from noetl.dsl.nodes import Node
from noetl.dsl.policy_shapes import KNOBS
from noetl.model.duration import seconds
from noetl.model.net import Amount, Limits, Quotas, Values
from noetl.model.problems import Place

Bounds = TypeVar("Bounds", Limits, Quotas)


def merge(outer: Values, inner: Values) -> Values:
    """Maps merge deeply; scalars and lists: the inner one wins."""
    merged = dict(outer)
    for key, value in inner.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return {key: merged[key] for key in sorted(merged)}


def knobs(spec: Node | None) -> Values:
    """The runtime knobs of one `spec`, the part that inner layers inherit."""
    return {
        key: _in_seconds(nodes.plain(value)) if key == "timeout" else nodes.plain(value)
        for key, value in entries(spec).items()
        if key in KNOBS and not nodes.is_null(value)
    }


def noted_knobs(building: Building, spec: Node | None, home: Home) -> Values:
    """The same, with the templates in them noted as those of a task."""
    for key, value in entries(spec).items():
        if key in KNOBS:
            building.value(value, Where.TASK, home)
    return knobs(spec)


def executor_knobs(executor: Node | None) -> Values:
    """What the executor hands down: its own knobs over its default timeouts and resources."""
    defaults = deep(executor, "spec", "policy", "defaults")
    found: Values = {}
    task_timeout = deep(defaults, "timeouts", "task")
    if task_timeout is not None:
        found["timeout"] = _in_seconds(nodes.plain(task_timeout))
    resources = field(defaults, "resources")
    if resources is not None:
        found["resources"] = nodes.plain(resources)
    return merge(found, knobs(field(executor, "spec")))


def _in_seconds(written: Any) -> Any:
    if isinstance(written, dict):
        return {key: _in_seconds(value) for key, value in sorted(written.items())}
    if isinstance(written, str):
        length = seconds(written)
        return written if length is None else length
    return written


def written_limits(executor: Node | None) -> Limits:
    """`executor.spec.policy.limits` and `quotas`, where well-formed."""
    policy = deep(executor, "spec", "policy")
    return _numbers(
        {**entries(field(policy, "limits")), **entries(field(policy, "quotas"))}, Limits
    )


def written_quotas(policy: Node | None) -> Quotas:
    """`quotas` of a step's policy, where well-formed."""
    return _numbers(entries(field(policy, "quotas")), Quotas)


def _numbers(written: dict[str, Node], made: type[Bounds]) -> Bounds:
    values = {key: nodes.plain(value) for key, value in written.items()}
    numbers = {
        key: value
        for key, value in values.items()
        if key in made.__struct_fields__
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }
    try:
        return msgspec.convert(numbers, made)
    except msgspec.ValidationError:
        return made()


def within(
    building: Building, asked: Amount | None, limit: float | None, what: str, place: Place
) -> Amount | None:
    """What is asked for, cut to the limit; a template is cut when it is evaluated."""
    if limit is None or not isinstance(asked, int | float) or asked <= limit:
        return asked
    building.report.add(
        "limit-applied",
        f"{what} is {asked:g}, but the limit here is {limit:g}: {limit:g} applies.",
        place,
    )
    return limit
