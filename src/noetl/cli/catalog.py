"""`noetl catalog`: the playbooks that are registered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.options import db_option, json_option, server_option, settings_for
from noetl.cli.printing import one_line, print_json, print_line, print_text, say

if TYPE_CHECKING:
    from noetl.settings import Settings


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
@server_option
def list_command(prefix: str, as_json: bool, db: str | None, server: str | None) -> None:
    """The newest version of every playbook."""
    found = asyncio.run(_entries(settings_for(db, server), prefix))
    if as_json:
        print_json({"entries": found})
        return
    width = max((len(entry["path"]) for entry in found), default=0)
    for entry in found:
        about = f"version {entry['version']}  {one_line(entry['description'])}"
        line = f"{entry['path']:<{width}}  {about}"
        print_line(line.rstrip())
    if not found:
        say("nothing is registered; `noetl register FILE` does that")


@command.command("show")
@click.argument("path")
@click.option("--version", type=click.IntRange(1), help="By default the newest.")
@json_option
@db_option
@server_option
def show_command(
    path: str, version: int | None, as_json: bool, db: str | None, server: str | None
) -> None:
    """The text of a playbook, as it was registered."""
    entry = asyncio.run(_entry(settings_for(db, server), path, version))
    text = entry["content"]
    if as_json:
        print_json(entry)
    else:
        print_text(text if text.endswith("\n") else f"{text}\n")


async def _entries(settings: Settings, prefix: str) -> list[dict[str, Any]]:
    from noetl import wiring
    from noetl.cli.remote import connected
    from noetl.control.documents import catalog_entry, plain

    if settings.server_url is not None:
        async with connected(settings) as client:
            answer = await client.post("/api/catalog/list", {"path_prefix": prefix})
        found: list[dict[str, Any]] = answer["entries"]
        return found
    async with wiring.looking(settings) as store:
        return [plain(catalog_entry(entry)) for entry in await store.catalog(prefix=prefix)]


async def _entry(settings: Settings, path: str, version: int | None) -> dict[str, Any]:
    from noetl import wiring
    from noetl.cli.remote import connected
    from noetl.control.catalog import resource_of
    from noetl.control.documents import plain
    from noetl.errors import NotFound
    from noetl.model.spelling import did_you_mean

    if settings.server_url is not None:
        async with connected(settings) as client:
            entry = await client.post("/api/catalog/resource", {"path": path, "version": version})
        return {name: value for name, value in entry.items() if name != "layout"}
    async with wiring.looking(settings) as store:
        found = await store.catalog_entry(path, version)
        if found is not None:
            shown = plain(await resource_of(store, found))
            return {name: value for name, value in shown.items() if name != "layout"}
        known = [entry.path for entry in await store.catalog()]
    which = f" in version {version}" if version is not None else ""
    raise NotFound(f'no playbook "{path}"{which} is registered.{did_you_mean(path, known)}')
