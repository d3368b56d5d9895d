"""kind: shell. Runs commands in a process group of their own."""

from __future__ import annotations

from typing import Annotated, Literal

from noetl.tools.base import Duration, ExitCode, Name, Tool, ToolConfig, about, run_of


class Shell(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: shell`."""

    cmd: Annotated[
        str | tuple[str, ...] | None,
        about("Command line for the shell, or a list: program and arguments, no shell."),
    ] = None
    cmds: Annotated[
        tuple[str, ...] | None, about("Command lines to run in order; the first failure ends it.")
    ] = None
    env: Annotated[dict[str, str | int | float | bool], about("Environment variables to set.")] = {}
    env_allow: Annotated[
        tuple[Name, ...], about("Variables of the worker that the command may see.")
    ] = ()
    cwd: Annotated[str | None, about("Directory to run in; a fresh empty one when left out.")] = (
        None
    )
    stdin: Annotated[str | None, about("Text for the command to read.")] = None
    decode: Annotated[
        Literal["text", "lines", "json", "ndjson"], about("How to read what it prints.")
    ] = "text"
    ok_codes: Annotated[tuple[ExitCode, ...], about("Exit codes that mean success.")] = (0,)
    retry_codes: Annotated[
        tuple[ExitCode, ...], about("Exit codes of failures that are worth another try.")
    ] = ()
    timeout: Annotated[
        Duration | None, about("How long it may run before its process group is killed.")
    ] = None


EXAMPLE = """\
- step: pack
  tool:
    kind: shell
    cmds:
      - mkdir -p out
      - tar -czf "out/$NAME.tar.gz" "$SOURCE"
    env: { NAME: "{{ workload.name }}", SOURCE: "{{ workload.source }}" }
    timeout: 5m
"""

TOOL = Tool(
    kind="shell",
    example=EXAMPLE,
    summary="Runs shell commands.",
    config=Shell,
    run=run_of("noetl.tools.shell.run"),
    errors=("exception", "timeout", "not_found", "auth", "client_error", "parse"),
    aliases={"command": "cmd", "commands": "cmds"},
    needs=(("cmd", "cmds"),),
    code_fields=("cmd", "cmds"),
    code_inputs="env",
)
