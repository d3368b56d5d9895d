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
    if settings.server_url is not None:
        from noetl.cli.remote import connected

        async with connected(settings) as client:
            return int((await client.post("/api/keys/rotate"))["rotated"])
    from noetl import wiring

    async with wiring.embedded(settings, work=False) as system:
        return await wiring.rotate_keys(settings, system.keys)
