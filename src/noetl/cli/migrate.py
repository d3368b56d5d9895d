"""`noetl migrate`: from older dialects to the canonical one."""

from __future__ import annotations

import click

from noetl.cli import FAILED, OK
from noetl.cli.files import Source, put_back, rewrite_each, sources
from noetl.cli.output import print_text, printable


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
    from noetl.configured import migrator

    if write and check:
        raise click.UsageError("choose one of --write and --check.")
    texts = list(sources(files))
    if len(texts) > 1 and not (write or check):
        raise click.UsageError(
            f"there are {len(texts)} files, and standard output takes one."
            " Choose --write to rewrite them in place, or --check."
        )
    migrate_text = migrator()

    def rewrite(source: Source) -> int:
        migration = migrate_text(source.text)
        for word, remarks in (("changed", migration.changes), ("stays", migration.remarks)):
            for remark in remarks:
                where = printable(f"{source.name}:{remark.line}")
                click.echo(f"{where}: {word}: {printable(remark.message)}", err=True)
        if check:
            return FAILED if migration.text != source.text else OK
        if write:
            return put_back(source, migration.text)
        print_text(migration.text)
        return OK

    rewrite_each(texts, rewrite, check=check)
