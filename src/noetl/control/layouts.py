"""Where the steps of a playbook stand when it is drawn, from left to right.

After Sugiyama: arcs that lead back are set aside, each step stands in the layer of the longest path
to it, arcs over several layers get a place in each of them, sweeps put the places of a layer in the
order of their neighbours, and then on rows near them. It is computed once for each net.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from msgspec import structs

from noetl.engine.graph import Edge, Graph, graph_of
from noetl.model.answers import Layout, LayoutEdge, LayoutNode
from noetl.model.net import Net

SWEEPS_MAX = 6
"""Each goes through the layers once forwards and once back."""
WORK_MAX = 8000
"""Places to look at in all sweeps together: large nets get fewer."""
PLACES_MAX = 4000
"""Arcs get places in the layers between their ends until there are so many, short arcs first."""
LAYOUTS_MAX = 200

Place = int
"""A step (its number), or a place of an arc in a layer between its ends."""


class Layouts:
    """Drawings of nets, the last ones that were asked for."""

    def __init__(self) -> None:
        self._drawn: OrderedDict[str, Layout] = OrderedDict()

    async def of(self, digest: str, net: Net) -> Layout:
        """The drawing of a net."""
        return await self._once(digest, lambda: layout(net))

    async def of_text(self, catalog_id: str, net: Net, text: str) -> Layout:
        """The drawing of a version of the catalog, with the line at which each step begins."""

        def draw() -> Layout:
            from noetl.dsl import step_lines

            drawn, lines = layout(net), step_lines(text)
            nodes = [structs.replace(node, line=lines.get(node.id)) for node in drawn.nodes]
            return structs.replace(drawn, nodes=nodes)

        return await self._once(catalog_id, draw)

    async def _once(self, key: str, draw: Callable[[], Layout]) -> Layout:
        found = self._drawn.get(key)
        if found is None:
            # A large one takes a tenth of a second, and the event loop has others to serve.
            found = self._drawn[key] = await asyncio.to_thread(draw)
            while len(self._drawn) > LAYOUTS_MAX:
                self._drawn.popitem(last=False)
        self._drawn.move_to_end(key)
        return found


def layout(net: Net) -> Layout:
    """The drawing of a net: steps in the order of the playbook, with a layer (x) and a row (y)."""
    graph = graph_of(net)
    edges = [edge for name in graph.steps for edge in graph.out[name]]
    drawing = _Drawing(graph, edges)
    rows = drawing.rows()
    return Layout(
        entry=net.entry,
        nodes=[
            LayoutNode(
                id=step.name,
                kinds=[task.kind for task in step.tasks],
                loop=step.loop is not None,
                description=step.description,
                x=drawing.layer[number],
                y=rows[number],
                waits=bool(step.form or step.timers or step.match is not None),
            )
            for number, step in enumerate(net.steps)
        ],
        edges=[
            LayoutEdge(
                source=edge.source,
                target=edge.target,
                kind=edge.kind,
                when=edge.when,
                otherwise=edge.otherwise,
                on_failure=edge.on_failure,
                back=(edge.source, edge.target) in graph.back,
                points=[(drawing.layer[place], rows[place]) for place in drawing.between[number]],
            )
            for number, edge in enumerate(edges)
        ],
        width=max(drawing.layer, default=0) + 1,
        height=max(rows, default=0.0) + 1.0,
    )


class _Drawing:
    """Places in layers. The first places are the steps, in the order of the playbook."""

    def __init__(self, graph: Graph, edges: list[Edge]) -> None:
        self._numbers = {name: number for number, name in enumerate(graph.steps)}
        forward = [
            edge.target in self._numbers
            and edge.target != edge.source
            and (edge.source, edge.target) not in graph.back
            for edge in edges
        ]
        self.layer = self._layers(graph, edges, forward)
        self.between: list[list[Place]] = [[] for _ in edges]
        self._before: list[list[Place]] = [[] for _ in self.layer]
        self._after: list[list[Place]] = [[] for _ in self.layer]
        ends = [
            (number, self._numbers[edge.source], self._numbers[edge.target])
            for number, edge in enumerate(edges)
            if forward[number]
        ]
        layer = self.layer
        for number, source, target in sorted(ends, key=lambda one: layer[one[2]] - layer[one[1]]):
            self._connect(number, source, target)
        self._sweeps = min(max(WORK_MAX // max(len(layer), 1), 1), SWEEPS_MAX)
        self._columns: list[list[Place]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for place, number in enumerate(self.layer):
            self._columns[number].append(place)
        self._at = [0.0] * len(self.layer)
        """The position of each place within its layer."""

    def _layers(self, graph: Graph, edges: list[Edge], forward: list[bool]) -> list[int]:
        """The longest path to each step."""
        following: dict[str, list[str]] = {name: [] for name in graph.steps}
        waiting = dict.fromkeys(graph.steps, 0)
        for edge, is_forward in zip(edges, forward, strict=True):
            if is_forward:
                following[edge.source].append(edge.target)
                waiting[edge.target] += 1
        found = dict.fromkeys(graph.steps, 0)
        ready = [name for name, count in waiting.items() if not count]
        for name in ready:
            for target in following[name]:
                found[target] = max(found[target], found[name] + 1)
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        reached = set(graph.order)
        for name in reversed(ready):
            if name not in reached and following[name]:
                # Nothing leads there: it stands right before what follows it.
                found[name] = max(min(found[one] for one in following[name]) - 1, found[name])
        return list(found.values())

    def _connect(self, edge: int, source: Place, target: Place) -> None:
        last = source
        first, end = self.layer[source] + 1, self.layer[target]
        if end - first + len(self.layer) <= PLACES_MAX:
            for layer in range(first, end):
                place = len(self.layer)
                self.layer.append(layer)
                self._before.append([last])
                self._after.append([])
                self._after[last].append(place)
                self.between[edge].append(place)
                last = place
        self._before[target].append(last)
        self._after[last].append(target)

    def rows(self) -> list[float]:
        """The row of each place, from 0 on."""
        self._number_all()
        best, crossings = [list(column) for column in self._columns], self._crossings()
        for _ in range(self._sweeps):
            if not crossings:
                break
            for column in self._columns[1:]:
                self._sort(column, self._before)
            for column in reversed(self._columns[:-1]):
                self._sort(column, self._after)
            now = self._crossings()
            if now < crossings:
                best, crossings = [list(column) for column in self._columns], now
        self._columns = best
        self._number_all()
        return self._spread()

    def _number_all(self) -> None:
        for column in self._columns:
            self._number(column)

    def _number(self, column: list[Place]) -> None:
        for position, place in enumerate(column):
            self._at[place] = float(position)

    def _sort(self, column: list[Place], neighbours: list[list[Place]]) -> None:
        at = self._at

        def middle(place: Place) -> float:
            near = neighbours[place]
            return sum([at[one] for one in near]) / len(near) if near else at[place]

        column.sort(key=middle)
        self._number(column)

    def _crossings(self) -> int:
        """How many pairs of arcs between neighbouring layers cross."""
        found = 0
        for column in self._columns[1:]:
            ends = [
                (int(self._at[before]), position)
                for position, place in enumerate(column)
                for before in self._before[place]
            ]
            ends.sort()
            found += _inversions([position for _, position in ends], len(column))
        return found

    def _spread(self) -> list[float]:
        """Rows near those of the neighbours, at least one apart within a layer, in its order."""
        rows = list(self._at)
        for number in range(2 * self._sweeps):
            is_forward = number % 2 == 0
            columns = self._columns if is_forward else self._columns[::-1]
            near = self._before if is_forward else self._after
            before = list(rows)
            for column in columns:
                wanted = [
                    sum([rows[one] for one in near[place]]) / len(near[place])
                    if near[place]
                    else rows[place]
                    for place in column
                ]
                for place, row in zip(column, _apart(wanted), strict=True):
                    rows[place] = row
            if rows == before:
                break
        top = min(rows, default=0.0)
        return [round(row - top, 2) for row in rows]


def _apart(wanted: list[float]) -> list[float]:
    """Rows in the same order, at least one apart, that differ least from those wanted (by squares):
    neighbours that want the same place share it out around their middle."""
    groups: list[tuple[float, int]] = []
    """Sum of what its places want, each less its number in the whole; and how many they are."""
    for number, row in enumerate(wanted):
        total, size = row - number, 1
        while groups and groups[-1][0] / groups[-1][1] >= total / size:
            before, many = groups.pop()
            total, size = total + before, size + many
        groups.append((total, size))
    found: list[float] = []
    for total, size in groups:
        found += [total / size + len(found) + offset for offset in range(size)]
    return found


def _inversions(numbers: list[int], size: int) -> int:
    """Pairs that stand in the wrong order, counted with a tree of sums."""
    tree = [0] * (size + 1)
    found = 0
    for seen, number in enumerate(numbers):
        at, below = number + 1, 0
        while at:
            below += tree[at]
            at &= at - 1
        found += seen - below
        at = number + 1
        while at <= size:
            tree[at] += 1
            at += at & -at
    return found
