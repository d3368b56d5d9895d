"""Draws a net with lines of text: forks indent, joins return, loops point up.

A step is placed under the last step that every path to it passes (its dominator). So the two arms
of a fork are drawn inside it, and the step where they join is drawn after it, at its level. A
drawing is a list of rows, each with a gutter and spans; `paint` adds colours and line breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from noetl.cli.output import counted, one_line
from noetl.cli.views.credentials import Need, credentials_of
from noetl.cli.views.description import INDENT, block_rows, expression, guard, step_rows
from noetl.cli.views.paint import Drawn, Row, Span
from noetl.engine.graph import Edge, Graph, graph_of
from noetl.model.fields import wanted
from noetl.model.graph import dominators
from noetl.model.net import Net

DEPTH_MAX = 6
"""Deeper forks are drawn at this depth, one after the other."""
SMALL = 8
"""A fork whose arms meet again is indented as a whole up to this many steps."""


class Glyphs(NamedTuple):
    """The characters to draw with. All gutters are three columns wide."""

    step: str
    unreached: str
    line: str
    fork: str
    last: str
    arrow: str
    back: str
    none: str = "   "


LINES = Glyphs("●  ", "○  ", "│  ", "├─ ", "╰─ ", "─▶ ", "↺ ")
ASCII = Glyphs("*  ", "o  ", "|  ", "+- ", "`- ", "-> ", "^ ")


def draw(net: Net, digest: str, glyphs: Glyphs = LINES) -> Iterator[Drawn]:
    """The whole drawing: heading, net, unreachable steps, credentials."""
    graph = graph_of(net)
    yield from _heading(net, graph, digest)
    yield Drawn("", "")
    yield from _Tree(graph, glyphs).level(graph.entry, "")
    for names, remark in (
        (graph.dispatched, "chosen by name at run time:"),
        (graph.unreachable, "unreachable, no token can get here:"),
    ):
        if names:
            yield Drawn("", "")
            yield Drawn("", "", (Span(remark, "warning"),))
            for name in names:
                yield from _alone(graph, name, glyphs)
    yield from _workbook(net, glyphs)
    yield from _needs(credentials_of(net))


def _heading(net: Net, graph: Graph, digest: str) -> Iterator[Drawn]:
    path = f"  {one_line(net.path)}" if net.path and net.path != net.name else ""
    yield Drawn("", "", (Span(one_line(net.name), "title"), Span(path, "quiet")))
    if net.description:
        yield Drawn("", "", (Span(one_line(net.description), "prose"),))
    arcs = sum(1 for _ in graph.edges)
    facts = f"{counted(len(net.steps), 'step')}, {counted(arcs, 'arc')}, digest {digest[:12]}"
    yield Drawn("", "", (Span(facts, "quiet"),))
    for field in net.executor.inputs:
        may = "" if field.required and field.default is None else ", may be left out"
        shown = f"{field.name} ({wanted(field)}{may})"
        yield Drawn("", "       ", (Span("input  ", "word"), Span(one_line(shown))))


class _Tree:
    """Draws the steps reachable from the entry."""

    def __init__(self, graph: Graph, glyphs: Glyphs) -> None:
        self.graph = graph
        self.glyphs = glyphs
        self.place = {name: index for index, name in enumerate(graph.order)}
        self.under: dict[str, list[str]] = {name: [] for name in graph.order}
        self.size = dict.fromkeys(graph.order, 1)
        ways = {name: [edge.target for edge in graph.out[name]] for name in graph.order}
        above = dominators(ways, graph.entry)
        for name in reversed(graph.order[1:]):
            self.size[above[name]] += self.size[name]
        for name in graph.order[1:]:
            self.under[above[name]].append(name)
        self.before = self._before()
        self.meeting = {
            name
            for name, sources in self.before.items()
            if any(source != above.get(name, source) for source in sources)
        }
        self.after: dict[str, list[str]] = {}
        """The steps drawn after a step at its own depth; the others under it are drawn inside."""
        self.host: dict[str, str | None] = {graph.entry: None}
        """The step inside which a step is drawn."""
        self._arrange()

    def _before(self) -> dict[str, list[str]]:
        """The steps that lead to a step, without arcs back."""
        before: dict[str, list[str]] = {name: [] for name in self.graph.order}
        for name in self.graph.order:
            for edge in self.graph.out[name]:
                if edge.target in before and (name, edge.target) not in self.graph.back:
                    before[edge.target].append(name)
        return before

    def _arrange(self) -> None:
        depth = {self.graph.entry: 0}
        for name in self.graph.order:
            self.after[name] = self._drawn_after(name, depth[name])
            for child in self.under[name]:
                inside = child not in self.after[name]
                depth[child] = depth[name] + inside
                self.host[child] = name if inside else self.host[name]

    def _drawn_after(self, name: str, depth: int) -> list[str]:
        children = self.under[name]
        if len(children) == 1 or depth >= DEPTH_MAX:
            return children
        arms = [child for child in children if child not in self.meeting]
        after = [child for child in children if child in self.meeting]
        largest = max(arms, key=self.size.__getitem__, default=None)
        if largest is not None:
            most = self.size[largest] * 2 > sum(self.size[child] for child in arms)
            if len(arms) == 1 or (most and (not after or self.size[largest] > SMALL)):
                after.append(largest)
        return sorted(after, key=self.place.__getitem__)

    def level(self, first: str, gutter: str) -> Iterator[Drawn]:
        """A step and all that follow it at the same depth."""
        waiting = [first]
        while waiting:
            name = waiting.pop()
            waiting.extend(reversed(self.after[name]))
            following = waiting[-1] if waiting else None
            flows = following is not None and self._flows(name, following)
            yield from self._step(name, following if flows else None, gutter)
            if following is not None:
                line = self.glyphs.line if flows else ""
                yield Drawn((gutter + line).rstrip(), gutter)

    def _flows(self, name: str, following: str) -> bool:
        """Whether something in the block of `name` leads to the step drawn next."""
        for source in self.before[following]:
            at: str | None = source
            while at is not None:
                if at == name:
                    return True
                at = self.host[at]
        return False

    def _step(self, name: str, following: str | None, gutter: str) -> Iterator[Drawn]:
        glyphs, edges = self.glyphs, self.graph.out[name]
        ways = [edge for edge in edges if not self._is_plain_fall(edge, edges, following)]
        line = gutter + (glyphs.line if following is not None or ways else glyphs.none)
        yield _headline(self.graph, name, gutter + glyphs.step, line)
        for row in step_rows(self.graph.steps[name]):
            yield _beside(line, row)
        inside = {child for child in self.under[name] if self.host[child] == name}
        for index, edge in enumerate(ways):
            is_last = index == len(ways) - 1 and following is None
            stroke = gutter + (glyphs.last if is_last else glyphs.fork)
            below = gutter + (glyphs.none if is_last else glyphs.line)
            if edge.target in inside:
                inside.discard(edge.target)
                yield Drawn(stroke, below, _inscription(edge) or (Span("always", "quiet"),))
                yield from self.level(edge.target, below)
            else:
                yield _way(edge, self.graph, glyphs, stroke, below)

    def _is_plain_fall(self, edge: Edge, edges: tuple[Edge, ...], following: str | None) -> bool:
        """Whether this is the only arc, without a guard, to the step drawn next: the line itself
        shows it.
        """
        return len(edges) == 1 and edge.target == following and not _inscription(edge)


def _headline(graph: Graph, name: str, lead: str, hang: str) -> Drawn:
    step = graph.steps[name]
    marks = []
    if name == graph.entry:
        marks.append("entry")
    if len(step.router.arcs) > 1:
        marks.append(step.router.mode)
    spans = [Span(one_line(name), "step")]
    if marks:
        spans.append(Span(f"  {', '.join(marks)}", "quiet"))
    return Drawn(lead, hang, tuple(spans))


def _beside(gutter: str, row: Row) -> Drawn:
    """A row of a step's description; continuation lines are indented further."""
    if row[0] is INDENT:
        return Drawn(f"{gutter}  ", f"{gutter}    ", row[1:])
    return Drawn(gutter, f"{gutter}  ", row)


