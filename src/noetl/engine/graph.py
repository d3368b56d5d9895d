"""The ways through a net: which step leads where, what is reached, what encloses what.

All of it is plain graph theory without recursion, so that a net of thousands of steps is no
different from one of five.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from noetl.model.net import AnyAction, Condition, Net, Route, Step

EdgeKind = Literal["next", "case", "compensate"]


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """One way from a step to another."""

    source: str
    target: str
    """A step's name, or a template that will yield one."""
    kind: EdgeKind
    when: Condition | None = None
    otherwise: bool = False
    """No guard of its own, but earlier arcs are asked first."""
    on_failure: bool = False
    rule: int | None = None
    """Which event rule of the step asks for it, counted from 1."""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """The edges of a net and what follows from them."""

    entry: str
    steps: dict[str, Step]
    out: dict[str, tuple[Edge, ...]]
    """Ways out of every step, in the order they are asked."""
    order: tuple[str, ...]
    """The steps a token can reach, each before those that follow it."""
    back: frozenset[tuple[str, str]]
    """Pairs (source, target) that lead back to where a token has been."""
    dispatched: tuple[str, ...]
    """Steps no arc leads to, which a templated target may name at run time, and the step that runs
    when an execution fails."""
    unreachable: tuple[str, ...]

    @property
    def edges(self) -> Iterator[Edge]:
        """All edges, in the order of the steps."""
        for name in (*self.order, *self.dispatched, *self.unreachable):
            yield from self.out[name]


def graph_of(net: Net) -> Graph:
    """The graph of a net."""
    steps = {step.name: step for step in net.steps}
    out = {name: tuple(_ways_out(step, steps)) for name, step in steps.items()}
    order, back = _walk(net.entry, out)
    reached = set(order)
    rest = tuple(name for name in steps if name not in reached)
    # A target known only at run time may be any step, so none can be called unreachable.
    any_step = any(edge.target not in steps for name in order for edge in out[name])
    handler = tuple(name for name in rest if name == net.executor.on_failure)
    return Graph(
        entry=net.entry,
        steps=steps,
        out=out,
        order=order,
        back=back | _walk_rest(rest, out),
        dispatched=rest if any_step else handler,
        unreachable=() if any_step else tuple(name for name in rest if name not in handler),
    )


def _ways_out(step: Step, steps: dict[str, Step]) -> Iterator[Edge]:
    for number, rule in enumerate(step.rules, 1):
        for target in _targets(rule.actions):
            yield Edge(source=step.name, target=target, kind="case", when=rule.when, rule=number)
    for task in step.tasks:
        for policy in task.rules:
            for target in _targets(policy.actions):
                yield Edge(source=step.name, target=target, kind="case", when=policy.when)
    guarded = False
    for arc in step.router.arcs:
        is_open = arc.when is None or arc.when is True
        yield Edge(
            source=step.name,
            target=arc.step,
            kind="next",
            when=arc.when,
            otherwise=is_open and guarded and step.router.mode == "exclusive",
            on_failure=arc.on_failure,
        )
        guarded = guarded or not is_open
    if step.compensate in steps:
        assert step.compensate is not None
        yield Edge(source=step.name, target=step.compensate, kind="compensate")


def _targets(actions: tuple[AnyAction, ...]) -> Iterator[str]:
    for action in actions:
        if isinstance(action, Route):
            for target in action.targets:
                yield target.step


def _walk(
    entry: str, out: dict[str, tuple[Edge, ...]]
) -> tuple[tuple[str, ...], frozenset[tuple[str, str]]]:
    """Depth first from the entry: reverse postorder, and the edges that close a cycle."""
    finished: list[str] = []
    back: set[tuple[str, str]] = set()
    seen: set[str] = set()
    on_way: set[str] = set()
    # The last way out is walked first, so that the first one ends up first in the order.
    stack: list[tuple[str, Iterator[Edge]]] = []

    def enter(name: str) -> None:
        seen.add(name)
        on_way.add(name)
        stack.append((name, iter(reversed(out[name]))))

    if entry in out:
        enter(entry)
    while stack:
        name, ways = stack[-1]
        edge = next(ways, None)
        if edge is None:
            stack.pop()
            on_way.discard(name)
            finished.append(name)
        elif edge.target in on_way:
            back.add((name, edge.target))
        elif edge.target in out and edge.target not in seen:
            enter(edge.target)
    return tuple(reversed(finished)), frozenset(back)


def _walk_rest(
    rest: tuple[str, ...], out: dict[str, tuple[Edge, ...]]
) -> frozenset[tuple[str, str]]:
    """The cycles among steps that the entry does not lead to."""
    names = set(rest)
    only_rest = {name: tuple(edge for edge in out[name] if edge.target in names) for name in rest}
    found: frozenset[tuple[str, str]] = frozenset()
    done: set[str] = set()
    for name in rest:
        if name not in done:
            order, back = _walk(name, only_rest)
            done.update(order)
            found |= back
    return found
