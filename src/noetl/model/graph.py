"""Graphs of steps by name: who leads to whom. Plain graph theory without recursion, so that a chain
of thousands of steps is no different from one of five.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

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
    for name in reversed(_finished(graph, graph)):
        if name not in taken:
            found.append(reachable(backwards, name, taken))
            taken |= found[-1]
    return found


def dominators(graph: Graph, entry: str) -> dict[str, str]:
    """For every step that the entry leads to: the last step that every way to it passes.

    After Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm".
    """
    order = [*reversed(_finished(graph, [entry]))]
    place = {name: index for index, name in enumerate(order)}
    before = sources({name: graph[name] for name in order})
    above: dict[str, str] = {entry: entry}
    changed = True
    while changed:
        changed = False
        for name in order[1:]:
            known = [source for source in before[name] if source in above]
            nearest = known[0]
            for source in known[1:]:
                nearest = _meet(nearest, source, above, place)
            if above.get(name) != nearest:
                above[name] = nearest
                changed = True
    del above[entry]
    return above


def dominated(graph: Graph, entry: str) -> dict[str, range]:
    """Steps that the entry leads to, each with the numbers of those behind it: the steps that every
    way to them passes it. A range ends with the step's own number.
    """
    above = dominators(graph, entry)
    below: Graph = {name: [] for name in (entry, *above)}
    for name, last in above.items():
        below[last].append(name)
    found: dict[str, range] = {}
    for number, name in enumerate(_finished(below, [entry])):
        first = min((found[one].start for one in below[name]), default=number)
        found[name] = range(first, number + 1)
    return found


def _meet(one: str, other: str, above: dict[str, str], place: dict[str, int]) -> str:
    while one != other:
        while place[one] > place[other]:
            one = above[one]
        while place[other] > place[one]:
            other = above[other]
    return one


def _finished(graph: Graph, roots: Iterable[str]) -> list[str]:
    """Each step after those that it leads to, cycles aside."""
    seen: set[str] = set()
    finished: list[str] = []
    for root in roots:
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
