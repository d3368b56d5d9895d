"""`noetl keys`: the key that credentials are encrypted with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.calls import acts
from noetl.cli.output import counted, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api


@click.group()
def command() -> None:
    """Rotate the key that encrypts credentials.

    It is NOETL_SECRET_KEY, or else a file beside the database that is made once.

    \b
    Example:
      noetl keys rotate
    """


@command.command("rotate")
@acts
async def rotate_command(api: Api) -> None:
    """Encrypt every stored credential with a new key.

    A key file gets a new key, and loses the old one when nothing needs it any more. With
    NOETL_SECRET_KEY, write the new key before the old one with a comma between, start the servers
    again, rotate, and then take the old one away.
    """
    from noetl.api.routes.credentials import ROTATE

    moved = (await api.call(ROTATE)).rotated
    say(f"{counted(moved, 'credential')} put under the new key")
