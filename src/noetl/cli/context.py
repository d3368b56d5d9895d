"""`noetl context`: names for servers, so that commands need no --server."""

from __future__ import annotations

import sys

import click
import msgspec

from noetl.cli.options import (
    Contexts,
    NamedServer,
    ask_secret,
    contexts,
    json_option,
    settings_for,
)
from noetl.cli.output import print_json, print_line, print_list, say
from noetl.model.spelling import did_you_mean


@click.group()
def command() -> None:
    """Name servers, and choose the one that commands talk to.

    While a server is in use, `run`, `executions`, `register` and the other commands act on it. The
    options --db and --server and environment variables take precedence.

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
    "--token",
    is_flag=True,
    help="Ask for an API token, or read it from standard input, and store it.",
)
def add_command(name: str, url: str, token: bool) -> None:
    """Save a server under a name.

    \b
    Example:
      noetl context add prod https://noetl.example.com --token
    """
    from noetl.settings import HTTP

    try:
        parsed = HTTP.parse(url)
    except ValueError:
        raise click.BadParameter(f"URL is {HTTP.expected}.") from None
    known = contexts()
    asked = None
    if token:
        missing = "there is no token on standard input."
        asked = ask_secret("token", missing).strip()
        if not asked:
            raise click.BadParameter(missing)
    servers = {**known.servers, name: NamedServer(url=parsed, token=asked)}
    msgspec.structs.replace(known, servers=servers).save()
    say(f'"{name}" is {url}; `noetl context use {name}` uses it')


@command.command("use")
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use no server: the database in this directory.")
def use_command(name: str | None, none: bool) -> None:
    """Use a server from now on.

    \b
    Examples:
      noetl context use prod
      noetl context use --none
    """
    known = contexts()
    if (name is None) != none:
        raise click.UsageError("name a server, or give --none.")
    if name is not None:
        _must_be_known(name, known)
    msgspec.structs.replace(known, current=name).save()
    say(f'commands talk to "{name}"' if name else "commands use the database in this directory")


@command.command("remove")
@click.argument("name")
def remove_command(name: str) -> None:
    """Remove a server and its token.

    \b
    Example:
      noetl context remove prod
    """
    known = contexts()
    _must_be_known(name, known)
    servers = {other: one for other, one in known.servers.items() if other != name}
    current = None if known.current == name else known.current
    msgspec.structs.replace(known, servers=servers, current=current).save()
    unused = "; commands use the database in this directory" if known.current == name else ""
    say(f'"{name}" is forgotten{unused}')


def _must_be_known(name: str, known: Contexts) -> None:
    if name not in known.servers:
        hint = did_you_mean(name, known.servers)
        raise click.BadParameter(
            f'no server is called "{name}".{hint} `noetl context list` lists all.'
        )


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List named servers, without tokens.

    \b
    Example:
      noetl context list
    """
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
    print_list(
        "contexts",
        rows,
        lambda one: (f"{'*' if one['current'] else ' '} {one['name']}", str(one["url"])),
        "no server has a name; `noetl context add NAME URL` adds one",
        as_json=as_json,
    )


@command.command("current")
@json_option
def current_command(as_json: bool) -> None:
    """Print the server in use. Exits with 1 if there is none.

    \b
    Example:
      noetl context current
    """
    url = settings_for(None).server_url
    if as_json:
        print_json({"server": url})
    elif url is not None:
        print_line(url)
    else:
        say("no server: commands use the database in this directory")
    sys.exit(0 if url is not None else 1)
