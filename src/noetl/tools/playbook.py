"""kind: playbook. Runs another playbook as a child execution, and waits for its end."""

from __future__ import annotations

from typing import Annotated, Any

from noetl.model.older_forms import Written
from noetl.tools.base import Count, Name, Tool, ToolConfig, about


class Playbook(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: playbook`."""

    path: Annotated[Name | None, about("Catalog path of the playbook to run.")] = None
    version: Annotated[Count | Name | None, about("Version to run; the latest when left out.")] = (
        None
    )
    payload: Annotated[
        dict[str, Any] | None,
        about("Same as `args`: what the child's workload is overridden with."),
    ] = None
    return_step: Annotated[
        Name | None, about("Step of the child whose result to yield; its own result otherwise.")
    ] = None


EXAMPLE = """\
- step: bill_customer
  tool:
    kind: playbook
    path: billing/invoice
    version: 3
    args: { customer_id: "{{ workload.customer_id }}" }
    return_step: send_invoice
"""


def _older(task: Written) -> None:
    if task.has("task"):
        task.ignore("task", "a child starts at its entry step")


TOOL = Tool(
    kind="playbook",
    example=EXAMPLE,
    summary="Runs another playbook and waits for its end.",
    config=Playbook,
    is_harmless=True,
    errors=("not_found", "cancelled", "timeout"),
    needs=(("path",),),
    older=_older,
    deprecated={"task": "A child starts at its entry step; leave it out."},
)
