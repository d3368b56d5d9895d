"""The ways out of a step: routers with arcs, and the structural `next`."""

from __future__ import annotations

from typing import TypeVar

from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import (
    PRIORITY,
    STEP_NAME,
    Anything,
    Duration,
    Either,
    ListOf,
    Made,
    OneOf,
    OrOlder,
    Placed,
    When,
    define,
    field,
    has_key,
    is_list,
    is_mapping,
    is_text,
    one_of,
)
from noetl.dsl.layers import VALUES, merge
from noetl.dsl.nodes import Node, text_of
from noetl.dsl.policies import CONTROL, astray_policies
from noetl.model.net import Arc, Condition, MatchMode, NextPolicy, Patch, Route, Router, Target

FAILURE_NAMES = frozenset({"event", "error"})
FAILURE_PATHS = frozenset(
    (root, part) for root in ("outcome", "output") for part in ("status", "error")
)

# --- How they are written ------------------------------------------------------------------------

_CONDITIONAL_NEXT = (
    "`next` is unconditional here. Write `next: {arcs: [{step, when}]}`, or a `case` rule."
)
_ARGS = "values for the next step are its `args`."


class WrittenTarget(
    Placed,
    title="a target",
    removed=dict.fromkeys(("when", "then", "else"), _CONDITIONAL_NEXT)
    | dict.fromkeys(("with", "input"), _ARGS),
):
    """A step to go to, and what the token carries."""

    step: Node | None = field(STEP_NAME, "The step to go to.", required=True)
    args: Node | None = field(VALUES, "What the token carries.")


WrittenTargets = tuple[Node | WrittenTarget, ...]
"""A node is the name of a step."""
_SEVERAL = Either("a step", (is_text, STEP_NAME), (is_mapping, WrittenTarget.shape))
TARGETS = define(
    "targets",
    Either(
        "a step name or a list of steps",
        (is_text, Made(STEP_NAME, lambda name: (name,))),
        (is_list, ListOf(_SEVERAL, "steps", filled=True)),
        (
            has_key("step", "when", "then", "else", "with", "input"),
            Made(WrittenTarget.shape, lambda target: (target,)),
        ),
    ),
)


class _ActionSpec(Placed, title="a `next` action's `spec`"):
    delay: Node | None = field(Duration(), "Wait first.")


class WrittenNextAction(Placed, title="a `next` action"):
    """`next` of an event rule, with its settings."""

    to: WrittenTargets | None = field(TARGETS, "Where to go.", required=True)
    policy: NextPolicy | None = field(one_of(NextPolicy), "What happens to the other branches.")
    priority: int | None = field(PRIORITY, "Highest wins under defer.")
    spec: _ActionSpec = field(_ActionSpec)


NEXT_ACTION = Either(
    "a step name, a list of steps or {to: …}",
    (has_key("to", "policy", "priority", "spec"), WrittenNextAction.shape),
    (lambda _: True, TARGETS),
)


class _Key(Placed):
    key: Node | None = field(
        Anything(), "A template; tokens with equal values have the same key.", required=True
    )


class _Dedupe(_Key, title="`dedupe`"):
    pass


class _Partition(_Key, title="`partition`"):
    pass


class _Quality(Placed):
    """How the tokens of an arc are served."""

    priority: int | None = field(
        PRIORITY, "Of the commands that wait in a pool, higher ones go first."
    )
    dedupe: _Dedupe = field(_Dedupe, "Absorb a token whose key this arc has carried before.")
    partition: _Partition = field(
        _Partition, "Tokens with the same key run one after another, others in parallel."
    )


class _RouterPolicy(_Quality, title="a router's policy", astray=astray_policies("a router")):
    pass


class _RouterSpec(Placed, title="a router's `spec`", astray={"do": CONTROL}):
    mode: MatchMode | None = field(one_of(MatchMode), "First arc, or all that hold.")
    on_no_match: str | None = field(
        OrOlder(OneOf("quiet"), {"const": "complete"}, "This is the default; leave it out."),
        "No warning if no arc holds: the token may end here.",
    )
    policy: _RouterPolicy = field(_RouterPolicy, "For all arcs that do not say otherwise.")


class _ArcSpec(_Quality, title="an arc's `spec`"):
    delay: Node | None = field(Duration(), "Wait before the token leaves.")


