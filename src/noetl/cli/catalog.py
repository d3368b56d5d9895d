"""`noetl catalog`: the playbooks that are registered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.options import db_option, json_option, settings_for
from noetl.cli.printing import one_line, print_json, print_line, print_text, say

if TYPE_CHECKING:
    from noetl.settings import Settings
    from noetl.store.base import CatalogEntry


@click.group(short_help="Look at the playbooks that are registered.")
def command() -> None:
    """Look at the playbooks that are registered.

    \b
    Examples:
      noetl catalog list
      noetl catalog show shop/orders --version 2 > orders.yaml
    """


@command.command("list")
@click.option("--prefix", default="", help="Only paths that begin so.")
@json_option
@db_option
def list_command(prefix: str, as_json: bool, db: str | None) -> None:
    """The newest version of every playbook."""
    settings = settings_for(db)

    async def read() -> list[CatalogEntry]:
        from noetl import wiring

        async with wiring.looking(settings) as store:
            return await store.catalog(prefix=prefix)

    found = asyncio.run(read())
    if as_json:
        print_json({"entries": [_about(entry) for entry in found]})
        return
    width = max((len(entry.path) for entry in found), default=0)
    for entry in found:
        line = f"{entry.path:<{width}}  version {entry.version}  {one_line(entry.description)}"
        print_line(line.rstrip())
    if not found:
        say("nothing is registered; `noetl register FILE` does that")


@command.command("show")
@click.argument("path")
@click.option("--version", type=click.IntRange(1), help="By default the newest.")
@json_option
@db_option
def show_command(path: str, version: int | None, as_json: bool, db: str | None) -> None:
    """The text of a playbook, as it was registered."""
    entry = asyncio.run(_entry(settings_for(db), path, version))
    if as_json:
        print_json({**_about(entry), "content": entry.content})
    else:
        print_text(entry.content if entry.content.endswith("\n") else f"{entry.content}\n")


async def _entry(settings: Settings, path: str, version: int | None) -> CatalogEntry:
    from noetl import wiring
    from noetl.errors import NotFound
    from noetl.model.spelling import did_you_mean

    async with wiring.looking(settings) as store:
        found = await store.catalog_entry(path, version)
        if found is not None:
            return found
        known = [entry.path for entry in await store.catalog()]
    which = f" in version {version}" if version is not None else ""
    raise NotFound(f'no playbook "{path}"{which} is registered.{did_you_mean(path, known)}')


def _about(entry: CatalogEntry) -> dict[str, Any]:
    from noetl.control.documents import moment

    return {
        "path": entry.path,
        "version": entry.version,
        "kind": entry.kind,
        "catalog_id": entry.catalog_id,
        "created_at": moment(entry.created_at),
        "description": entry.description,
    }
