"""`noetl keys`: the key that encrypts credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.api.routes.credentials import ROTATE
from noetl.cli.calls import acts
from noetl.cli.output import counted, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api


@click.group()
def command() -> None:
    """Rotate the key that encrypts credentials.

    The key is NOETL_SECRET_KEY, or a file beside the database that NoETL creates.

    \b
    Example:
      noetl keys rotate
    """


@command.command("rotate")
@acts
async def rotate_command(api: Api) -> None:
    """Encrypt every stored credential with a new key.

    A key file gets a new key, and loses the old one when it is no longer needed. With
    NOETL_SECRET_KEY, write the new key in front of the old one, separated by a comma; restart the
    servers; rotate; then remove the old key.

    \b
    Example:
      noetl keys rotate
    """
    moved = (await api.call(ROTATE)).rotated
    if moved:
        say(f"{counted(moved, 'credential')} encrypted with the new key")
    else:
        say(
            "nothing to do: no credential is under another key than the newest. To change"
            " NOETL_SECRET_KEY, write the new key in front of the old one, separated by a comma,"
            " restart the servers, and rotate again."
        )
