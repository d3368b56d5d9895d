"""A playbook as a graph, for those who draw it."""

from __future__ import annotations

from noetl.model.answers import Layout, LayoutEdge, LayoutNode
from noetl.model.net import Net


def layout(net: Net) -> Layout:
    """Steps and the arcs between them, in the order of the playbook."""
    return Layout(
        entry=net.entry,
        nodes=[
            LayoutNode(
                id=step.name,
                kinds=[task.kind for task in step.tasks],
                loop=step.loop is not None,
                description=step.description,
            )
            for step in net.steps
        ],
        edges=[
            LayoutEdge(source=step.name, target=arc.step, when=arc.when, on_failure=arc.on_failure)
            for step in net.steps
            for arc in step.router.arcs
        ],
    )
