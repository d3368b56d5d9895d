"""`noetl completion`: shell completion, including execution ids and tool kinds.

Shells call this at every press of the tab key, so it is quick and quiet: if executions cannot be
looked up, none are offered, and the command itself reports why when it runs.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")

IDS_SHOWN = 50
PATIENCE = 2.0
"""Seconds that a server may take; a person is waiting at the terminal."""


def kinds_beginning_with(
    context: click.Context, parameter: click.Parameter, beginning: str
) -> list[CompletionItem]:
    """Tool kinds, each with its summary."""
    from click.shell_completion import CompletionItem

    from noetl import wiring

    return [
        CompletionItem(kind, help=tool.summary)
        for kind, (tool, _) in sorted(wiring.tool_kinds().items())
        if kind.startswith(beginning)
    ]


def executions_beginning_with(
    context: click.Context, parameter: click.Parameter, beginning: str
) -> list[CompletionItem]:
    """The newest executions, each with its playbook and status; and the word `last`."""
    from click.shell_completion import CompletionItem

    from noetl.errors import NoetlError

    found = [("last", "the newest one")]
    try:
        found += asyncio.run(_executions(context.params.get("db"), context.params.get("server")))
    except (NoetlError, OSError, TimeoutError):
        found = found[:1]  # completion must not print; the command itself reports the error
    return [CompletionItem(name, help=said) for name, said in found if name.startswith(beginning)]


async def _executions(db: str | None, server: str | None) -> list[tuple[str, str]]:
    from noetl.api.routes.executions import LIST, Which
    from noetl.cli.calls import looking
    from noetl.cli.options import settings_for

    async with asyncio.timeout(PATIENCE), looking(settings_for(db, server)) as api:
        page = await api.call(LIST, query=Which(limit=IDS_SHOWN))
    return [(row.execution_id, f"{row.path} {row.status.lower()}") for row in page.executions]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def command(shell: str | None) -> None:
    """Print the completion script for a shell.

    It completes commands, options, execution ids and tool kinds. Without an argument it is for the
    shell named by the environment variable SHELL.

    \b
    Examples, each for the startup file of the shell:
      eval "$(noetl completion bash)"       # ~/.bashrc
      eval "$(noetl completion zsh)"        # ~/.zshrc
      noetl completion fish | source        # ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from noetl.cli.commands import noetl
    from noetl.cli.output import print_text

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"name your shell: {', '.join(SHELLS)}.")
    kind = get_completion_class(name)
    assert kind is not None
    print_text(kind(noetl, {}, "noetl", "_NOETL_COMPLETE").source())
