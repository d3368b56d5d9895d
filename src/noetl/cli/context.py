"""`noetl context`: names for servers, so that commands need no --server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from noetl.cli.options import json_option
from noetl.cli.printing import print_json, print_line, printable, say

if TYPE_CHECKING:
    from noetl.cli.contexts import Contexts


@click.group(short_help="Name servers, and choose the one that commands talk to.")
def command() -> None:
    """Name servers, and choose the one that commands talk to.

    While a server is in use, `run`, `executions`, `register` and the others act there. --db,
    --server and the environment go before.

    \b
    Examples:
      noetl context add prod https://noetl.example.com
      noetl context use prod
      noetl context use --none         # back to the database in this directory
      noetl context remove prod
    """


@command.command("add")
@click.argument("name")
@click.argument("url")
@click.option(
    "--token", is_flag=True, help="Ask for a token, or read it from standard input, and keep it."
)
def add_command(name: str, url: str, token: bool) -> None:
    """Keep a server under a name."""
    from noetl.cli.contexts import Server, contexts, keep
    from noetl.settings import HTTP

    try:
        parsed = HTTP.parse(url)
    except ValueError:
        raise click.BadParameter(f"URL is {HTTP.expected}.") from None
    known = contexts()
    servers = {**known.servers, name: Server(url=parsed, token=_asked() if token else None)}
    keep(msgspec.structs.replace(known, servers=servers))
    say(f'"{name}" is {url}; `noetl context use {name}` uses it')


def _asked() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("token", hide_input=True, err=True))
    line = sys.stdin.readline().strip()
    if not line:
        raise click.BadParameter("there is no token on standard input.")
    return line


@command.command("use")
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use no server: the database in this directory.")
def use_command(name: str | None, none: bool) -> None:
    """Talk to this server from now on."""
    from noetl.cli.contexts import contexts, keep

    known = contexts()
    if (name is None) != none:
        raise click.UsageError("say which server, or --none.")
    if name is not None:
        _must_be_known(name, known)
    keep(msgspec.structs.replace(known, current=name))
    say(f'commands talk to "{name}"' if name else "commands use the database in this directory")


@command.command("remove")
@click.argument("name")
def remove_command(name: str) -> None:
    """Forget a server, and its token."""
    from noetl.cli.contexts import contexts, keep

    known = contexts()
    _must_be_known(name, known)
    servers = {other: one for other, one in known.servers.items() if other != name}
    current = None if known.current == name else known.current
    keep(msgspec.structs.replace(known, servers=servers, current=current))
    unused = "; commands use the database in this directory" if known.current == name else ""
    say(f'"{name}" is forgotten{unused}')


def _must_be_known(name: str, known: Contexts) -> None:
    from noetl.model.spelling import did_you_mean

    if name not in known.servers:
        hint = did_you_mean(name, known.servers)
        raise click.BadParameter(
            f'no server is called "{name}".{hint} `noetl context list` shows those there are.'
        )


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """The servers that have a name; tokens are never shown."""
    from noetl.cli.contexts import contexts

    known = contexts()
    rows = [
        {
            "name": name,
            "url": one.url,
            "token": one.token is not None,
            "current": name == known.current,
        }
        for name, one in sorted(known.servers.items())
    ]
    if as_json:
        print_json({"contexts": rows})
        return
    for row in rows:
        mark = "*" if row["current"] else " "
        print_line(printable(f"{mark} {row['name']}  {row['url']}"))
    if not rows:
        say("no server has a name; `noetl context add NAME URL` gives one")


@command.command("current")
@json_option
def current_command(as_json: bool) -> None:
    """The server that commands talk to. Exits with 1 if there is none."""
    from noetl.cli.options import settings_for

    url = settings_for(None).server_url
    if as_json:
        print_json({"server": url})
    elif url is not None:
        print_line(url)
    else:
        say("no server: commands use the database in this directory")
    sys.exit(0 if url is not None else 1)
