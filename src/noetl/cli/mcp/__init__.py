"""`noetl mcp`: a Model Context Protocol server for assistants, over standard input and output."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from noetl.cli.calls import adds
from noetl.cli.mcp.offers import Offers
from noetl.cli.mcp.protocol import Session, lines_of
from noetl.cli.output import say

if TYPE_CHECKING:
    from noetl.settings import Settings


@click.command()
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Also offer to start, cancel, pause, resume and rerun executions.",
)
@adds
async def command(settings: Settings, allow_actions: bool) -> None:
    """Run the server of the Model Context Protocol, for assistants.

    It speaks the protocol over standard input and output, and assistants start it themselves. They
    can read playbooks, executions, events, results and logs, check playbooks, and ask why an
    execution failed or waits. With --allow-actions they can also start executions and act on them.
    It calls the API as every command does, with the same server, token and rights.

    \b
    Examples:
      noetl mcp
      noetl mcp --server https://noetl.example.com --allow-actions
    """
    if sys.stdin.isatty():
        say("this speaks the Model Context Protocol on standard input; assistants start it.")
    given, out = _own_streams()
    session = Session(Offers(settings, may_act=allow_actions), out)
    await session.serve(lines_of(given))


def _own_streams() -> tuple[int, int]:
    """Standard input and output for messages alone: what else reads or prints in this process, or
    in one that it starts, gets nothing and prints on standard error.
    """
    sys.stdout.flush()
    given, out = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    # The program that started this may share them, and use them without waiting.
    os.set_blocking(given, True)
    os.set_blocking(out, True)
    return given, out
