"""kind: artifact. Reads the value behind a result reference, or a part of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from noetl.model.older_forms import Written
from noetl.tools.base import Count, Name, Reference, Tool, ToolConfig, about, run_of

Offset = Annotated[int, msgspec.Meta(ge=0)]


class Artifact(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: artifact`."""

    ref: Annotated[
        Reference | Name | None, about("The reference: as an event shows it, or its key.")
    ] = None
    path: Annotated[
        Name | None, about("Part to read, e.g. `rows.0.id`; all of it when left out.")
    ] = None
    offset: Annotated[Offset, about("Elements of a list, rows or bytes to leave out first.")] = 0
    limit: Annotated[Count | None, about("Elements, rows or bytes to read at most.")] = None
    decode: Annotated[
        Literal["auto", "json", "ndjson", "csv", "parquet", "arrow", "text", "bytes"],
        about("How to read it; `auto` goes by what the reference says."),
    ] = "auto"


EXAMPLE = """\
- step: first_rows
  tool:
    kind: artifact
    ref: "{{ load_orders._ref }}"
    path: rows
    limit: 100
"""


def _older(task: Written) -> None:
    action = task.text("action")
    if action == "get":
        task.leave_out("action", "reading is all that this kind does")
    elif action is not None:
        told = f"kind artifact cannot `{action[:20]}`; use `kind: store` with `action: put`."
        task.refuse("action", "bad-value", told)
    for key in ("result_ref", "uri"):
        if task.has(key):
            task.rename(key, "ref")
    inputs = task.below("args", "`args`")
    for key in ("ref", "result_ref", "uri"):
        if inputs is not None and inputs.has(key):
            inputs.move(key, task, "ref", "write `ref` on the task itself")
    if inputs is not None and not inputs.names():
        task.discard("args")


TOOL = Tool(
    kind="artifact",
    example=EXAMPLE,
    summary="Reads a result reference.",
    config=Artifact,
    run=run_of("noetl.tools.artifact.run"),
    is_harmless=True,
    errors=("not_found", "parse", "client_error", "schema"),
    aliases={"reference": "ref"},
    needs=(("ref",),),
    older=_older,
    deprecated={
        "action": "This kind reads; leave it out.",
        "result_ref": "Write `ref`.",
        "uri": "Write `ref`.",
    },
)
