"""Loops: every way to write one, as one `Loop`."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Home, Where, deep, entries, field, text, whole, word
from noetl.dsl.layers import within
from noetl.dsl.nodes import Mapping, Node
from noetl.model.net import (
    FRAME_ROWS,
    Amount,
    Cursor,
    FrameProcess,
    Locality,
    Loop,
    OnIterationError,
    Range,
    Reducer,
)


def iterator_of(node: Node | None) -> str | None:
    return text(node, "iterator", "element")


def loop(building: Building, node: Node | None, home: Home) -> Loop | None:
    """The loop of a step or workbook entry; None if it has none, or one too broken to use."""
    iterator = iterator_of(node)
    if not isinstance(node, Mapping) or iterator is None:
        return None
    spec = field(node, "spec")
    policy = field(spec, "policy")
    collection = field(node, "in", "collection")
    counted = isinstance(collection, Mapping) and "to" in collection.entries
    made = Loop(
        iterator=iterator,
        items=None if counted else building.value(collection, Where.LOOP, home),
        range=_range(building, collection, home) if counted else None,
        cursor=_cursor(building, node, home),
        mode=_mode(node),
        max_in_flight=_in_flight(building, spec, policy, home),
        batch_size=building.amount(field(spec, "batch_size"), Where.LOOP, home),
        on_error=word(spec, OnIterationError, "on_error") or "fail",
        placement=word(policy, Locality, "exec") or "distributed",
        reduce=_reducers(field(policy, "reduce")),
        partition=building.value(deep(policy, "partition", "key"), Where.LOOP_ARGS, home),
        max_pending=whole(field(policy, "backpressure"), "max_pending"),
    )
    iterator_node = field(node, "iterator", "element")
    building.mark(made, node.place, iterator=iterator_node.place if iterator_node else None)
    return made


def _mode(node: Node) -> Any:
    spec = field(node, "spec")
    written = text(node, "mode") or text(spec, "mode") or text(field(spec, "policy"), "mode")
    if "cursor" in entries(node):
        # A cursor claims rows by up to `max_in_flight` frames at once.
        return "parallel"
    return written if written in ("sequential", "parallel") else "sequential"


def _in_flight(
    building: Building, spec: Node | None, policy: Node | None, home: Home
) -> Amount | None:
    node = field(spec, "max_in_flight") or field(policy, "max_in_flight")
    asked = building.amount(node, Where.LOOP, home)
    if node is None:
        return building.limits.max_in_flight
    return within(building, asked, building.limits.max_in_flight, "max_in_flight", node.place)


def _reducers(node: Node | None) -> dict[str, Reducer]:
    found = {key: nodes.text_of(value) for key, value in entries(node).items()}
    return {key: found[key] for key in sorted(found) if found[key] in get_args(Reducer)}  # type: ignore[misc]


def _range(building: Building, node: Node | None, home: Home) -> Range:
    start, stop, step = (
        building.amount(field(node, key), Where.LOOP, home) for key in ("from", "to", "step")
    )
    return Range(
        start=_number(field(node, "from"), start, 0),
        stop=_number(field(node, "to"), stop, 0),
        step=_number(field(node, "step"), step, 1),
    )


def _number(node: Node | None, found: Amount | None, default: int) -> Amount:
    """Numbers of a range may be negative, which durations may not."""
    if isinstance(node, nodes.Scalar) and isinstance(node.value, int | float):
        return node.value
    return default if found is None else found


def _cursor(building: Building, node: Node, home: Home) -> Cursor | None:
    written = field(node, "cursor")
    if not isinstance(written, Mapping):
        return None
    frame = field(field(node, "spec"), "frame")
    amounts = {
        key: found
        for key in ("max_rows", "row_concurrency", "lease_seconds", "max_attempts")
        if (found := building.amount(field(frame, key), Where.LOOP, home)) is not None
    }
    in_claim = msgspec.structs.replace(home, iterators=(*home.iterators, FRAME_ROWS))
    return Cursor(
        kind=text(written, "kind") or "",
        auth=building.value(field(written, "auth"), Where.TASK, home),
        database=building.value(field(written, "database"), Where.TASK, home),
        claim=building.value(field(written, "claim"), Where.TASK, in_claim) or "",
        params=building.value(field(written, "params"), Where.TASK, home),
        process=word(frame, FrameProcess, "process") or "row",
        **amounts,
    )
