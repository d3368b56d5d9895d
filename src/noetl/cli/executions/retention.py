"""Commands that keep executions for longer, archive them, or remove them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from noetl.api.routes.retention import (
    ARCHIVE,
    ARCHIVED,
    DELETE,
    HOLD,
    PRUNE,
    RELEASE,
    SHOW,
    HoldIt,
    Prune,
    WhichArchived,
)
from noetl.cli.calls import PAGE, acts, looks
from noetl.cli.options import answered, execution_argument, json_option
from noetl.cli.output import counted, local_time, print_json, print_line, print_list, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api

group = click.Group()


@group.command("delete")
@execution_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@acts
async def delete_command(api: Api, execution_id: str, yes: bool) -> None:
    """Remove an execution for good.

    It must have ended. Everything it called, and their logs, results and variables, are removed
    with it; the audit log records who did that.

    \b
    Example:
      noetl executions delete 4711
    """
    if not yes:
        _confirm(f"Remove execution {execution_id} for good?")
    gone = await api.call(DELETE, execution_id=execution_id)
    say(f"{counted(gone.executions, 'execution')} removed")


def _confirm(question: str) -> None:
    """Go on only after a yes."""
    try:
        is_sure = answered(click.confirm, question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("nobody answers here; --yes goes on without asking.") from None
    if not is_sure:
        raise click.Abort


@group.command("prune")
@click.option("--keep", metavar="RULES", help="Instead of NOETL_KEEP: 90d,shop/=30d,failed=180d")
@click.option("--dry-run", is_flag=True, help="Remove nothing; print what would be removed.")
@json_option
@acts
async def prune_command(api: Api, keep: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove executions that ended long enough ago.

    Each is removed with everything it called. Servers do this regularly if NOETL_KEEP says how long
    executions are kept. An execution that has not ended, is held, or has results that a rerun
    reuses, is kept.

    \b
    Examples:
      noetl executions prune --keep 30d --dry-run
      noetl executions prune --keep 90d,shop/=7d,failed=180d
    """
    if keep is None and not (await api.call(SHOW)).keep:
        raise click.UsageError(
            "no rule says how long executions are kept. Give one with --keep 90d, or set"
            " NOETL_KEEP where the server runs."
        )
    pruned = await api.call(PRUNE, body=Prune(keep=keep, dry_run=dry_run))
    if as_json:
        print_json(pruned)
        return
    would = "would be removed" if dry_run else "removed"
    events = f", with {counted(pruned.events, 'event')}" if pruned.executions else ""
    print_line(f"{counted(pruned.executions, 'execution')} {would}{events}")
    for path, count in pruned.by_path.items():
        print_line(f"  {count:>7,}  {path}")
    for reason, count in pruned.kept.items():
        print_line(f"{counted(count, 'execution')} kept beyond that: {reason}")


@group.command("hold")
@execution_argument
@click.option("--note", default="", help="Why; shown by `noetl executions holds`.")
@acts
async def hold_command(api: Api, execution_id: str, note: str) -> None:
    """Hold an execution: it is kept until it is released.

    \b
    Example:
      noetl executions hold 4711 --note "evidence for the audit"
    """
    await api.call(HOLD, execution_id=execution_id, body=HoldIt(note=note))
    say(f"execution {execution_id} is kept until it is released")


@group.command("release")
@execution_argument
@acts
async def release_command(api: Api, execution_id: str) -> None:
    """Release an execution that is held.

    \b
    Example:
      noetl executions release 4711
    """
    await api.call(RELEASE, execution_id=execution_id)
    say(f"execution {execution_id} is no longer held")


@group.command("holds")
@json_option
@looks
async def holds_command(api: Api, as_json: bool) -> None:
    """List executions on hold, by whom and why.

    \b
    Example:
      noetl executions holds
    """
    print_list(
        "holds",
        (await api.call(SHOW)).holds,
        lambda one: (one.execution_id, local_time(one.at), one.who, one.note),
        "nothing is held",
        as_json=as_json,
    )


@group.command("archive")
@execution_argument
@acts
async def archive_command(api: Api, execution_id: str) -> None:
    """Write an execution to the archive.

    It must have ended. Everything it called is archived with it, to the place that
    NOETL_ARCHIVE_URL names. The execution is not removed; `noetl ui` opens a recording.

    \b
    Example:
      noetl executions archive 4711
    """
    for name in (await api.call(ARCHIVE, execution_id=execution_id)).names:
        print_line(name)


@group.command("archived")
@click.argument("prefix", default="")
@json_option
@looks
async def archived_command(api: Api, prefix: str, as_json: bool) -> None:
    """List the recordings in the archive.

    PREFIX selects those whose names begin with it.

    \b
    Example:
      noetl executions archived shop/orders/2026-11
    """
    found = []
    async for page in api.pages(ARCHIVED, WhichArchived(prefix=prefix, limit=PAGE)):
        found += page.recordings
    print_list(
        "recordings",
        found,
        lambda one: (local_time(one.archived_at), f"{one.size:>12,}", one.name),
        "the archive has no such recordings",
        as_json=as_json,
    )
