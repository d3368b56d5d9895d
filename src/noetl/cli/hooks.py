"""`noetl hooks`: what others may call, and what that does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl.cli.options import db_option, json_option, server_option, settings_for
from noetl.cli.printing import one_line, print_json, print_line, say

if TYPE_CHECKING:
    from noetl.model.hook_answers import HookItem
    from noetl.settings import Settings

PAGE = 500


@click.group(short_help="Look at what others may call, and end it.")
def command() -> None:
    """Look at what others may call, and end it.

    A hook is a document of `kind: Hook`; `noetl register FILE` puts it to work. Whoever it is for
    calls `POST /hooks/PATH` of a server.

    \b
    Examples:
      noetl hooks list
      noetl hooks show shop/push
    """


def _call(settings: Settings, name: str, *, query: Any = None, path: str | None = None) -> Any:
    from noetl.api.routes import hooks
    from noetl.cli.acting import calling

    async def call() -> Any:
        async with calling(settings) as client:
            route = getattr(hooks, name)
            if path is None:
                return await client.call(route, query=query)
            return await client.call(route, query=query, path=path)

    return asyncio.run(call())


@command.command("list")
@click.option("--prefix", default="", help="Only paths that begin so.")
@json_option
@db_option
@server_option
def list_command(prefix: str, as_json: bool, db: str | None, server: str | None) -> None:
    """Every hook, with what it does."""
    from noetl.api.routes.hooks import WhichHooks

    settings = settings_for(db, server)
    found: list[HookItem] = []
    after: str | None = ""
    while after is not None:
        query = WhichHooks(prefix=prefix, after=after, limit=PAGE)
        page = _call(settings, "LIST", query=query)
        found += page.hooks
        after = page.next_after
    if as_json:
        print_json({"hooks": msgspec.to_builtins(found)})
        return
    width = max((len(one.path) for one in found), default=0)
    for one in found:
        print_line(f"{one.path:<{width}}  POST {one.url}  {one.verify}  → {_does(one)}")
    if not found:
        say("no hook is registered; `noetl register FILE` does that")


def _does(one: HookItem) -> str:
    return one.playbook if one.playbook is not None else f"signal {one.signal}"


@command.command("show")
@click.argument("path")
@json_option
@db_option
@server_option
def show_command(path: str, as_json: bool, db: str | None, server: str | None) -> None:
    """One hook, and whether it can take anything."""
    one: HookItem = _call(settings_for(db, server), "GET", path=path)
    if as_json:
        print_json(msgspec.to_builtins(one))
        return
    print_line(f"{one.path} version {one.version}")
    if one.description:
        print_line(one_line(one.description))
    print_line(f"url      POST {one.url}")
    print_line(f"does     {_does(one)}")
    print_line(f"verify   {one.verify} {' '.join(one.credentials)}".rstrip())
    for name in one.missing_credentials:
        say(f'the credential "{name}" is not there; `noetl credential set {name}` makes it')


@command.command("delete")
@click.argument("path")
@db_option
@server_option
def delete_command(path: str, db: str | None, server: str | None) -> None:
    """Take nothing any more."""
    _call(settings_for(db, server), "DELETE", path=path)
    say(f"{path} is deleted; `noetl register` brings it back")
