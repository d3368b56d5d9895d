"""Playbooks that nobody would write, as text and as the reference reads them."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.engine.reference import UNBOUNDED, Used

GUARDS = {"always": None, "never": "{{ false }}", "error": "{{ error }}"}
EXITS = {"always": "not error", "flag": "not error and result.flag", "error": "error"}
"""When a rule on `step.exit` sends the token on."""
JOINS = ("auto", "auto", "auto", "each", "all", "any", 2, 3)


@cache
def up_to(most: int) -> st.SearchStrategy[int]:
    """Kept: to make a strategy again for each draw takes longer than to draw."""
    return st.integers(0, most)


@cache
def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@st.composite
def arcs(draw: st.DrawFn, index: int, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(draw(up_to(3))):
        to = draw(up_to(count - 1))
        is_back = to <= index
        found.append(
            {
                "to": f"s{to}",
                "when": draw(one_of("always", "always", "flag", "not flag", "error")),
                # Only so often: every generated net comes to an end.
                "turns": draw(st.integers(1, 2)) if is_back else 0,
                "delay": draw(up_to(5)) == 0,
                "dedupe": draw(up_to(5)) == 0,
                "partition": False,
            }
        )
    return found


@st.composite
def exits(draw: st.DrawFn, index: int, count: int) -> list[dict[str, Any]]:
    """Event rules that send the token on when the step has ended; to later steps only."""
    if index == count - 1 or draw(up_to(3)) > 0:
        return []
    later = st.integers(index + 1, count - 1).map(lambda to: f"s{to}")
    rule = st.fixed_dictionaries({"to": later, "when": st.sampled_from(tuple(EXITS))})
    return draw(st.lists(rule, min_size=1, max_size=2))


TASKS = st.lists(
    st.fixed_dictionaries(
        {
            "promises": st.integers(0, 4).map(lambda one: one == 0),
            "retries": st.integers(0, 2).map(lambda one: one == 0),
        }
    ),
    min_size=1,
    max_size=2,
)
"""The pipeline of a step."""


@cache
def quotas(*, calls: int, size: int, seconds: int) -> st.SearchStrategy[Used]:
    """Mostly none; bounds up to these, in quarters of a second."""
    return st.builds(
        Used,
        st.just(math.inf) | st.just(math.inf) | st.integers(1, calls),
        st.just(math.inf) | st.just(math.inf) | st.integers(1, size),
        st.just(math.inf) | st.just(math.inf) | st.integers(0, 4 * seconds).map(lambda n: n / 4),
    )


@st.composite
def nets(draw: st.DrawFn, *, joins: tuple[Any, ...] = JOINS) -> dict[str, dict[str, Any]]:
    """Steps as the reference reads them. Without arcs at all nothing would happen: the first
    steps are a chain or a fork more often than not."""
    count = draw(st.integers(2, 7))
    steps: dict[str, dict[str, Any]] = {}
    for index in range(count):
        own = draw(arcs(index, count))
        if index < count - 1 and draw(up_to(3)) > 0:
            own.append({"to": f"s{index + 1}", "when": "always", "turns": 0, "delay": False})
            own[-1] |= {"dedupe": False, "partition": False}
        steps[f"s{index}"] = {
            "tasks": draw(TASKS) if draw(up_to(3)) > 0 else [],
            "join": draw(one_of(*joins)),
            "mode": draw(one_of("exclusive", "inclusive", "inclusive")),
            "arcs": own,
            "rules": draw(exits(index, count)),
            "deny": draw(up_to(9)) == 0,
            "ignore": draw(up_to(5)) == 0,
            "best_effort": draw(st.booleans()),
            "quotas": draw(quotas(calls=3, size=60, seconds=1)),
        }
    led_to = {way["to"] for spec in steps.values() for way in spec["arcs"] + spec["rules"]}
    for name, spec in steps.items():
        if name not in led_to:
            spec["join"] = "auto"  # the compiler refuses a join to which no arc leads
        for arc in spec["arcs"]:
            arc["partition"] = steps[arc["to"]]["join"] == "each" and draw(st.booleans())
    return steps


class Whole(NamedTuple):
    """What a playbook says of its executions."""

    quotas: Used = UNBOUNDED
    promises: bool = False
    """The step that ends last raises its flag."""


PLAIN = Whole()


@st.composite
def wholes(draw: st.DrawFn) -> Whole:
    bounds = draw(quotas(calls=8, size=300, seconds=5))
    return Whole(bounds, promises=draw(up_to(3)) == 0)


def written(
    steps: dict[str, dict[str, Any]],
    extras: dict[str, dict[str, Any]] | None = None,
    whole: Whole = PLAIN,
) -> str:
    """The playbook that says the same. `extras` are laid over steps: loops, limits, undoing."""
    return json.dumps(
        {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": "made", "path": "tests/made"},
            "executor": {"spec": _executor(whole, undoes=bool(_undoing(extras or {})))},
            "workflow": [
                _step(name, spec, (extras or {}).get(name, {})) for name, spec in steps.items()
            ]
            + _undoing(extras or {}),
        }
    )


FAILED = "{{ outcome.status == 'error' }}"
WORTH_IT = "{{ outcome.error and outcome.error.retryable }}"
FLAGGED = {"type": "object", "properties": {"flag": {"const": True}}, "required": ["flag"]}


def _executor(whole: Whole, *, undoes: bool) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    if undoes:
        policy["compensate_on"] = ["failure", "cancel"]
    if whole.quotas != UNBOUNDED:
        policy["quotas"] = _bounds(whole.quotas)
    return {"policy": policy, **({"result": {"schema": FLAGGED}} if whole.promises else {})}


def _undoing(extras: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    used = {spec["compensate"] for spec in extras.values() if "compensate" in spec}
    bodies: dict[str, dict[str, Any]] = {
        "undo_task": {"tool": {"kind": "noop"}},
        "undo_loop": {
            "loop": {"in": {"from": 0, "to": 2}, "iterator": "x"},
            "tool": {"kind": "noop"},
        },
        "undo_nothing": {"next": {"arcs": []}},
    }
    return [{"step": name, **bodies[name]} for name in sorted(used)]


def _step(name: str, spec: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    join = spec["join"]
    settings: dict[str, Any] = {"join": {"n": join} if isinstance(join, int) else join}
    if spec["deny"]:
        settings.setdefault("policy", {})["admit"] = {"rules": [{"else": {"allow": False}}]}
    if spec["best_effort"]:
        settings.setdefault("policy", {})["failure"] = {"mode": "best_effort"}
    if spec["ignore"]:
        settings["on_error"] = "ignore"
    if spec.get("quotas", UNBOUNDED) != UNBOUNDED:
        settings.setdefault("policy", {})["quotas"] = _bounds(spec["quotas"])
    for key in ("compensate", "timeout", "case_mode", "next_policy"):
        if key in extra:
            settings[key] = extra[key]
    made: dict[str, Any] = {"step": name, "spec": settings}
    # Both: a join may have been drawn for a step to which only a rule leads.
    if case := [*map(_exit, spec["rules"]), *extra.get("case", ())]:
        made["case"] = case
    if spec["tasks"]:
        made["tool"] = [_task(f"t{index}", task) for index, task in enumerate(spec["tasks"])]
        if "loop" in extra:
            made["loop"] = extra["loop"]
    made["next"] = {
        "spec": {"mode": spec["mode"]},
        "arcs": [_arc(name, index, arc) for index, arc in enumerate(spec["arcs"])],
    }
    return made


def _bounds(bounds: Used) -> dict[str, float]:
    written = {f"max_{name}": bound for name, bound in bounds._asdict().items()}
    return {name: bound for name, bound in written.items() if bound != math.inf}


def _task(name: str, task: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "kind": "noop"}
    if task["promises"]:
        made["output"] = {"schema": FLAGGED}
    if task["retries"]:
        again = {"do": "retry", "attempts": 2, "delay": 0}
        rules = [{"when": WORTH_IT, "then": again}, {"when": FAILED, "then": {"do": "fail"}}]
        made["spec"] = {"policy": {"rules": rules}}
    return made


def _exit(rule: dict[str, Any]) -> dict[str, Any]:
    when = f"{{{{ event.name == 'step.exit' and {EXITS[rule['when']]} }}}}"
    return {"when": when, "then": {"next": [{"step": rule["to"]}]}}


def _arc(step: str, index: int, arc: dict[str, Any]) -> dict[str, Any]:
    guard = {**GUARDS, "flag": f"{step}.flag", "not flag": f"not {step}.flag"}[arc["when"]]
    made: dict[str, Any] = {"step": arc["to"]}
    conditions = [guard.strip("{ }")] if guard else []
    if arc["turns"]:
        counter = f"ctx.{step}_{index}"
        made["set"] = {counter: f"{{{{ ({counter} | default(0)) + 1 }}}}"}
        conditions.append(f"({counter} | default(0)) < {arc['turns']}")
    if conditions:
        made["when"] = "{{ " + " and ".join(conditions) + " }}"
    key = {"key": f"{{{{ {step}.flag | default(false) }}}}"}
    settings: dict[str, Any] = {"delay": 10} if arc["delay"] else {}
    settings |= {name: key for name in ("dedupe", "partition") if arc.get(name)}
    if settings:
        made["spec"] = settings
    return made


PARTITIONS = 2
LOOPS = [
    {
        "in": {"from": 0, "to": 8},
        "iterator": "x",
        "spec": {
            "mode": "parallel",
            "max_in_flight": 3,
            "on_error": "continue",
            "policy": {"partition": {"key": "{{ iter.index % 2 }}"}},
        },
    },
    {"in": [1, 2, 3], "iterator": "x"},
    {"in": {"from": 0, "to": 5}, "iterator": "x", "spec": {"on_error": "continue"}},
    {"in": [], "iterator": "x"},
    {
        "in": {"from": 5, "to": 0, "step": -1},
        "iterator": "x",
        "spec": {"mode": "parallel", "max_in_flight": 2, "on_error": "continue"},
    },
    {
        "in": {"from": 0, "to": 9},
        "iterator": "x",
        "spec": {"mode": "parallel", "max_in_flight": 3, "batch_size": 2},
    },
]


@st.composite
def extras(draw: st.DrawFn, steps: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What else steps may have: loops, time limits, something that undoes them, event rules."""
    found: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(steps):
        extra: dict[str, Any] = {}
        if draw(st.booleans()):
            extra["loop"] = draw(st.sampled_from(LOOPS))
        if draw(up_to(3)) == 0:
            extra["timeout"] = 30
        if draw(st.booleans()):
            extra["compensate"] = draw(one_of("undo_task", "undo_loop"))
        if draw(up_to(2)) == 0:
            extra["case"] = draw(rules(list(steps)[index + 1 :]))
            extra["case_mode"] = draw(one_of("exclusive", "inclusive"))
            extra["next_policy"] = draw(one_of("end_step", "break_chain", "defer"))
        found[name] = extra
    return found


EVENTS = ("event.name == 'step.enter'", "event.name == 'step.exit'", "event.name == 'call.done'")


@st.composite
def rules(draw: st.DrawFn, later: list[str]) -> list[dict[str, Any]]:
    """Event rules with and without tools; they send tokens to later steps only."""
    actions: list[dict[str, Any]] = [
        {"set": {"ctx.seen": "{{ event.name }}", "own": 1}},
        {"result": {"value": {"flag": True}}},
        {"note": {"tool": {"kind": "noop"}}},
        *([{"next": {"to": draw(st.sampled_from(later))}}] * 2 if later else []),
        {"fail": "by rule"},
        {"skip": True},
    ]
    conditions = [*EVENTS, "error", "event.name == 'step.exit' and error", "ctx.seen"]
    found: list[dict[str, Any]] = [
        {
            "when": "{{ " + draw(st.sampled_from(conditions)) + " }}",
            "then": draw(st.lists(st.sampled_from(actions), min_size=1, max_size=3)),
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    if draw(up_to(5)) == 0:
        found.append({"else": [draw(st.sampled_from(actions))]})
    return found
