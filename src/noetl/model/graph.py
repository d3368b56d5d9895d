"""Graphs of steps by name: who leads to whom. Plain graph theory without recursion, so that a chain
of thousands of steps is no different from one of five.
"""

from __future__ import annotations

from collections.abc import Set

Graph = dict[str, list[str]]
"""For each step the steps that it leads to."""


def sources(graph: Graph) -> Graph:
    """For each step the steps that send tokens to it."""
    found: Graph = {name: [] for name in graph}
    for name, targets in graph.items():
        for target in targets:
            if target in found:
                found[target].append(name)
    return found


def reachable(graph: Graph, start: str, closed: Set[str] = frozenset()) -> set[str]:
    """The steps that a token at `start` can reach without passing those that are closed."""
    seen: set[str] = set()
    stack = [start]
    while stack:
        name = stack.pop()
        if name in graph and name not in seen and name not in closed:
            seen.add(name)
            stack += graph[name]
    return seen


def strongly_connected(graph: Graph) -> list[set[str]]:
    """Steps that lead to each other, each such set before those that it leads to.

    Kosaraju's algorithm: from the step that is finished last, walk the arcs backwards.
    """
    backwards, taken, found = sources(graph), set[str](), []
    for name in reversed(_finished(graph)):
        if name not in taken:
            found.append(reachable(backwards, name, taken))
            taken |= found[-1]
    return found


def _finished(graph: Graph) -> list[str]:
    """Each step after those that it leads to, cycles aside."""
    seen: set[str] = set()
    finished: list[str] = []
    for root in graph:
        stack = [(root, iter(graph[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            name, following = stack[-1]
            target = next((one for one in following if one in graph and one not in seen), None)
            if target is None:
                finished.append(name)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(graph[target])))
    return finished
