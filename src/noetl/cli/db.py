"""`noetl db`: the database that executions are kept in."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from noetl.cli.exits import FAILED
from noetl.cli.options import db_option, local_settings
from noetl.cli.output import counted, print_line, printable, say

if TYPE_CHECKING:
    from noetl.settings import Settings


@click.group()
def command() -> None:
    """Upgrade or check the database.

    \b
    Examples:
      noetl db migrate
      noetl db check --db postgresql://noetl@db.example.com/noetl
    """


@command.command("migrate")
@db_option
def migrate_command(db: str | None) -> None:
    """Upgrade the database to the schema of this version.

    That happens in place: all of it, or nothing.

    Servers and `noetl run` do this by themselves when they start. Do it beforehand where it takes
    long, or where they may not change tables.
    """
    asyncio.run(_migrate(local_settings(db)))
    say("the database has the schema of this version")


async def _migrate(settings: Settings) -> None:
    from noetl import wiring

    await (await wiring.open_store(settings.database_url)).close()


@command.command("check")
@db_option
def check_command(db: str | None) -> None:
    """Read everything, and report what is damaged.

    It changes nothing and may run beside servers. One line per finding; exit code 1 if there are
    any. An execution that is damaged is not served; the others are not affected.
    """
    found = asyncio.run(_check(local_settings(db)))
    for problem in found:
        print_line(printable(problem))
    if found:
        say(f"{counted(len(found), 'finding')}. Restore these from a backup, or run them anew.")
        sys.exit(FAILED)
    say("everything is what was written")


async def _check(settings: Settings) -> list[str]:
    from noetl import wiring

    async with wiring.looking(settings) as store:
        return await wiring.check(store)
