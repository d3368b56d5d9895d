"""`noetl schema`: the language, for editors."""

from __future__ import annotations

import click

from noetl.cli.printing import print_json


@click.command(short_help="Print the JSON Schema of the language, for editors.")
@click.option("--tests", is_flag=True, help="The schema of test files (`noetl test`) instead.")
def command(tests: bool) -> None:
    """Print the JSON Schema of the language, for editors.

    With it an editor completes keys, shows help and marks mistakes while you type. It knows
    the tool kinds that are installed here.

    \b
    Example, for VS Code with the YAML extension:
      noetl schema > noetl.schema.json
      # then as the first line of a playbook:
      # yaml-language-server: $schema=noetl.schema.json
    """
    if tests:
        from noetl.trials.files import schema
    else:
        from noetl.wiring import schema

    print_json(schema())
