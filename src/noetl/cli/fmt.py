"""`noetl fmt`: canonical formatting."""

from __future__ import annotations

import difflib
from io import StringIO

import click

from noetl.cli import FAILED, OK
from noetl.cli.files import Source, put_back, rewrite_each, sources
from noetl.cli.output import print_text, printable, say


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file would change.")
@click.option("--diff", is_flag=True, help="Change nothing; print what would change.")
def command(files: tuple[str, ...], check: bool, diff: bool) -> None:
    """Format playbooks; comments are kept.

    Files are rewritten in place, atomically. A FILE may be a directory, which is searched for
    playbooks, or - to format standard input to standard output.

    \b
    Examples:
      noetl fmt orders.yaml
      noetl fmt --check --diff playbooks/
      noetl fmt - < orders.yaml
    """
    from noetl.rewrite.fmt import format_text

    def rewrite(source: Source) -> int:
        formatted = format_text(source.text)
        if not check and not diff:
            return put_back(source, formatted)
        if formatted == source.text:
            return OK
        if diff:
            _print_diff(source, formatted)
        else:
            say(f"would rewrite {source.name}")
        return FAILED if check else OK

    rewrite_each(sources(files), rewrite, check=check)


def _print_diff(source: Source, text: str) -> None:
    """Print the change as a unified diff that `patch` understands."""
    # Not splitlines(): it also breaks at characters that patch does not take for a line end.
    old, new = list(StringIO(source.text, newline="\n")), list(StringIO(text, newline="\n"))
    name = printable(source.name)
    for line in difflib.unified_diff(old, new, name, name):
        # The mark that diff and patch use for a missing newline at the end of a file.
        end = "" if line.endswith("\n") else "\n\\ No newline at end of file\n"
        print_text(line + end)
