"""A playbook as a graph, for those who draw it."""

from __future__ import annotations

from typing import Any

from noetl.model.net import Net


def layout(net: Net) -> dict[str, Any]:
    """Steps and the arcs between them, in the order of the playbook."""
    return {
        "entry": net.entry,
        "nodes": [
            {
                "id": step.name,
                "kinds": [task.kind for task in step.tasks],
                "loop": step.loop is not None,
                "description": step.description,
            }
            for step in net.steps
        ],
        "edges": [
            {"from": step.name, "to": arc.step, "when": arc.when, "on_failure": arc.on_failure}
            for step in net.steps
            for arc in step.router.arcs
        ],
    }
