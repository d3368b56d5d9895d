"""`noetl executions`: look at what ran and what runs, and act on it."""

from __future__ import annotations

import click

from noetl.cli.executions import actions, inspection, retention

SECTIONS = {
    "Look": inspection.COMMANDS,
    "Act": actions.COMMANDS,
    "Keep and remove": retention.COMMANDS,
}


class Sections(click.Group):
    """There are too many commands to be read as one list."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(one.name or "", one.get_short_help_str(80)) for one in commands]
                )


@click.group(cls=Sections)
def command() -> None:
    """List, inspect, cancel, resume and rerun executions.

    An ID may be shortened to a beginning or an end that no other has, or be the word `last`.
    Looking works while another process runs executions; acting reaches that process.

    \b
    Examples:
      noetl executions list --status FAILED --since 1d
      noetl executions show last
      noetl executions why last
      noetl executions cancel 4711 --reason "wrong file"
      noetl executions resume-all
    """


for commands in SECTIONS.values():
    for one in commands:
        command.add_command(one)
