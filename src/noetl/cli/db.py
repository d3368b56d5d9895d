"""`noetl db`: upgrade and check the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl import configured
from noetl.cli import FAILED, OK
from noetl.cli.calls import on_database
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
@on_database
async def migrate_command(settings: Settings) -> None:
    """Upgrade the database to the schema of this version.

    The upgrade happens in place and atomically.

    Servers and `noetl run` upgrade the database when they start. Use this command beforehand if the
    upgrade takes long, or if they may not change tables.

    \b
    Example:
      noetl db migrate --db postgresql://noetl@db.example.com/noetl
    """
    is_new = configured.is_missing(settings)
    await (await configured.open_store(settings.database_url)).close()
    made = f"{settings.database_url} did not exist and was made; it" if is_new else "the database"
    say(f"{made} has the schema of this version")


@command.command("check")
@on_database
async def check_command(settings: Settings) -> int:
    """Read the whole database, and report damage.

    It changes nothing and may run beside servers. One line per finding; exit code 1 if there are
    any. A damaged execution is not served; others are not affected.

    \b
    Example:
      noetl db check
    """
    from noetl.control.integrity import problems

    async with configured.open_for_reading(settings) as store:
        found = await problems(store)
    for problem in found:
        print_line(printable(problem))
    if found:
        say(f"{counted(len(found), 'finding')}. Restore these from a backup, or run them again.")
        return FAILED
    say("no damage was found")
    return OK
