"""Task policy rules and the three written forms of `retry`, as rules of the net."""

from __future__ import annotations

from typing import get_args

import msgspec

from noetl.dsl.building import (
    Building,
    Home,
    Where,
    deep,
    entries,
    field,
    flag,
    items,
    text,
    word,
)
from noetl.dsl.layers import within
from noetl.dsl.nodes import Mapping, Node, Scalar, text_of
from noetl.model.net import (
    AnyAction,
    Backoff,
    Break,
    Collect,
    CollectMode,
    Continue,
    DirectiveKind,
    Fail,
    Jump,
    Patch,
    Retry,
    Rule,
    Run,
    Values,
)

ON_ANY_ERROR = "{{ outcome.status == 'error' }}"


def default_retry(building: Building) -> Rule:
    """What `on_error: retry` means for a task that says nothing itself."""
    again = Retry(attempts=3, backoff="exponential", delay=1)
    return Rule(label="retry", when=ON_ANY_ERROR, actions=(_limited(building, again, None),))


def else_body(rule: Node) -> Node | None:
    """What stands under `else`, with or without `then`."""
    body = field(rule, "else")
    return field(body, "then") if "then" in entries(body) else body


def task_rules(building: Building, policy: Node | None, home: Home) -> tuple[Rule, ...]:
    """`spec.policy.rules` of a task."""
    rules = []
    for index, node in enumerate(items(field(policy, "rules"))):
        is_else = "else" in entries(node)
        then = else_body(node) if is_else else field(node, "then")
        rule = Rule(
            label=f"rule_{index}",
            when=None if is_else else building.condition(field(node, "when"), Where.POLICY, home),
            actions=_directive(building, then, home),
        )
        building.mark(rule, node.place)
        rules.append(rule)
    if text(policy, "on_unmatched") == "fail" and not any(rule.when is None for rule in rules):
        rules.append(Rule(label="unmatched", actions=(Fail(),)))
    return tuple(rules)


def _directive(building: Building, then: Node | None, home: Home) -> tuple[AnyAction, ...]:
    """What a rule writes, then where it goes."""
    patches = [
        building.patch(field(then, "set"), Where.POLICY, home),
        _named_patch(building, then, home),
    ]
    written = [patch for patch in patches if patch is not None]
    match word(then, DirectiveKind, "do"):
        case "retry":
            last: AnyAction = retry(building, then, home, Where.POLICY)
        case "jump":
            last = _jump(building, then)
        case "break":
            last = Break()
        case "fail":
            last = Fail(error=building.value(field(then, "error"), Where.POLICY, home))
        case _:
            last = Continue()
    return (*written, last)


def _named_patch(building: Building, then: Node | None, home: Home) -> Patch | None:
    """`set_ctx` and `set_iter`."""
    ctx, iteration = field(then, "set_ctx"), field(then, "set_iter")
    if ctx is None and iteration is None:
        return None
    patch = Patch(
        ctx=building.values(ctx, Where.POLICY, home),
        iter=building.values(iteration, Where.POLICY, home),
    )
    place = (ctx or iteration).place  # type: ignore[union-attr]
    building.mark(patch, place)
    return patch


def _jump(building: Building, then: Node | None) -> Jump:
    target = field(then, "to")
    assert then is not None
    if target is None:
        building.report.add("missing-key", "`do: jump` needs `to`: the task to go to.", then.place)
    jump = Jump(to=text_of(target) or "")
    building.mark(jump, then.place, to=target.place if target is not None else None)
    return jump


def retry(building: Building, node: Node | None, home: Home, where: Where) -> Retry:
    """Any written form of "again, after a wait"."""
    backoff = field(node, "backoff")
    detail = backoff if isinstance(backoff, Mapping) else None
    attempts_node = field(node, "attempts", "max_attempts")
    delay = building.amount(
        field(node, "delay", "initial_delay", "delay_seconds")
        or field(detail, "delay_seconds", "delay"),
        where,
        home,
    )
    multiplier = building.amount(
        field(node, "multiplier", "backoff_multiplier") or field(detail, "multiplier"), where, home
    )
    shape = text_of(backoff) if isinstance(backoff, Scalar) else text(detail, "type")
    if shape not in get_args(Backoff):
        # A multiplier, or nothing but tries, says how the waits grow without naming it.
        shape = "exponential" if multiplier is not None else "fixed"
    if delay is None:
        delay = 1 if backoff is not None and shape != "none" else 0
    made = Retry(
        attempts=building.amount(attempts_node, where, home) or 3,
        backoff=shape,  # type: ignore[arg-type]
        delay=delay,
        max_delay=building.amount(
            field(node, "max_delay", "max_delay_seconds")
            or field(detail, "max_delay_seconds", "max_delay"),
            where,
            home,
        ),
        multiplier=2 if multiplier is None else multiplier,
        jitter=bool(flag(node, "jitter") or flag(detail, "jitter")),
    )
    return _limited(building, made, attempts_node)


