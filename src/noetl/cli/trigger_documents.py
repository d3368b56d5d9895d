"""The commands that all kinds of triggers share: list, show, pause, resume, delete.

Its plural names a kind, as in `noetl schedules` and in the API.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from noetl.api.routes.trigger_documents import NamedDocument, PauseDocument, WhichDocuments
from noetl.cli.calls import acts, looks
from noetl.cli.options import json_option
from noetl.cli.output import one_line, print_json, print_line, print_list, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api

PAGE = 500
path_argument = click.argument("path")


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


class Documents:
    """The commands of one kind, in its group."""

    def __init__(self, group: click.Group, plural: str) -> None:
        self._group = group
        self._plural = plural

    def _route(self, name: str) -> Any:
        return getattr(import_module(f"noetl.api.routes.{self._plural}"), name)

    def _help(self, says: str, example: str) -> str:
        return f"{says}\n\n\b\nExample:\n  noetl {self._plural} {example}"

    def add_list(self, says: str, cells: Callable[[Any], tuple[str, ...]]) -> None:
        """`list`: a line each, the path first."""

        @self._group.command("list", help=self._help(says, "list --prefix shop/"))
        @click.option("--prefix", default="", help="Only paths that begin with this.")
        @json_option
        @looks
        async def list_command(api: Api, prefix: str, as_json: bool) -> None:
            found: list[Any] = []
            kind = self._plural.removesuffix("s")
            query = WhichDocuments(prefix=prefix, limit=PAGE)
            async for page in api.pages(self._route("LIST"), query):
                found += getattr(page, self._plural)
            print_list(
                self._plural,
                found,
                lambda one: (one.path, *cells(one)),
                f"no {kind} is registered; `noetl register FILE` registers one",
                as_json=as_json,
            )

    def add_show(self, says: str, prints: Callable[[Any], None], recent: str = "") -> None:
        """`show`, by `prints`; the option --RECENT sets the length of its list of that name."""

        async def show_command(api: Api, path: str, as_json: bool, **lengths: int) -> None:
            route = self._route("GET")
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
        described = self._help(says, "show shop/orders")
        self._group.command("show", help=described)(path_argument(command))

    def add_pause(self, says: str, told: Callable[[Any], str] = lambda one: "") -> None:
        """`pause` and `resume`; `told` adds to the message that one continues."""

        @self._group.command(
            "pause", help=self._help(says, 'pause shop/orders --reason "stocktaking"')
        )
        @path_argument
        @click.option("--reason", default="", help="Why; shown by `list` and `show`.")
        @acts
        async def pause_command(api: Api, path: str, reason: str) -> None:
            await api.call(self._route("PAUSE"), body=PauseDocument(path=path, reason=reason))
            say(f"{path} is paused; `noetl {self._plural} resume {path}` continues it")

        @self._group.command("resume", help=self._help("Resume it.", "resume shop/orders"))
        @path_argument
        @acts
        async def resume_command(api: Api, path: str) -> None:
            found = await api.call(self._route("RESUME"), body=NamedDocument(path=path))
            say(f"{path} continues{told(found)}")

    def add_delete(self, says: str) -> None:
        """`delete`."""

        @self._group.command("delete", help=self._help(says, "delete shop/orders"))
        @path_argument
        @acts
        async def delete_command(api: Api, path: str) -> None:
            await api.call(self._route("DELETE"), path=path)
            say(f"{path} is deleted; `noetl register` registers it again")
