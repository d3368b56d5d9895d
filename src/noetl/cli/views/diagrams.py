"""Exports a net for other programs: Graphviz, Mermaid, JSON."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from noetl.cli.output import cut, one_line
from noetl.cli.views.credentials import credentials_of
from noetl.cli.views.description import describe_action, expression, guard, loop_row, shown_name
from noetl.engine.graph import Edge, Graph, graph_of
from noetl.model.net import Loop, Net, Step, Task

LABEL_CHARACTERS_MAX = 80


# --- Shared by both diagrams -------------------------------------------------------------------


def _lines(step: Step) -> list[str]:
    """The label of a step: its name, its loop, its tasks."""
    lines = [step.name]
    if step.loop is not None:
        lines.append("".join(span.text for span in loop_row(step.loop)))
    for task in step.tasks:
        name = shown_name(task, step.name)
        lines.append(f"{name}: {task.kind}" if name else task.kind)
    return [one_line(lines[0]), *(one_line(cut(line, LABEL_CHARACTERS_MAX)) for line in lines[1:])]


def _inscription(edge: Edge) -> str:
    rule = f"case {edge.rule}: " if edge.rule is not None else ""
    if edge.kind == "compensate":
        return "to undo it"
    text = "otherwise" if edge.otherwise else guard(edge.when)
    return cut(f"{rule}{text}".removesuffix(": "), LABEL_CHARACTERS_MAX)


def _all_steps(graph: Graph) -> tuple[str, ...]:
    return (*graph.order, *graph.dispatched, *graph.unreachable)


def _elsewhere(graph: Graph) -> dict[str, str]:
    """Ids for targets that are only known at run time."""
    found = dict.fromkeys(edge.target for edge in graph.edges if edge.target not in graph.steps)
    return {target: f"t{index}" for index, target in enumerate(found)}


def _ids(graph: Graph) -> dict[str, str]:
    return {name: f"s{index}" for index, name in enumerate(_all_steps(graph))}


# --- Graphviz ----------------------------------------------------------------------------------


def dot(net: Net) -> str:
    """The net in Graphviz's language."""
    graph = graph_of(net)
    ids, elsewhere, lost = _ids(graph), _elsewhere(graph), frozenset(graph.unreachable)
    lines = [
        f"digraph {_dot_text(net.name)} {{",
        '  graph [rankdir=TB, fontname="Helvetica"];',
        '  node [shape=box, style=rounded, fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=10];',
    ]
    for name, id_ in ids.items():
        step = graph.steps[name]
        attributes = [f"label={_dot_text(*_lines(step))}"]
        if name == graph.entry:
            attributes.append("penwidth=2")
        if step.loop is not None:
            attributes.append("peripheries=2")
        if name in lost:
            attributes += ['style="rounded,dashed"', "color=gray", "fontcolor=gray"]
        lines.append(f"  {id_} [{', '.join(attributes)}];")
    for target, id_ in elsewhere.items():
        lines.append(f"  {id_} [label={_dot_text(expression(target))}, shape=plaintext];")
    ids |= elsewhere
    for edge in graph.edges:
        is_back = (edge.source, edge.target) in graph.back
        written = _dot_edge(edge, is_back, edge.source in lost)
        lines.append(f"  {ids[edge.source]} -> {ids[edge.target]}{written};")
    return "\n".join([*lines, "}", ""])


def _dot_edge(edge: Edge, is_back: bool, is_lost: bool) -> str:
    attributes = []
    if _inscription(edge):
        attributes.append(f"label={_dot_text(_inscription(edge))}")
    if is_lost:
        attributes += ["style=dashed", "color=gray"]
    elif edge.kind != "next":
        attributes.append("style=dotted")
    if is_back:
        # Otherwise Graphviz turns the whole picture round to make the arc back point down.
        attributes += ["constraint=false", "color=purple"]
    return f" [{', '.join(attributes)}]" if attributes else ""


def _dot_text(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in map(one_line, lines))
    return '"' + "\\n".join(escaped) + '"'


# --- Mermaid -----------------------------------------------------------------------------------


