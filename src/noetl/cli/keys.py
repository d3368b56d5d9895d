"""`noetl keys`: the key that credentials are encrypted with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from noetl.cli.options import db_option, server_option, settings_for
from noetl.cli.printing import counted, say

if TYPE_CHECKING:
    from noetl.settings import Settings


@click.group(short_help="Keep the key that credentials are encrypted with.")
def command() -> None:
    """Keep the key that credentials are encrypted with.

    It is NOETL_SECRET_KEY, or else a file beside the database that is made once.

    \b
    Example:
      noetl keys rotate
    """


@command.command("rotate")
@db_option
@server_option
def rotate_command(db: str | None, server: str | None) -> None:
    """Put every stored credential under a new key.

    A key file gets a new key, and loses the old one when nothing needs it any more. With
    NOETL_SECRET_KEY, write the new key before the old one with a comma between, start the servers
    again, rotate, and then take the old one away.
    """
    moved = asyncio.run(_rotate(settings_for(db, server)))
    say(f"{counted(moved, 'credential')} put under the new key")


async def _rotate(settings: Settings) -> int:
    from noetl.api.routes.credentials import ROTATE
    from noetl.cli.acting import calling

    async with calling(settings) as client:
        return (await client.call(ROTATE)).rotated
