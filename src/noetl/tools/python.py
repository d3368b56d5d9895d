"""kind: python. The author's own code, in a process of its own."""

from __future__ import annotations

import ast
import warnings
from typing import Annotated, Literal

from noetl.model.outcome import Outcome
from noetl.model.toolshape import CodeProblem
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


def check(code: str) -> CodeProblem | None:
    """What Python says of the code before it runs. `return` may stand at top level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        return CodeProblem(message=error.msg, line=line, column=column)
    except ValueError as error:
        return CodeProblem(message=str(error))
    except (RecursionError, MemoryError):
        return CodeProblem(message="the code is nested too deeply")
    return None


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
    code_check=check,
    code_inputs="args",
)
