"""`noetl access`: who may use a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from noetl.cli.calls import acts, looks
from noetl.cli.options import json_option
from noetl.cli.output import print_json, print_line, printable, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api

ROLES = ("viewer", "operator", "author", "admin", "worker")
role_option = click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    metavar="ROLE",
    help=f"What they may do: {', '.join(ROLES)}; and roles of your own, which forms ask for. May be"
    " repeated.",
)


@click.group()
def command() -> None:
    """Manage users and API tokens of a server, and read its audit log.

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


# --- Users -------------------------------------------------------------------------------------


@command.group("user")
def user() -> None:
    """Users, who sign in with a password."""


@user.command("add")
@click.argument("name")
@role_option
@click.option("--email", default="", help="For people.")
@acts
async def add_user(api: Api, name: str, roles: tuple[str, ...], email: str) -> None:
    """Create a user, or give them another password and other roles.

    The password is asked for, or read from standard input.
    """
    from noetl.api.routes.access import PUT_USER, NewUser

    new = NewUser(name=name, roles=roles, email=email, password=_password())
    await api.call(PUT_USER, body=new)
    say(f'user "{name}" may sign in as {", ".join(roles)}')
    if api.settings.server_url is not None and api.settings.token is None:
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
@looks
async def list_users(api: Api, as_json: bool) -> None:
    """List users."""
    from noetl.api.routes.access import USERS

    found = await api.call(USERS)
    if as_json:
        print_json(found)
        return
    for row in found.users:
        print_line(printable(f"{row.name}  {', '.join(row.roles)}"))
    if not found.users:
        say("there are no users")


@user.command("remove")
@click.argument("name")
@acts
async def remove_user(api: Api, name: str) -> None:
    """Remove a user; all sessions end."""
    from noetl.api.routes.access import DELETE_USER

    await api.call(DELETE_USER, name=name)
    say(f'user "{name}" is removed')


# --- Tokens ------------------------------------------------------------------------------------


@command.group("token")
def token() -> None:
    """API tokens, which programs sign in with."""


@token.command("create")
@click.argument("name")
@role_option
@click.option("--expires", metavar="TIME", help="After this time it is worth nothing, e.g. 90d.")
@click.option(
    "--pool", "pools", multiple=True, help="A worker with it works for this pool; may be repeated."
)
@json_option
@acts
async def create_token(
    api: Api,
    name: str,
    roles: tuple[str, ...],
    expires: str | None,
    pools: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a token. It goes to stdout, now and never again."""
    from noetl.api.routes.access import CREATE_TOKEN, NewToken
    from noetl.model.duration import seconds

    span = seconds(expires) if expires is not None else None
    if expires is not None and not span:
        raise click.BadParameter(f'--expires is a time span like 12h or 90d, not "{expires}".')
    new = NewToken(name=name, roles=roles, expires_in=span, pools=pools)
    made = await api.call(CREATE_TOKEN, body=new)
    if as_json:
        print_json(made)
    else:
        print_line(made.token)


@token.command("list")
@json_option
@looks
async def list_tokens(api: Api, as_json: bool) -> None:
    """List tokens; what they are is not shown."""
    from noetl.api.routes.access import TOKENS

    found = await api.call(TOKENS)
    if as_json:
        print_json(found)
        return
    for row in found.tokens:
        until = f"  until {row.expires_at}" if row.expires_at else ""
        print_line(printable(f"{row.name}  {', '.join(row.roles)}{until}"))
    if not found.tokens:
        say("there are no tokens")


@token.command("revoke")
@click.argument("name")
@acts
async def revoke_token(api: Api, name: str) -> None:
    """Revoke a token: it is refused from now on."""
    from noetl.api.routes.access import DELETE_TOKEN

    await api.call(DELETE_TOKEN, name=name)
    say(f'token "{name}" is revoked')


@command.command("audit")
@json_option
@looks
async def audit(api: Api, as_json: bool) -> None:
    """Who looked at or changed what, newest first."""
    from noetl.api.routes.access import AUDIT

    found = await api.call(AUDIT)
    if as_json:
        print_json(found)
        return
    for row in found.entries:
        where = f"  execution {row.execution_id}" if row.execution_id else ""
        who = row.who or "(open)"
        line = f"{row.at}  {who}  {row.action}  {row.target}{where}  {row.details}"
        print_line(printable(line.rstrip()))
