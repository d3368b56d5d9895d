"""Event rules: `case` with its conditions and chains of actions."""

from __future__ import annotations

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import (
    Building,
    Home,
    Use,
    Where,
    entries,
    field,
    items,
    text,
    whole,
    word,
)
from noetl.dsl.case_shapes import ACTIONS
from noetl.dsl.grammar import has_template
from noetl.dsl.layers import knobs, merge
from noetl.dsl.nodes import Node
from noetl.dsl.policies import check_scope, collect, else_body, retry, retry_rules
from noetl.dsl.routing import next_action_parts, targets
from noetl.dsl.tasks import Frame, nothing, sink_task, task
from noetl.model.net import (
    AnyAction,
    Call,
    CaseSettings,
    EventRule,
    Fail,
    MatchMode,
    NextPolicy,
    Patch,
    Result,
    Route,
    RuleOrder,
    Run,
    Skip,
    Task,
)


def case_settings(step: Node | None) -> CaseSettings:
    spec = field(step, "spec")
    rules = items(field(step, "case"))
    return CaseSettings(
        mode=word(spec, MatchMode, "case_mode") or "exclusive",
        order=word(spec, RuleOrder, "branch_order") or "source",
        next_policy=word(spec, NextPolicy, "next_policy") or "end_step",
        wait=text(spec, "eval_mode") == "on_event",
        independent=bool(rules) and all(isinstance(_then(rule), nodes.Mapping) for rule in rules),
    )


def event_rules(building: Building, case: Node | None, frame: Frame) -> tuple[EventRule, ...]:
    return tuple(
        _rule(building, node, f"case_{index}", frame) for index, node in enumerate(items(case))
    )


def _then(rule: Node) -> Node | None:
    return else_body(rule) if "else" in entries(rule) else field(rule, "then")


def _rule(building: Building, node: Node, label: str, frame: Frame) -> EventRule:
    is_else = "else" in entries(node)
    when = None if is_else else building.condition(field(node, "when"), Where.CASE, frame.home)
    settings = field(node, "else") if is_else else node
    chain = field(settings, "retry") if "then" in entries(settings) or not is_else else None
    restarts = chain is not None and text(chain, "scope") == "chain"
    check_scope(building, chain, ("tool", "chain"))
    if chain is not None and not restarts:
        # Not scoped to the chain: a default for the tasks in it.
        inherited = retry_rules(building, chain, frame.home)
        frame = msgspec.structs.replace(frame, retries=inherited)
    rule = EventRule(
        label=label,
        when=when,
        actions=_actions(building, _then(node), label, frame),
        events=building.expressions.event_names(when) if isinstance(when, str) else None,
        priority=whole(settings, "priority") or 0,
        retry=retry(building, chain, frame.home, Where.RETRY) if restarts else None,
    )
    building.mark(rule, node.place)
    return rule


def _actions(
    building: Building, then: Node | None, label: str, frame: Frame
) -> tuple[AnyAction, ...]:
    """The chain in the order written, from either form of `then`."""
    found: list[AnyAction] = []
    blocks: list[Node | None] = [*items(then)] or [then]
    for block in blocks:
        for key, node in entries(block).items():
            if key in ACTIONS:
                action = _action(building, key, node, label, frame)
            elif isinstance(node, nodes.Mapping):
                action = Run(task=_named_task(building, key, node, frame, block))
            else:
                continue
            building.mark(action, node.place)
            found.append(action)
    return tuple(found)


def _action(building: Building, key: str, node: Node, label: str, frame: Frame) -> AnyAction:
    home = frame.home
    match key:
        case "call":
            overrides = building.values(node, Where.CASE_TASK, home)
            return Call(max_calls=overrides.pop("max_calls", None), overrides=overrides)
        case "retry":
            check_scope(building, node, ("tool",))
            return retry(building, node, home, Where.CASE)
        case "collect":
            return collect(building, node)
        case "sink":
            return Run(task=sink_task(building, node, f"{label}_sink", home, frame.spec), sink=True)
        case "set":
            return building.patch(node, Where.CASE, home) or Patch()
        case "result":
            return Result(value=_result(building, node, home))
        case "next":
            return _route(building, node, home)
        case "skip":
            return Skip()
        case _:
            return Fail(error=_error(building, node, home))


def _result(building: Building, node: Node, home: Home) -> object:
    """`from: pages` names a value; as a template it is one like any other."""
    source = text(node, "from")
    if source is None:
        return building.value(field(node, "value"), Where.CASE, home)
    template = source if has_template(source) else f"{{{{ {source} }}}}"
    building.uses.append(Use(template, node.place, Where.CASE, home))
    return template


def _error(building: Building, node: Node, home: Home) -> object:
    if isinstance(node, nodes.Scalar) and isinstance(node.value, bool):
        return None
    return building.value(field(node, "error", "message") or node, Where.CASE, home)


def _route(building: Building, node: Node, home: Home) -> Route:
    to, settings = next_action_parts(node)
    return Route(
        targets=targets(building, to, home, Where.CASE_NEXT),
        policy=word(settings, NextPolicy, "policy"),
        priority=whole(settings, "priority"),
        delay=building.amount(field(field(settings, "spec"), "delay"), Where.CASE_NEXT, home),
    )


def _named_task(
    building: Building, name: str, node: nodes.Mapping, frame: Frame, block: Node | None
) -> Task:
    """`name: {tool: {kind: …}, retry, poll, args, spec, set}`: both levels make one task."""
    tool = field(node, "tool")
    if not isinstance(tool, nodes.Mapping):
        return nothing(building, name, node.place)
    joined = nodes.Mapping(tool.place)
    for source in (tool, node):
        for key, value in source.entries.items():
            if key != "tool":
                joined.put(key, source.keys[key], value)
    both = merge(knobs(field(tool, "spec")), knobs(field(node, "spec")))
    place = block.keys.get(name) if isinstance(block, nodes.Mapping) else None
    return task(
        building,
        joined,
        name,
        msgspec.structs.replace(frame, spec=merge(frame.spec, both), where=Where.CASE_TASK),
        place,
    )
