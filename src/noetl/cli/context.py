"""`noetl context`: names for servers, so that commands need no --server.

They are stored, with addresses and tokens, in a file that only the user can read.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from noetl.cli.options import json_option
from noetl.cli.output import print_json, print_line, printable, say
from noetl.errors import BadSetting


class Server(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of a server, and the token for it."""

    url: str
    token: str | None = None


class Contexts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All named servers, and the one in use."""

    current: str | None = None
    servers: dict[str, Server] = {}

    @property
    def chosen(self) -> Server | None:
        return self.servers.get(self.current) if self.current is not None else None


def place() -> Path:
    """The path of the file, in the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".config") / "noetl" / "contexts.json"


def contexts() -> Contexts:
    """The content of the file; empty if there is none."""
    try:
        return msgspec.json.decode(place().read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return Contexts()  # none were added, or there is no home directory
    except (OSError, msgspec.MsgspecError) as error:
        raise BadSetting(f"{place()} cannot be read: {error}. Correct or remove it.") from None


def keep(found: Contexts) -> None:
    """Write the file atomically."""
    path = place()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with open(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(found), indent=2))
    os.replace(temporary, path)


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
    keep(msgspec.structs.replace(known, current=name))
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
    keep(msgspec.structs.replace(known, servers=servers, current=current))
    unused = "; commands use the database in this directory" if known.current == name else ""
    say(f'"{name}" is forgotten{unused}')


def _must_be_known(name: str, known: Contexts) -> None:
    from noetl.model.spelling import did_you_mean

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
    if as_json:
        print_json({"contexts": rows})
        return
    for row in rows:
        mark = "*" if row["current"] else " "
        print_line(printable(f"{mark} {row['name']}  {row['url']}"))
    if not rows:
        say("no server has a name; `noetl context add NAME URL` adds one")


@command.command("current")
@json_option
def current_command(as_json: bool) -> None:
    """Print the server in use. Exits with 1 if there is none.

    \b
    Example:
      noetl context current
    """
    from noetl.cli.options import settings_for

    url = settings_for(None).server_url
    if as_json:
        print_json({"server": url})
    elif url is not None:
        print_line(url)
    else:
        say("no server: commands use the database in this directory")
    sys.exit(0 if url is not None else 1)
