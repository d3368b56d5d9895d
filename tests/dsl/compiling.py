"""How these tests write a playbook and look at what became of it."""

from __future__ import annotations

from textwrap import dedent, indent

from noetl.dsl import Compiled, compile_text
from noetl.model.net import Limits, Net, Step, Task
from noetl.tools.registry import tools

TOOLS = tools()
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: example, path: tests/example}
"""


def playbook(workflow: str, root: str = "") -> str:
    """A whole document round these steps, with what else stands at the root."""
    steps = indent(dedent(workflow).strip("\n"), "  ")
    return f"{HEAD}{dedent(root)}workflow:\n{steps}\n"


def compiled(workflow: str, root: str = "", limits: Limits | None = None) -> Compiled:
    return compile_text(playbook(workflow, root), tools=TOOLS, limits=limits)


def net_of(workflow: str, root: str = "", limits: Limits | None = None) -> Net:
    return compiled(workflow, root, limits).unwrap()


def step_of(workflow: str, name: str = "start", root: str = "") -> Step:
    [found] = [step for step in net_of(workflow, root).steps if step.name == name]
    return found


def task_of(workflow: str, root: str = "", limits: Limits | None = None) -> Task:
    """The first task of the first step."""
    return net_of(workflow, root, limits).steps[0].tasks[0]


def found(workflow: str, root: str = "", limits: Limits | None = None) -> list[tuple[str, str]]:
    """Each problem as its code and what stands at its place, up to the end of the line."""
    lines = playbook(workflow, root).splitlines()
    return [
        (problem.code, lines[problem.line - 1][problem.column - 1 :])
        for problem in compiled(workflow, root, limits).problems
    ]


def codes(workflow: str, root: str = "", limits: Limits | None = None) -> list[str]:
    return [code for code, _ in found(workflow, root, limits)]


def messages(workflow: str, root: str = "") -> str:
    return "\n".join(problem.message for problem in compiled(workflow, root).problems)
