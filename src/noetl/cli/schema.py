"""`noetl schema`: the language, for editors."""

from __future__ import annotations

import click

from noetl.cli.output import print_json
from noetl.model.triggers import KINDS


@click.command()
@click.option(
    "--kind",
    type=click.Choice(KINDS, case_sensitive=False),
    default="Playbook",
    show_default=True,
    help="The kind of document.",
)
@click.option(
    "--tests", is_flag=True, help="Print the schema of test files (`noetl test`) instead."
)
def command(kind: str, tests: bool) -> None:
    """Print the JSON Schema of playbooks, for editors.

    With it an editor completes keys, shows help and marks mistakes while you type. It includes the
    tool kinds that are installed here.

    \b
    Example, for VS Code with the YAML extension:
      noetl schema > noetl.schema.json
      # then as the first line of a playbook:
      # yaml-language-server: $schema=noetl.schema.json
      noetl schema --kind Schedule > schedule.schema.json
    """
    from noetl import configured
    from noetl.trials import files

    print_json(files.schema() if tests else configured.schema(kind))
