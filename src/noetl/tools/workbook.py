"""kind: workbook. A task written once under the root `workbook`, used by name."""

from __future__ import annotations

from typing import Annotated

from noetl.tools.base import Name, Tool, ToolConfig, about


class Workbook(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: workbook`.

    `name` stands for `task` where `task` is left out; the language fills it in, because a
    task's name is its own.
    """

    task: Annotated[
        Name | None, about("Entry of the root `workbook` to run; the task's `name` if left out.")
    ] = None


EXAMPLE = """\
- step: report
  tool:
    - name: morning_report
      kind: workbook
      task: send_report
      args: { hour: 8 }
    - kind: workbook
      name: clean_up
"""

TOOL = Tool(
    kind="workbook",
    example=EXAMPLE,
    summary="Runs a task of the root workbook.",
    config=Workbook,
    is_harmless=True,
    errors=("timeout",),
    needs=(("task",),),
)
