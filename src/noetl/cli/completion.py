"""`noetl completion`: completion in the shell."""

from __future__ import annotations

import os
from pathlib import Path

import click

from noetl.cli.output import print_text

SHELLS = ("bash", "zsh", "fish")


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

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"name your shell: {', '.join(SHELLS)}.")
    kind = get_completion_class(name)
    assert kind is not None
    print_text(kind(noetl, {}, "noetl", "_NOETL_COMPLETE").source())