def _inscription(edge: Edge) -> Row:
    """The text on an arc: its rule, or its guard."""
    spans = []
    if edge.kind == "compensate":
        spans.append(Span("to undo it", "word"))
    if edge.rule is not None:
        spans.append(Span(f"case {edge.rule}", "word"))
    elif edge.otherwise:
        spans.append(Span("otherwise", "guard"))
    elif guard(edge.when):
        spans.append(Span(guard(edge.when), "guard"))
    return tuple(spans)


def _way(edge: Edge, graph: Graph, glyphs: Glyphs, stroke: str, below: str) -> Drawn:
    """An arc to a step that is drawn elsewhere."""
    inscription = _inscription(edge)
    target = _target(edge, graph, glyphs)
    if not inscription:
        return Drawn(stroke.rstrip() + glyphs.arrow[1:], below + "  ", (target,))
    return Drawn(stroke, below + "  ", (*inscription, Span(f" {glyphs.arrow}", "quiet"), target))


def _target(edge: Edge, graph: Graph, glyphs: Glyphs) -> Span:
    if edge.target not in graph.steps:
        return Span(f"<{expression(edge.target)}>", "guard")
    if (edge.source, edge.target) in graph.back:
        return Span(one_line(f"{glyphs.back}{edge.target}"), "back")
    return Span(one_line(edge.target), "target")


def _alone(graph: Graph, name: str, glyphs: Glyphs) -> Iterator[Drawn]:
    """A step by itself, with its arcs as references."""
    edges = graph.out[name]
    line = glyphs.line if edges else glyphs.none
    yield _headline(graph, name, glyphs.unreached, line)
    for row in step_rows(graph.steps[name]):
        yield _beside(line, row)
    for edge in edges:
        stroke = glyphs.last if edge is edges[-1] else glyphs.fork
        yield _way(edge, graph, glyphs, stroke, glyphs.none)


def _workbook(net: Net, glyphs: Glyphs) -> Iterator[Drawn]:
    if net.workbook:
        yield Drawn("", "")
        yield Drawn("", "", (Span("workbook, called by name:", "word"),))
    for block in net.workbook:
        yield Drawn(glyphs.step, glyphs.none, (Span(one_line(block.name), "step"),))
        for row in block_rows(block):
            yield _beside(glyphs.none, row)


def _needs(needs: tuple[Need, ...]) -> Iterator[Drawn]:
    if not needs:
        return
    yield Drawn("", "")
    yield Drawn("", "", (Span("credentials needed:", "word"),))
    for need in needs:
        used = f"used by {', '.join(need.used_by)}" if need.used_by else "used by no step"
        kind = need.kind if need.kind is not None else "not declared under keychain"
        yield Drawn(
            "   ",
            "     ",
            (
                Span(expression(need.name), "name"),
                Span(f"  {one_line(kind)}", "kind" if need.declared else "warning"),
                Span(f"  {one_line(used)}", "quiet"),
            ),
        )
