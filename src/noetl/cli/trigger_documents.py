"""What the commands of all documents that start executions share: list, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.calls import acts, looks
from noetl.cli.options import json_option
from noetl.cli.output import one_line, print_line, print_list, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api

PAGE = 500
path_argument = click.argument("path")


def _route(plural: str, name: str) -> Any:
    return getattr(import_module(f"noetl.api.routes.{plural}"), name)


def state(one: Any, running: str) -> str:
    """That it is paused, and why; of one that is not, what is `running`."""
    if one.status == "paused":
        return f"paused: {one.reason}" if one.reason else "paused"
    return running


def does(one: Any) -> str:
    """What one does that starts a playbook or sends a signal."""
    return one.playbook if one.playbook is not None else f"signal {one.signal}"


def print_head(one: Any, state: str = "") -> None:
    """What is told first of each of them."""
    print_line(f"{one.path} version {one.version}{f', {state}' if state else ''}")
    if one.description:
        print_line(one_line(one.description))


def add_list(
    group: click.Group, plural: str, says: str, cells: Callable[[Any], tuple[str, ...]]
) -> None:
    """`list`: all of them, a line each behind the path."""

    @group.command("list", help=says)
    @click.option("--prefix", default="", help="Only paths that begin so.")
    @json_option
    @looks
    async def list_command(api: Api, prefix: str, as_json: bool) -> None:
        from noetl.api.routes.trigger_documents import WhichDocuments

        found: list[Any] = []
        after: str | None = ""
        while after is not None:
            query = WhichDocuments(prefix=prefix, after=after, limit=PAGE)
            page = await api.call(_route(plural, "LIST"), query=query)
            found += getattr(page, plural)
            after = page.next_after
        print_list(
            plural,
            found,
            lambda one: (one.path, *cells(one)),
            f"no {plural.removesuffix('s')} is registered; `noetl register FILE` does that",
            as_json=as_json,
        )


def add_pause(
    group: click.Group, plural: str, says: str, told: Callable[[Any], str] = lambda one: ""
) -> None:
    """`pause` and `resume`; `told` adds to what is said of one that goes on."""

    @group.command("pause", help=says)
    @path_argument
    @click.option("--reason", default="", help="Why; `list` and `show` say it.")
    @acts
    async def pause_command(api: Api, path: str, reason: str) -> None:
        from noetl.api.routes.trigger_documents import PauseDocument

        await api.call(_route(plural, "PAUSE"), body=PauseDocument(path=path, reason=reason))
        say(f"{path} is paused; `noetl {plural} resume {path}` lets it go on")

    @group.command("resume", help="Resume it, from now on.")
    @path_argument
    @acts
    async def resume_command(api: Api, path: str) -> None:
        from noetl.api.routes.trigger_documents import NamedDocument

        found = await api.call(_route(plural, "RESUME"), body=NamedDocument(path=path))
        say(f"{path} goes on{told(found)}")


def add_delete(group: click.Group, plural: str, says: str) -> None:
    """`delete`."""

    @group.command("delete", help=says)
    @path_argument
    @acts
    async def delete_command(api: Api, path: str) -> None:
        await api.call(_route(plural, "DELETE"), path=path)
        say(f"{path} is deleted; `noetl register` brings it back")
