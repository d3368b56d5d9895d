"""kind: mcp. A tool, resource or prompt of a Model Context Protocol server."""

from __future__ import annotations

from typing import Annotated, Literal

from noetl.tools.base import Credential, Duration, Name, Tool, ToolConfig, about, run_of
from noetl.tools.web.request import SERVICE_ERRORS


class Mcp(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: mcp`."""

    url: Annotated[Name | None, about("Address of a server reached over HTTP.")] = None
    command: Annotated[
        tuple[Name, ...] | None,
        about("Program and arguments of a server to start and talk to over stdio."),
    ] = None
    env: Annotated[dict[str, str], about("Environment variables for `command`.")] = {}
    cwd: Annotated[str | None, about("Directory for `command`.")] = None
    headers: Annotated[dict[str, str], about("Request headers for `url`.")] = {}
    auth: Annotated[Credential | None, about("Credential of the server.")] = None
    tool_name: Annotated[
        Name | None, about("Tool to call; its arguments are the task's `args`.")
    ] = None
    resource: Annotated[Name | None, about("Resource to read, by its URI.")] = None
    prompt: Annotated[
        Name | None, about("Prompt to fetch; its arguments are the task's `args`.")
    ] = None
    discover: Annotated[
        Literal["tools", "resources", "prompts"] | None, about("Yield what the server offers.")
    ] = None
    timeout: Annotated[Duration, about("How long to wait for the answer.")] = 60


EXAMPLE = """\
- step: search_docs
  tool:
    kind: mcp
    url: https://mcp.example.com/mcp
    auth: mcp_token
    tool_name: search
    args: { query: "{{ workload.question }}", limit: 5 }
"""

ENDS = (("url", "command"), ("tool_name", "resource", "prompt", "discover"))

TOOL = Tool(
    kind="mcp",
    example=EXAMPLE,
    summary="Calls a Model Context Protocol server.",
    config=Mcp,
    run=run_of("noetl.tools.mcp.run"),
    errors=(*SERVICE_ERRORS, "exception"),
    aliases={"credential": "auth"},
    needs=ENDS,
    only_one=ENDS,
)