def _limited(building: Building, made: Retry, written: Node | None) -> Retry:
    """No more tries than the limit allows; only what was written is complained about."""
    limit = building.limits.max_attempts
    attempts = made.attempts
    if written is not None:
        attempts = (
            within(building, attempts, limit, "the number of tries", written.place) or attempts
        )
    elif limit is not None and not isinstance(attempts, str):
        attempts = min(attempts, limit)
    return msgspec.structs.replace(made, attempts=attempts)


def retry_rules(
    building: Building,
    node: Node | None,
    home: Home,
    spec: Values | None = None,
    scopes: tuple[str, ...] = ("tool",),
) -> tuple[Rule, ...]:
    """`retry` of a task or step: a mapping, or a list of policies with their own conditions."""
    if isinstance(node, Mapping):
        check_scope(building, node, scopes)
        rule = Rule(
            label="retry",
            when=_retry_condition(building, node, home),
            actions=(retry(building, node, home, Where.RETRY),),
        )
        building.mark(rule, node.place)
        return (rule,)
    return tuple(
        _retry_policy(building, policy, f"retry_{index}", home, spec or {})
        for index, policy in enumerate(items(node))
    )


def check_scope(building: Building, node: Node | None, scopes: tuple[str, ...]) -> None:
    """A `scope` that means nothing where it stands must not pass for one that does."""
    written = field(node, "scope")
    if written is not None and text_of(written) in {"tool", "chain", "step"} - {*scopes}:
        building.report.add(
            "policy-out-of-place",
            f"`scope: {text_of(written)}` has no meaning here, only {' and '.join(scopes)}."
            " `chain` belongs to the `retry` of a case rule, `step` to that of a step.",
            written.place,
        )


def _retry_condition(building: Building, node: Node, home: Home) -> bool | str:
    written = building.condition(field(node, "when"), Where.RETRY, home)
    if written is not None:
        return written
    on = field(node, "on")
    kinds = [text_of(item) for item in items(on)] or [text_of(on)]
    named = [kind for kind in kinds if kind not in (None, "error", "any")]
    if not named:
        return ON_ANY_ERROR
    return f"{{{{ outcome.status == 'error' and outcome.error.kind in {named!r} }}}}"


def _retry_policy(building: Building, node: Node, label: str, home: Home, spec: Values) -> Rule:
    from noetl.dsl.tasks import sink_task  # a sink holds a task, and a task may hold a retry

    then = field(node, "then")
    actions: list[AnyAction] = []
    kept = field(then, "collect")
    if kept is not None:
        actions.append(collect(building, kept))
    sink = field(then, "sink")
    if sink is not None:
        actions.append(Run(task=sink_task(building, sink, f"{label}_sink", home, spec), sink=True))
    again = retry(building, then, home, Where.RETRY)
    overrides = building.values(field(then, "next_call"), Where.RETRY, home)
    actions.append(msgspec.structs.replace(again, overrides=overrides))
    rule = Rule(
        label=label,
        when=building.condition(field(node, "when"), Where.RETRY, home),
        actions=tuple(actions),
    )
    building.mark(rule, node.place)
    return rule


def collect(building: Building, node: Node) -> Collect:
    made = Collect(
        source=_collected(node),
        into=text(node, "into") or "",
        mode=word(node, CollectMode, "mode", "strategy") or "append",
    )
    building.mark(made, node.place)
    return made


def _collected(node: Node) -> str:
    """`from` is a path from the root; `path` continues from the response."""
    path = text(node, "path")
    return text(node, "from") or (f"response.{path}" if path else "response")


def policy_of(task: Node | None) -> Node | None:
    return deep(task, "spec", "policy")
