"""`noetl access`: who may use a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import click

from noetl.cli.options import db_option, json_option, server_option, settings_for
from noetl.cli.printing import print_json, print_line, printable, say

if TYPE_CHECKING:
    from noetl.api.access import Access
    from noetl.api.client import Client
    from noetl.settings import Settings

ROLES = ("viewer", "operator", "author", "admin", "worker")
role_option = click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice(ROLES),
    help="What they may do; may be repeated.",
)


@click.group(short_help="Say who may use a server: users and tokens.")
def command() -> None:
    """Say who may use a server: users and tokens.

    Users sign in with a password; programs, and so these commands, show a token (NOETL_TOKEN).
    While there are none, a server listens on its own machine only, and lets everybody in. The
    first one must be an admin: begin with a token for yourself.

    \b
    Examples:
      noetl access token create me --role admin
      noetl access user add ada --role author
      noetl access token create ci --role author
      noetl access token create workers --role worker --pool default
      noetl access audit
    """


class Gate(Protocol):
    """Where users and tokens are kept: behind a server, or in a database."""

    async def ask(self, method: str, noun: str, body: dict[str, Any] | None = None) -> Any: ...


@asynccontextmanager
async def _gate(settings: Settings) -> AsyncIterator[Gate]:
    if settings.server_url is not None:
        from noetl.cli.remote import connected

        async with connected(settings) as client:
            yield _OnServer(client)
        return
    from noetl import serving

    async with serving.access(settings) as access:
        yield _InDatabase(access)


class _OnServer:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, method: str, noun: str, body: dict[str, Any] | None = None) -> Any:
        path = f"/api/access/{noun}"
        if method == "GET":
            return await self._client.get(path)
        if method == "DELETE":
            return await self._client.delete(path)
        return await self._client.post(path, body)


class _InDatabase:
    """The same, without a server: whoever can write the database needs nobody's leave."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def ask(self, method: str, noun: str, body: dict[str, Any] | None = None) -> Any:
        from noetl.api.rights import Principal
        from noetl.api.routes import access as shown
        from noetl.cli.whoami import user_name
        from noetl.control.documents import plain

        here = Principal(name=user_name(), kind="open")

        given = body or {}
        match method, noun.partition("/"):
            case "POST", ("users", _, _):
                await self._access.put_user(here, **given)
            case "DELETE", ("users", _, name):
                await self._access.delete_user(here, unquote(name))
            case "POST", ("tokens", _, _):
                span = given.pop("expires_in", None)
                return {"token": await self._access.create_token(here, **given, seconds=span)}
            case "DELETE", ("tokens", _, name):
                await self._access.delete_token(here, unquote(name))
            case _:
                return plain(await shown.look(self._access.store, noun))
        return None


def _ask(settings: Settings, method: str, noun: str, body: dict[str, Any] | None = None) -> Any:
    async def go() -> Any:
        async with _gate(settings) as gate:
            return await gate.ask(method, noun, body)

    return asyncio.run(go())


# --- Users -------------------------------------------------------------------------------------


@command.group("user", short_help="People, who sign in with a password.")
def user() -> None:
    """People, who sign in with a password."""


@user.command("add")
@click.argument("name")
@role_option
@click.option("--email", default="", help="For people.")
@db_option
@server_option
def add_user(
    name: str, roles: tuple[str, ...], email: str, db: str | None, server: str | None
) -> None:
    """Create a user, or give them another password and other roles.

    The password is asked for, or read from standard input.
    """
    body = {"name": name, "roles": roles, "email": email, "password": _password()}
    settings = settings_for(db, server)
    _ask(settings, "POST", "users", body)
    say(f'user "{name}" may sign in as {", ".join(roles)}')
    if settings.server_url is not None and settings.token is None:
        say(
            "the server was open and is not any more: commands need a token from now on. Sign in"
            " for one (POST /api/auth/login), or make one on its database while it is stopped:"
            " `noetl access token create NAME --role admin`."
        )


def _password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("password", hide_input=True, confirmation_prompt=True, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise click.BadParameter("there is no password on standard input.")
    return line


@user.command("list")
@json_option
@db_option
@server_option
def list_users(as_json: bool, db: str | None, server: str | None) -> None:
    """Everybody who can sign in."""
    _print(_ask(settings_for(db, server), "GET", "users"), "users", as_json=as_json)


@user.command("remove")
@click.argument("name")
@db_option
@server_option
def remove_user(name: str, db: str | None, server: str | None) -> None:
    """Remove a user; all sessions end."""
    _ask(settings_for(db, server), "DELETE", f"users/{quote(name, safe='')}")
    say(f'user "{name}" is removed')


# --- Tokens ------------------------------------------------------------------------------------


@command.group("token", short_help="Programs, which show a token.")
def token() -> None:
    """Programs, which show a token."""


@token.command("create")
@click.argument("name")
@role_option
@click.option("--expires", metavar="TIME", help="After this time it is worth nothing, e.g. 90d.")
@click.option(
    "--pool", "pools", multiple=True, help="A worker with it works for this pool; may be repeated."
)
@json_option
@db_option
@server_option
def create_token(
    name: str,
    roles: tuple[str, ...],
    expires: str | None,
    pools: tuple[str, ...],
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """Create a token. It goes to stdout, now and never again."""
    from noetl.model.duration import seconds

    span = seconds(expires) if expires is not None else None
    if expires is not None and not span:
        raise click.BadParameter(f'--expires is a time span like 12h or 90d, not "{expires}".')
    body = {"name": name, "roles": roles, "expires_in": span, "pools": pools}
    made = _ask(settings_for(db, server), "POST", "tokens", body)
    if as_json:
        print_json(made)
    else:
        print_line(made["token"])


@token.command("list")
@json_option
@db_option
@server_option
def list_tokens(as_json: bool, db: str | None, server: str | None) -> None:
    """Every token, without what it is."""
    _print(_ask(settings_for(db, server), "GET", "tokens"), "tokens", as_json=as_json)


@token.command("revoke")
@click.argument("name")
@db_option
@server_option
def revoke_token(name: str, db: str | None, server: str | None) -> None:
    """Make a token worth nothing."""
    _ask(settings_for(db, server), "DELETE", f"tokens/{quote(name, safe='')}")
    say(f'token "{name}" is revoked')


@command.command("audit")
@json_option
@db_option
@server_option
def audit(as_json: bool, db: str | None, server: str | None) -> None:
    """Who looked at or changed what, newest first."""
    found = _ask(settings_for(db, server), "GET", "audit")
    if as_json:
        print_json(found)
        return
    for row in found["entries"]:
        where = f"  execution {row['execution_id']}" if row["execution_id"] else ""
        who = row["who"] or "(open)"
        line = f"{row['at']}  {who}  {row['action']}  {row['target']}{where}  {row['details']}"
        print_line(printable(line.rstrip()))


def _print(answer: dict[str, Any], noun: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    for row in answer[noun]:
        until = f"  until {row['expires_at']}" if row.get("expires_at") else ""
        print_line(printable(f"{row['name']}  {', '.join(row['roles'])}{until}"))
    if not answer[noun]:
        say(f"there are no {noun}")
