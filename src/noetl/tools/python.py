"""kind: python. The author's own code, in a process of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from noetl.model.outcome import Outcome
from noetl.tools.base import Credential, Duration, Name, Tool, ToolConfig, ToolContext, about


class Python(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: python`."""

    code: Annotated[
        str | None, about("Code that sets `result`, returns, or defines `main(**args)`.")
    ] = None
    script: Annotated[str | None, about("File or address to load the code from.")] = None
    auth: Annotated[
        Credential | None, about("Credential to read `script` with, where its address needs one.")
    ] = None
    libs: Annotated[
        tuple[Name, ...], about("Packages the code imports, as requirement specifiers.")
    ] = ()
    result_as: Annotated[
        Literal["value", "ndjson"],
        about("Yield the value, or a reference to a file of what it yields, a line each."),
    ] = "value"
    timeout: Annotated[
        Duration | None, about("How long the code may run before its process is killed.")
    ] = None


async def run(config: Python, context: ToolContext) -> Outcome:
    from noetl.tools.running.python import run

    return await run(config, context)


EXAMPLE = """\
- step: total
  tool:
    kind: python
    args:
      orders: "{{ fetch_orders.rows }}"
    code: |
      def main(orders):
          return {"count": len(orders), "total": sum(order["amount"] for order in orders)}
"""

TOOL = Tool(
    kind="python",
    example=EXAMPLE,
    summary="Runs Python code in a separate process.",
    config=Python,
    run=run,
    errors=(
        *("exception", "timeout", "schema", "parse", "not_found", "auth", "client_error"),
        *("connection", "rate_limit", "server_error"),
    ),
    aliases={"credential": "auth"},
    needs=(("code", "script"),),
    code_fields=("code",),
    code_inputs="args",
)