class WrittenArc(
    Placed,
    title="an arc",
    first=("step", "when", "args", "set", "spec"),
    removed={
        "then": "an arc names its `step` directly.",
        "else": "leave out `when` on the last arc.",
        **dict.fromkeys(("with", "input"), _ARGS),
        **dict.fromkeys(("expr", "if", "condition"), "write the guard as `when`."),
        **dict.fromkeys(("to", "target", "next", "goto"), "the step that it leads to is `step`."),
    },
):
    """A way out of a step."""

    step: Node | None = field(STEP_NAME, "The step to go to.", required=True)
    when: Node | None = field(When(), "The guard.")
    args: Node | None = field(VALUES, "What the token carries.")
    set: Node | None = field(VALUES, "`ctx.x` patches ctx, other keys are args.")
    spec: _ArcSpec = field(_ArcSpec)


class WrittenRouter(Placed, title="a router", first=("spec",), last=("arcs",)):
    """`next` of a step with guards."""

    spec: _RouterSpec = field(_RouterSpec)
    arcs: tuple[WrittenArc, ...] = field(
        ListOf(WrittenArc.shape, "arcs"), "The arcs, in order.", required=True
    )


NEXT = Either(
    "a step name, a list of steps or a router",
    (has_key("arcs", "spec"), WrittenRouter.shape),
    (lambda _: True, TARGETS),
)

# --- What they become ----------------------------------------------------------------------------


def router(building: Building, written: WrittenRouter | WrittenTargets | None) -> Router:
    """`next` of a step. A list of names is an unconditional fork to all of them."""
    if isinstance(written, WrittenRouter):
        spec = written.spec
        arcs = tuple(_arc(building, arc, spec.policy) for arc in written.arcs)
        # With one arc both modes mean the same; one of them keeps the nets equal.
        is_fork = spec.mode == "inclusive" and len(arcs) > 1
        return Router(
            mode="inclusive" if is_fork else "exclusive",
            arcs=arcs,
            quiet=spec.on_no_match == "quiet",
        )
    arcs = _targets(building, written, Where.ARC, Arc)
    return Router(mode="inclusive" if len(arcs) > 1 else "exclusive", arcs=arcs)


def _arc(building: Building, written: WrittenArc, policy: _Quality) -> Arc:
    when = building.condition(written.when, Where.ARC)
    patch = building.patch(written.set, Where.ARC)
    args = building.values(written.args, Where.ARC)
    if patch is not None:
        args = merge(args, patch.local)
        if patch.vars or patch.iter:
            building.report.add(
                "bad-value",
                "an arc writes `ctx.…` or carries args; `vars.…` belongs in a rule's `set` or the"
                " step's `vars`, `iter.…` in a task's rules.",
                building.at(patch),
            )
    spec = written.spec
    priority = policy.priority if spec.priority is None else spec.priority
    arc = Arc(
        step=building.value(written.step, Where.ARC) if text_of(written.step) else "",
        when=when,
        args=args,
        patch=Patch(ctx=patch.ctx) if patch is not None and patch.ctx else None,
        delay=building.amount(spec.delay, Where.ARC),
        priority=priority or 0,
        on_failure=_reads_failure(building, when),
        dedupe=building.value(spec.dedupe.key or policy.dedupe.key, Where.ARC),
        partition=building.value(spec.partition.key or policy.partition.key, Where.ARC),
    )
    building.mark(arc, written.place, step=written.place_of("step"), when=written.place_of("when"))
    return arc


def _reads_failure(building: Building, when: Condition | None) -> bool:
    if not isinstance(when, str):
        return False
    return any(
        path[0] in FAILURE_NAMES or path[:2] in FAILURE_PATHS
        for path in building.expressions.reads(when)
    )


_Way = TypeVar("_Way", Arc, Target)


def _targets(
    building: Building, written: WrittenTargets | None, where: Where, made: type[_Way]
) -> tuple[_Way, ...]:
    found = []
    for one in written or ():
        step, args = (one.step, one.args) if isinstance(one, WrittenTarget) else (one, None)
        if step is None or text_of(step) is None:
            continue
        target = made(step=building.value(step, where), args=building.values(args, where))
        building.mark(target, one.place, step=step.place)
        found.append(target)
    return tuple(found)


def route(building: Building, written: WrittenNextAction | WrittenTargets | None) -> Route:
    """`next` of an event rule."""
    where = Where.CASE_NEXT
    if not isinstance(written, WrittenNextAction):
        return Route(targets=_targets(building, written, where, Target))
    return Route(
        targets=_targets(building, written.to, where, Target),
        policy=written.policy,
        priority=written.priority,
        delay=building.amount(written.spec.delay, where),
    )
