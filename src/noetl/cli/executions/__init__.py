"""`noetl executions`: inspect executions and act on them."""

from __future__ import annotations

import click

from noetl.cli.executions import actions, inspection, retention

SECTIONS = {
    "Inspect": inspection.group.commands,
    "Act": actions.group.commands,
    "Keep and remove": retention.group.commands,
}


class Sections(click.Group):
    """Lists the commands in sections, because there are many."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, one.get_short_help_str(80)) for name, one in commands.items()]
                )


@click.group(cls=Sections)
def command() -> None:
    """List, inspect, cancel, resume and rerun executions.

    An ID may be abbreviated to a unique beginning or end, or be the word `last`. Reading works
    while another process runs executions; acting calls that process.

    \b
    Examples:
      noetl executions list --status FAILED --since 1d
      noetl executions show last
      noetl executions why last
      noetl executions cancel 4711 --reason "wrong file"
      noetl executions resume-all
    """


for section in SECTIONS.values():
    command.commands.update(section)
