"""`noetl migrate`: from older dialects to the canonical one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from noetl.cli.exits import FAILED, OK, WRONG
from noetl.cli.files import Source, sources
from noetl.cli.output import print_text, printable
from noetl.cli.rewrites import each, put_back, report_rejected
from noetl.errors import PlaybookRejected

if TYPE_CHECKING:
    from noetl.model.rewrites import Migration


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--write", is_flag=True, help="Rewrite the files in place.")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file would change.")
def command(files: tuple[str, ...], write: bool, check: bool) -> None:
    """Rewrite older dialects of playbooks to the current one.

    Without an option the rewritten text of one FILE goes to standard output. Changes, and forms
    without an exact equivalent, which stay as they are, are reported on standard error. A FILE may
    be a directory, which is searched for playbooks, or - for standard input.

    \b
    Examples:
      noetl migrate old.yaml > new.yaml
      noetl migrate --check playbooks/
      noetl migrate --write playbooks/
    """
    from noetl.wiring import migrator

    if write and check:
        raise click.UsageError("choose one of --write and --check.")
    texts = list(sources(files))
    if len(texts) > 1 and not (write or check):
        raise click.UsageError(
            f"there are {len(texts)} files, and standard output takes one."
            " Choose --write to rewrite them in place, or --check."
        )
    migrate_text = migrator()
    each(texts, lambda one: _migrate(one, migrate_text, write=write, check=check), check=check)


def _migrate(
    source: Source, migrate_text: Callable[[str], Migration], *, write: bool, check: bool
) -> int:
    try:
        migration = migrate_text(source.text)
    except PlaybookRejected as error:
        report_rejected(source, error)
        return WRONG
    _report(source, migration)
    if check:
        return FAILED if migration.text != source.text else OK
    if write:
        return put_back(source, migration.text)
    print_text(migration.text)
    return OK


def _report(source: Source, migration: Migration) -> None:
    for word, remarks in (("changed", migration.changes), ("stays", migration.remarks)):
        for remark in remarks:
            where = printable(f"{source.name}:{remark.line}")
            click.echo(f"{where}: {word}: {printable(remark.message)}", err=True)