def mermaid(net: Net) -> str:
    """The net as a Mermaid flowchart, as Markdown pages show them."""
    graph = graph_of(net)
    ids, elsewhere, lost = _ids(graph), _elsewhere(graph), frozenset(graph.unreachable)
    lines = ["flowchart TD"]
    for name, id_ in ids.items():
        step = graph.steps[name]
        label = _mermaid_text(*_lines(step))
        lines.append(f"  {id_}[[{label}]]" if step.loop is not None else f"  {id_}({label})")
    for target, id_ in elsewhere.items():
        lines.append(f"  {id_}>{_mermaid_text(expression(target))}]")
    ids |= elsewhere
    edges = list(graph.edges)
    for edge in edges:
        stroke = "-.->" if edge.kind != "next" or edge.source in lost else "-->"
        text = _inscription(edge)
        label = f"|{_mermaid_text(text)}|" if text else ""
        lines.append(f"  {ids[edge.source]} {stroke}{label} {ids[edge.target]}")
    lines += ["  classDef entry stroke-width:3px", f"  class {ids[graph.entry]} entry"]
    if lost:
        lines.append("  classDef unreachable stroke-dasharray:5 5,opacity:0.6")
        lines.append(f"  class {','.join(ids[name] for name in graph.unreachable)} unreachable")
    # Links are addressed by their number.
    backs = [
        str(number) for number, edge in enumerate(edges) if (edge.source, edge.target) in graph.back
    ]
    if backs:
        lines.append(f"  linkStyle {','.join(backs)} stroke:purple")
    return "\n".join([*lines, ""])


def _mermaid_text(*lines: str) -> str:
    """A quoted label. Every character that Mermaid, Markdown or HTML might interpret becomes a
    code.
    """
    return '"' + "<br/>".join(map(_mermaid_escaped, map(one_line, lines))) + '"'


def _mermaid_escaped(line: str) -> str:
    line = re.sub(r"[^\w\s.,:=/!?+()…-]", lambda match: f"#{ord(match[0])};", line)
    # At the start of a label these would be a list in Markdown.
    return re.sub(r"^(\d+)?([.+-])", lambda m: f"{m[1] or ''}#{ord(m[2])};", line)


# --- JSON --------------------------------------------------------------------------------------


def document(net: Net, digest: str) -> dict[str, Any]:
    """The plan as data."""
    graph = graph_of(net)
    lost = frozenset(graph.unreachable)
    return {
        "name": net.name,
        "path": net.path,
        "entry": net.entry,
        "inputs": [msgspec.to_builtins(one) for one in net.executor.inputs],
        "workbook": [
            {"name": block.name, "loop": _loop(block.loop), "tasks": [*map(_task, block.tasks)]}
            for block in net.workbook
        ],
        "steps": [_step(graph.steps[name], name not in lost) for name in _all_steps(graph)],
        "arcs": [_arc(graph, edge) for edge in graph.edges],
        "credentials": [msgspec.to_builtins(need) for need in credentials_of(net)],
        "unreachable": list(graph.unreachable),
        "digest": digest,
    }


def _step(step: Step, is_reachable: bool) -> dict[str, Any]:
    return {
        "name": step.name,
        "description": step.description,
        "reachable": is_reachable,
        "admit": [{"when": rule.when, "allow": rule.allow} for rule in step.admit],
        "join": {"kind": step.join.kind, "count": step.join.count},
        "loop": _loop(step.loop),
        "tasks": [_task(task) for task in step.tasks],
        "sink": _task(step.sink) if step.sink is not None else None,
        "rules": [
            {
                "when": rule.when,
                "events": rule.events,
                "actions": [describe_action(action) for action in rule.actions],
            }
            for rule in step.rules
        ],
        "waits": step.case.wait,
        "mode": step.router.mode,
        "timeout": step.timeout,
        "deadline": step.deadline,
    }


def _loop(loop: Loop | None) -> dict[str, Any] | None:
    if loop is None:
        return None
    return {
        "iterator": loop.iterator,
        "in": loop.items,
        "range": {"from": loop.range.start, "to": loop.range.stop, "step": loop.range.step}
        if loop.range is not None
        else None,
        "cursor": loop.cursor.kind if loop.cursor is not None else None,
        "mode": loop.mode,
        "max_in_flight": loop.max_in_flight,
        "on_error": loop.on_error,
    }


def _task(task: Task) -> dict[str, Any]:
    return {
        "name": task.name,
        "kind": task.kind,
        "timeout": task.timeout,
        "rules": [
            {"when": rule.when, "actions": [describe_action(action) for action in rule.actions]}
            for rule in (*task.retries, *task.rules)
        ],
    }


def _arc(graph: Graph, edge: Edge) -> dict[str, Any]:
    return {
        "from": edge.source,
        "to": edge.target,
        "when": edge.when,
        "kind": edge.kind,
        "on_failure": edge.on_failure,
        "back": (edge.source, edge.target) in graph.back,
    }
