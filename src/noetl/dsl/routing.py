"""The ways out of a step: routers with arcs, and the structural `next`."""

from __future__ import annotations

from noetl.dsl.building import (
    Building,
    Home,
    Where,
    deep,
    entries,
    field,
    items,
    text,
    whole,
)
from noetl.dsl.layers import merge
from noetl.dsl.nodes import Mapping, Node, is_null, text_of
from noetl.model.net import Arc, Condition, Patch, Router, Target, Value

FAILURE_NAMES = frozenset({"event", "error"})
FAILURE_PATHS = frozenset(
    (root, part) for root in ("outcome", "output") for part in ("status", "error")
)


def router(building: Building, node: Node | None, home: Home) -> Router:
    """`next` of a step. A list of names is an unconditional fork to all of them."""
    if isinstance(node, Mapping) and {"arcs", "spec"} & set(node.entries):
        policy = deep(node, "spec", "policy")
        arcs = tuple(_arc(building, arc, home, policy) for arc in items(field(node, "arcs")))
        # With one arc the two modes mean the same; one spelling keeps the nets equal.
        spec = field(node, "spec")
        is_fork = text(spec, "mode") == "inclusive" and len(arcs) > 1
        return Router(
            mode="inclusive" if is_fork else "exclusive",
            arcs=arcs,
            quiet=text(spec, "on_no_match") == "quiet",
        )
    found = targets(building, node, home, Where.ARC)
    arcs = tuple(_plain_arc(building, target) for target in found)
    return Router(mode="inclusive" if len(arcs) > 1 else "exclusive", arcs=arcs)


def _plain_arc(building: Building, target: Target) -> Arc:
    arc = Arc(step=target.step, args=target.args)
    building.mark(arc, building.at(target), step=building.at(target, "step"))
    return arc


def _arc(building: Building, node: Node, home: Home, policy: Node | None) -> Arc:
    when = building.condition(field(node, "when"), Where.ARC, home)
    written = building.patch(field(node, "set"), Where.ARC, home)
    args = building.values(field(node, "args"), Where.ARC, home)
    if written is not None:
        args = merge(args, written.local)
        if written.vars:
            building.report.add(
                "bad-value",
                "an arc writes `ctx.…` or carries args; `vars.…` belongs in a rule's `set` or the"
                " step's `vars`.",
                building.at(written),
            )
    step, spec = field(node, "step"), field(node, "spec")
    arc = Arc(
        step=building.value(step, Where.ARC, home) if text_of(step) else "",
        when=when,
        args=args,
        patch=Patch(ctx=written.ctx) if written is not None and written.ctx else None,
        delay=building.amount(deep(node, "spec", "delay"), Where.ARC, home),
        priority=_first(whole(spec, "priority"), whole(policy, "priority"), 0),
        on_failure=_reads_failure(building, when),
        dedupe=_key(building, home, spec, policy, "dedupe"),
        partition=_key(building, home, spec, policy, "partition"),
    )
    guard = field(node, "when")
    building.mark(
        arc,
        node.place,
        step=step.place if step is not None else None,
        when=guard.place if guard is not None else None,
    )
    return arc


def _first(*found: int | None) -> int:
    return next(one for one in found if one is not None)


def _key(
    building: Building, home: Home, spec: Node | None, policy: Node | None, name: str
) -> Value:
    """`{key}` of the arc, or else of its router."""
    node = deep(spec, name, "key") or deep(policy, name, "key")
    return None if node is None else building.value(node, Where.ARC, home)


def _reads_failure(building: Building, when: Condition | None) -> bool:
    if not isinstance(when, str):
        return False
    return any(
        path[0] in FAILURE_NAMES or path[:2] in FAILURE_PATHS
        for path in building.expressions.reads(when)
    )


def targets(building: Building, node: Node | None, home: Home, where: Where) -> tuple[Target, ...]:
    """`name`, `[name, …]`, `[{step, args}, …]` or `{step, args}`."""
    if is_null(node):
        return ()
    assert node is not None
    found = []
    for item in items(node) or [node]:
        step = field(item, "step") if entries(item) else item
        name = text_of(step)
        if step is None or name is None:
            continue
        target = Target(
            step=building.value(step, where, home),
            args=building.values(field(item, "args"), where, home),
        )
        building.mark(target, item.place, step=step.place)
        found.append(target)
    return tuple(found)


def next_action_parts(node: Node | None) -> tuple[Node | None, Node | None]:
    """The targets of a `next` action, and the mapping that holds its settings, if any."""
    if isinstance(node, Mapping) and {"to", "policy", "priority", "spec"} & set(node.entries):
        return field(node, "to"), node
    return node, None
