"""kind: artifact. The value, or a part of it, behind a result reference."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from noetl.model.outcome import Outcome
from noetl.tools.base import Count, Name, Reference, Tool, ToolConfig, ToolContext, about

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


async def run(config: Artifact, context: ToolContext) -> Outcome:
    from noetl.tools.running.artifact import run

    return await run(config, context)


EXAMPLE = """\
- step: first_rows
  tool:
    kind: artifact
    ref: "{{ load_orders._ref }}"
    path: rows
    limit: 100
"""

TOOL = Tool(
    kind="artifact",
    example=EXAMPLE,
    summary="Reads a result reference.",
    config=Artifact,
    run=run,
    errors=("not_found", "parse", "client_error", "schema"),
    aliases={"reference": "ref"},
    needs=(("ref",),),
)
