"""`noetl fmt`: canonical formatting."""

from __future__ import annotations

from collections.abc import Callable

import click

from noetl.cli.exits import FAILED, OK, WRONG
from noetl.cli.files import Source, sources
from noetl.cli.output import say
from noetl.cli.rewrites import each, print_diff, put_back, report_rejected
from noetl.errors import PlaybookRejected


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
    from noetl.wiring import formatter

    format_text = formatter()
    each(sources(files), lambda one: _format(one, format_text, check=check, diff=diff), check=check)


def _format(source: Source, format_text: Callable[[str], str], *, check: bool, diff: bool) -> int:
    try:
        formatted = format_text(source.text)
    except PlaybookRejected as error:
        report_rejected(source, error)
        return WRONG
    if not check and not diff:
        return put_back(source, formatted)
    if formatted == source.text:
        return OK
    if diff:
        print_diff(source, formatted)
    else:
        say(f"would rewrite {source.name}")
    return FAILED if check else OK
