"""`noetl access`: users, API tokens and the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.api.routes.access import (
    AUDIT,
    CREATE_TOKEN,
    DELETE_TOKEN,
    DELETE_USER,
    PUT_USER,
    TOKENS,
    USERS,
    AuditQuery,
    NewToken,
    NewUser,
)
from noetl.cli.calls import acting, acts, adds, looks
from noetl.cli.options import ask_secret, json_option
from noetl.cli.output import local_time, print_json, print_line, print_list, say
from noetl.model.duration import seconds

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.answers import AuditDocument
    from noetl.settings import Settings

ROLES = ("viewer", "operator", "author", "admin", "worker")
role_option = click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    metavar="ROLE",
    help=f"{', '.join(ROLES)}, or a role of your own for forms. May be repeated.",
)


@click.group()
def command() -> None:
    """Manage users and API tokens of a server, and read its audit log.

    Users sign in with a password; programs, and so these commands, send an API token (NOETL_TOKEN).
    A server without users and tokens listens on its own machine only, and gives every caller full
    access. The first one must be an admin: begin with a token for yourself.

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
    """Manage users, who sign in with a password.

    \b
    Examples:
      noetl access user add ada --role author
      noetl access user list
    """


@user.command("add")
@click.argument("name")
@role_option
@click.option("--email", default="", help="For people.")
@adds
async def add_user(settings: Settings, name: str, roles: tuple[str, ...], email: str) -> None:
    """Create a user, or change the password and roles of one.

    The command asks for the password, or reads it from standard input.

    \b
    Example:
      noetl access user add ada --role author --email ada@example.com
    """
    password = ask_secret("password", "there is no password on standard input.", confirm=True)
    new = NewUser(name=name, roles=roles, email=email, password=password)
    async with acting(settings) as api:
        await api.call(PUT_USER, body=new)
    say(f'user "{name}" may sign in as {", ".join(roles)}')
    if settings.server_url is not None and settings.token is None:
        say(
            "the server is no longer open: commands and workers need an API token from now on, in"
            " NOETL_TOKEN. In the directory of its database `noetl access token create NAME --role"
            " admin` makes one (`--role worker` for workers); or sign in (POST /api/auth/login)."
        )


@user.command("list")
@json_option
@looks
async def list_users(api: Api, as_json: bool) -> None:
    """List users.

    \b
    Example:
      noetl access user list
    """
    print_list(
        "users",
        (await api.call(USERS)).users,
        lambda one: (one.name, ", ".join(one.roles)),
        "there are no users",
        as_json=as_json,
    )


@user.command("remove")
@click.argument("name")
@acts
async def remove_user(api: Api, name: str) -> None:
    """Remove a user, and end all their sessions.

    \b
    Example:
      noetl access user remove ada
    """
    await api.call(DELETE_USER, name=name)
    say(f'user "{name}" is removed')


# --- Tokens ------------------------------------------------------------------------------------


@command.group("token")
def token() -> None:
    """Manage API tokens, with which programs sign in.

    \b
    Examples:
      noetl access token create ci --role author --expires 90d
      noetl access token list
    """


@token.command("create")
@click.argument("name")
@role_option
@click.option(
    "--expires", metavar="TIME", help="How long it is valid, e.g. 90d. Default: until revoked."
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    help="Workers with it may only use this pool; may be repeated.",
)
@json_option
@adds
async def create_token(
    settings: Settings,
    name: str,
    roles: tuple[str, ...],
    expires: str | None,
    pools: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create an API token and print it.

    It is printed only once: NoETL stores no copy of it.

    \b
    Examples:
      noetl access token create ci --role author --expires 90d
      noetl access token create workers --role worker --pool default
    """
    span = seconds(expires) if expires is not None else None
    if expires is not None and not span:
        raise click.BadParameter(f'--expires is a duration like 12h or 90d, not "{expires}".')
    new = NewToken(name=name, roles=roles, expires_in=span, pools=pools)
    async with acting(settings) as api:
        made = await api.call(CREATE_TOKEN, body=new)
    if as_json:
        print_json(made)
    else:
        print_line(made.token)


@token.command("list")
@json_option
@looks
async def list_tokens(api: Api, as_json: bool) -> None:
    """List API tokens, without their secrets.

    \b
    Example:
      noetl access token list
    """
    print_list(
        "tokens",
        (await api.call(TOKENS)).tokens,
        lambda one: (
            *(one.name, ", ".join(one.roles)),
            f"until {local_time(one.expires_at)}" if one.expires_at else "",
        ),
        "there are no API tokens",
        as_json=as_json,
    )


@token.command("revoke")
@click.argument("name")
@acts
async def revoke_token(api: Api, name: str) -> None:
    """Revoke an API token. The server refuses it from now on.

    \b
    Example:
      noetl access token revoke ci
    """
    await api.call(DELETE_TOKEN, name=name)
    say(f'token "{name}" is revoked')


@command.command("audit")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
@json_option
@looks
async def audit(api: Api, limit: int, as_json: bool) -> None:
    """Print the audit log: who read or changed what, newest first.

    \b
    Example:
      noetl access audit --limit 10000 --json
    """
    found: list[AuditDocument] = []
    async for page in api.pages(AUDIT, AuditQuery(limit=min(limit, 1000))):
        found += page.entries
        if len(found) >= limit:
            break
    print_list(
        "entries",
        found[:limit],
        lambda one: (
            *(local_time(one.at), one.who, one.action),
            one.target + (f"  execution {one.execution_id}" if one.execution_id else ""),
            one.details,
        ),
        "nothing was recorded yet",
        as_json=as_json,
    )
