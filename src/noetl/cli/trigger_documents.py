"""The commands that all kinds of triggers share: list, show, pause, resume, delete.

`plural` names the kind, as in `noetl schedules` and in the API.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.calls import acts, looks
from noetl.cli.options import json_option
from noetl.cli.output import one_line, print_json, print_line, print_list, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api

PAGE = 500
path_argument = click.argument("path")


def _route(plural: str, name: str) -> Any:
    return getattr(import_module(f"noetl.api.routes.{plural}"), name)


def _help(says: str, example: str) -> str:
    return f"{says}\n\n\b\nExample:\n  noetl {example}"


def state(one: Any, running: str) -> str:
    """`running`, unless it is paused; then that, and why."""
    if one.status == "paused":
        return f"paused: {one.reason}" if one.reason else "paused"
    return running


def does(one: Any) -> str:
    """What it does: start a playbook, or send a signal."""
    return one.playbook if one.playbook is not None else f"signal {one.signal}"


def print_head(one: Any, state: str = "") -> None:
    """Print path, version, state and description."""
    print_line(f"{one.path} version {one.version}{f', {state}' if state else ''}")
    if one.description:
        print_line(one_line(one.description))


def add_list(
    group: click.Group, plural: str, says: str, cells: Callable[[Any], tuple[str, ...]]
) -> None:
    """`list`: a line each, the path first."""

    @group.command("list", help=_help(says, f"{plural} list --prefix shop/"))
    @click.option("--prefix", default="", help="Only paths that begin with this.")
    @json_option
    @looks
    async def list_command(api: Api, prefix: str, as_json: bool) -> None:
        from noetl.api.routes.trigger_documents import WhichDocuments

        found: list[Any] = []
        query = WhichDocuments(prefix=prefix, limit=PAGE)
        async for page in api.pages(_route(plural, "LIST"), query):
            found += getattr(page, plural)
        print_list(
            plural,
            found,
            lambda one: (one.path, *cells(one)),
            f"no {plural.removesuffix('s')} is registered; `noetl register FILE` registers one",
            as_json=as_json,
        )


def add_show(
    group: click.Group, plural: str, says: str, prints: Callable[[Any], None], recent: str = ""
) -> None:
    """`show`, by `prints`; the option --RECENT sets the length of its list of that name."""

    async def show_command(api: Api, path: str, as_json: bool, **lengths: int) -> None:
        route = _route(plural, "GET")
        query = route.query(**lengths) if lengths else None
        one = await api.call(route, path=path, query=query)
        if as_json:
            print_json(one)
        else:
            prints(one)

    command = json_option(looks(show_command))
    if recent:
        command = click.option(
            f"--{recent}",
            type=click.IntRange(0),
            default=20,
            show_default=True,
            help=f"How many of the last {recent} to show.",
        )(command)
    described = _help(says, f"{plural} show shop/orders")
    group.command("show", help=described)(path_argument(command))


def add_pause(
    group: click.Group, plural: str, says: str, told: Callable[[Any], str] = lambda one: ""
) -> None:
    """`pause` and `resume`; `told` adds to the message that one continues."""

    @group.command("pause", help=_help(says, f'{plural} pause shop/orders --reason "stocktaking"'))
    @path_argument
    @click.option("--reason", default="", help="Why; shown by `list` and `show`.")
    @acts
    async def pause_command(api: Api, path: str, reason: str) -> None:
        from noetl.api.routes.trigger_documents import PauseDocument

        await api.call(_route(plural, "PAUSE"), body=PauseDocument(path=path, reason=reason))
        say(f"{path} is paused; `noetl {plural} resume {path}` continues it")

    @group.command("resume", help=_help("Resume it.", f"{plural} resume shop/orders"))
    @path_argument
    @acts
    async def resume_command(api: Api, path: str) -> None:
        from noetl.api.routes.trigger_documents import NamedDocument

        found = await api.call(_route(plural, "RESUME"), body=NamedDocument(path=path))
        say(f"{path} continues{told(found)}")


def add_delete(group: click.Group, plural: str, says: str) -> None:
    """`delete`."""

    @group.command("delete", help=_help(says, f"{plural} delete shop/orders"))
    @path_argument
    @acts
    async def delete_command(api: Api, path: str) -> None:
        await api.call(_route(plural, "DELETE"), path=path)
        say(f"{path} is deleted; `noetl register` registers it again")
