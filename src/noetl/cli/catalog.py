"""`noetl catalog`: the registered playbooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.api.routes.catalog import LIST, RESOURCE, ListCatalog, Wanted
from noetl.cli.calls import looks
from noetl.cli.options import json_option
from noetl.cli.output import one_line, print_json, print_list, print_text
from noetl.control.documents import plain

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.answers import CatalogItem


@click.group()
def command() -> None:
    """List registered playbooks, and print their text.

    \b
    Examples:
      noetl catalog list
      noetl catalog show shop/orders --version 2 > orders.yaml
    """


@command.command("list")
@click.option("--prefix", default="", help="Only paths that begin with this.")
@json_option
@looks
async def list_command(api: Api, prefix: str, as_json: bool) -> None:
    """List the newest version of every playbook and trigger.

    \b
    Example:
      noetl catalog list --prefix shop/
    """
    found = (await api.call(LIST, body=ListCatalog(path_prefix=prefix))).entries
    print_list(
        "entries",
        found,
        lambda entry: (entry.path, _version(entry), one_line(entry.description)),
        "no playbook is registered; `noetl register FILE` registers one",
        as_json=as_json,
    )


def _version(entry: CatalogItem) -> str:
    kind = "" if entry.kind == "Playbook" else f"{entry.kind.lower()} "
    return f"{kind}version {entry.version}"


@command.command("show")
@click.argument("path")
@click.option("--version", type=click.IntRange(1), help="Default: the newest.")
@json_option
@looks
async def show_command(api: Api, path: str, version: int | None, as_json: bool) -> None:
    """Print the text of a playbook, as it was registered.

    \b
    Example:
      noetl catalog show shop/orders --version 2 > orders.yaml
    """
    entry = await api.call(RESOURCE, body=Wanted(path=path, version=version))
    if as_json:
        print_json({name: value for name, value in plain(entry).items() if name != "layout"})
    else:
        print_text(entry.content if entry.content.endswith("\n") else f"{entry.content}\n")
