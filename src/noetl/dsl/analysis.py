"""Warnings about the flow of a net: unreachable steps, dead arcs, endless cycles, unseen errors."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from noetl.dsl.building import Building
from noetl.dsl.checks import keys_added_to, step_graph
from noetl.dsl.walk import parts_of
from noetl.model.graph import Graph, reachable, sources, strongly_connected
from noetl.model.net import NOOP, Arc, Fail, Net, Patch, Result, Retry, Route, Skip, Step, Task

FAILURES = frozenset({"step.failed", "call.error", "step.exit", "step.finished", "loop.done"})
"""Event names that a guard may compare with after a failure; `step.exit` and the like name both
ends of a step.
"""
ENDING = (Route, Result, Fail, Skip)
"""Actions that end a wait."""


def steps_are_reachable(building: Building, net: Net) -> None:
    graph = step_graph(building, net)
    if graph is None:
        return
    reached = reachable(graph, net.entry)
    undoing = {step.compensate for step in net.steps if step.compensate is not None}
    if net.executor.on_failure is not None:
        undoing.add(net.executor.on_failure)
    for name in undoing:
        reached |= reachable(graph, name)
    for step in net.steps:
        if step.name not in reached:
            building.report.add(
                "unreachable-step",
                f'no token can reach step "{step.name}". Lead an arc to it, or delete it.',
                building.at(step, "name"),
            )


def arcs_can_fire(building: Building, net: Net) -> None:
    """After a success an exclusive router takes no arc behind one without a guard."""
    for step in net.steps:
        if step.router.mode != "exclusive":
            continue
        open_arc: Arc | None = None
        for arc in step.router.arcs:
            if open_arc is not None and not _may_follow_failure(building, arc):
                building.report.add(
                    "shadowed-arc",
                    f'the arc to "{arc.step}" is never taken: the arc to "{open_arc.step}" before'
                    " it has no guard and always wins. Put the guarded arcs first, or set"
                    " `next.spec.mode: inclusive`.",
                    building.at(arc, "step"),
                )
            if arc.when is None or arc.when is True:
                open_arc = open_arc or arc


def _may_follow_failure(building: Building, arc: Arc) -> bool:
    """Whether a failed step may take the arc: then an arc before it without a guard is skipped."""
    if not arc.on_failure or not isinstance(arc.when, str):
        return False
    names = building.expressions.event_names(arc.when)
    return names is None or not FAILURES.isdisjoint(names)


def cycles_have_exits(building: Building, net: Net) -> None:
    graph = step_graph(building, net)
    if graph is None:
        return
    steps = {step.name: step for step in net.steps}
    for inside in _cycles(graph):
        if all(_always_stays(steps[name], inside) for name in inside):
            first = min(inside, key=lambda name: building.at(steps[name], "name"))
            others = " → ".join([*sorted(inside - {first}), first])
            building.report.add(
                "endless-cycle",
                f'from step "{first}" tokens circle for ever ({others}): no guard ever lets one'
                " out. Add a `when` to an arc of the cycle.",
                building.at(steps[first], "name"),
            )


def _cycles(graph: Graph) -> Iterator[set[str]]:
    """Sets of steps in which tokens can go round."""
    for component in strongly_connected(graph):
        if len(component) > 1 or any(name in graph[name] for name in component):
            yield component


def _always_stays(step: Step, inside: set[str]) -> bool:
    """Whether a token that finished here certainly continues within these steps."""
    if step.admit or step.rules or any(arc.step not in inside for arc in step.router.arcs):
        return False
    return any(arc.when is None or arc.when is True for arc in step.router.arcs)


def joins_complete(building: Building, net: Net) -> None:
    graph = step_graph(building, net)
    if graph is None:
        return
    arriving = sources(graph)
    for step in net.steps:
        before = arriving[step.name]
        if not before:
            continue
        if (
            step.join.kind == "count"
            and (step.join.count or 0) > len(before)
            and not _repeats(net, graph)
        ):
            building.report.add(
                "join-never-completes",
                f'step "{step.name}" waits for {step.join.count} tokens, but only {len(before)}'
                " arc(s) lead to it. Lower the number, or lead more arcs to it.",
                building.at(step, "join"),
            )
        elif step.join.kind == "all":
            excluding = _excluding(net, graph, step, before)
            if excluding is not None:
                building.report.add(
                    "join-never-completes",
                    f'step "{step.name}" waits for a token from every arc, but step "{excluding}"'
                    " sends a token only one of the ways that lead here (exclusive mode)."
                    " Use `join: auto`, or make that router inclusive.",
                    building.at(step, "join"),
                )


def _repeats(net: Net, graph: Graph) -> bool:
    """Whether an arc may bring several tokens: a step runs once per token, or there is a cycle."""
    return any(step.join.kind == "each" for step in net.steps) or any(_cycles(graph))


def _excluding(net: Net, graph: Graph, target: Step, before: list[str]) -> str | None:
    """A step that takes only one of its arcs, where the target needs two of them."""
    for step in net.steps:
        arcs = [arc.step for arc in step.router.arcs]
        if step.router.mode != "exclusive" or len(arcs) < 2 or step.rules:
            continue
        if arcs.count(target.name) > 1:
            return step.name
        # The steps before the target that tokens reach only through this step, by its arcs.
        elsewhere = reachable({**graph, step.name: []}, net.entry)
        behind = [{name for name in before if name in reachable(graph, arc)} for arc in arcs]
        for index, first in enumerate(behind):
            for second in behind[index + 1 :]:
                if (first - second - elsewhere) and (second - first - elsewhere):
                    return step.name
    return None


def errors_are_seen(building: Building, net: Net) -> None:
    """A task with rules should not continue after an error by accident."""
    for task in building.tasks(net):
        if task.rules and task.kind != NOOP:
            _check_fall_through(building, task)


def _check_fall_through(building: Building, task: Task) -> None:
    """A `retry` for any error is an answer to all of them: no `else` takes one after its tries."""
    holds = building.expressions.holds_for_any_error
    place, how = building.at(task), "the pipeline goes on"
    for rule in task.rules:
        is_else = rule.when is None or rule.when is True
        if not is_else and not (isinstance(rule.when, str) and holds(rule.when)):
            continue
        if not is_else or (rule.actions and isinstance(rule.actions[-1], Fail | Retry)):
            return
        place, how = building.at(rule), "the `else` lets it go on"
        break
    building.report.add(
        "error-falls-through",
        f'an error of task "{task.name}" that no rule names is passed over: {how} as if it were a'
        " success. Add `- when: \"{{ outcome.status == 'error' }}\"` with `then: {do: fail}`"
        " before the end.",
        place,
    )


ADDING_MAX = 200
"""Of so many steps that add to ctx each is compared with the others; more would take long."""


def forks_keep_what_they_add(building: Building, net: Net) -> None:
    """Steps that may run at the same time must not each compute a key of ctx from its old value in
    a task: what the later one writes was computed without the other's.
    """
    adding: dict[str, dict[str, Patch]] = {}
    for step in net.steps:
        for patch in parts_of(structs.replace(step, rules=(), patch=None)).patches:
            for key in keys_added_to(building, patch):
                is_reduced = step.loop is not None and key.partition(".")[0] in step.loop.reduce
                if not is_reduced and sum(map(len, adding.values())) < ADDING_MAX:
                    adding.setdefault(key, {})[step.name] = patch
    graph = step_graph(building, net) if adding else None
    if graph is None:
        return
    backwards = sources(graph)
    repeated = {step.name for step in net.steps if step.join.kind == "each"}
    forks = [step.router.arcs for step in net.steps if step.router.mode == "inclusive"]
    for key, writers in adding.items():
        before = {name: reachable(backwards, name) for name in writers}
        lost: dict[str, Patch] = {}
        for arcs in forks:
            sure = [(n, arc.step) for n, arc in enumerate(arcs) if arc.when in (None, True)]
            ways = {
                name: frozenset(n for n, to in sure if to in steps)
                for name, steps in before.items()
            }
            several = len(sure) > 1 and not any(arc.partition for arc in arcs)
            for name, own in ways.items():
                is_beside = any(own - other and other - own for other in set(ways.values()))
                if is_beside or (several and name in repeated and len(own) > 1):
                    lost[name] = writers[name]
        for name, patch in lost.items():
            building.report.add(
                "parallel-ctx-write",
                f'a task of step "{name}" computes `ctx.{key}` from its old value, and so does'
                " another that may run at the same time: what one of them writes is lost. Write it"
                " in `set` of the step, which is computed at its end.",
                building.at(patch),
            )


def waits_end(building: Building, net: Net) -> None:
    """A waiting step needs a rule that ends its wait, or a time limit."""
    for step in net.steps:
        place = building.at(step, "name")
        heard = [name for name in ("timers", "form", "match") if getattr(step, name)]
        if not step.case.wait and heard:
            building.report.add(
                "not-waiting",
                f'step "{step.name}" has {" and ".join(f"`{name}`" for name in heard)}, but does'
                " not wait. Add `spec: {eval_mode: on_event}`, or delete them.",
                place,
            )
        limited = step.timeout is not None or step.deadline is not None
        actions = [action for rule in step.rules for action in rule.actions]
        if step.case.wait and not limited and not any(isinstance(one, ENDING) for one in actions):
            building.report.add(
                "wait-never-ends",
                f'step "{step.name}" waits for ever: none of its rules has `next`, `result`, `fail`'
                " or `skip`. Add one, or a `timeout`.",
                place,
            )


ANALYSES = (
    steps_are_reachable,
    arcs_can_fire,
    cycles_have_exits,
    joins_complete,
    errors_are_seen,
    forks_keep_what_they_add,
    waits_end,
)
