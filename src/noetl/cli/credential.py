"""`noetl credential`: secrets for playbooks, sealed in the database."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.options import db_option, json_option, server_option, settings_for
from noetl.cli.printing import print_json, print_line, printable, say

if TYPE_CHECKING:
    from noetl.settings import Settings

HIDDEN = "********"
BYTES_MAX = 1024 * 1024


@click.group(short_help="Keep the secrets that playbooks use.")
def command() -> None:
    """Keep the secrets that playbooks use.

    They are encrypted in the database, with NOETL_SECRET_KEY or with a key file beside it that
    is made once; keep a copy of that. A playbook names them under `keychain` or in `auth`.

    \b
    Examples:
      noetl credential set shop_db --type postgres host=db.example.com user=etl password
      noetl credential set api_token token < token.txt
      noetl credential set warehouse --from-file warehouse.json
      noetl credential list
    """


@command.command("set")
@click.argument("name")
@click.argument("fields", nargs=-1, metavar="[KEY[=VALUE]]...")
@click.option("--type", "kind", default=None, help="What it is, e.g. postgres, bearer.")
@click.option("--description", default="", help="A word for people.")
@click.option(
    "--for",
    "playbooks",
    metavar="PATH",
    multiple=True,
    help="Playbooks that may use it, e.g. 'shop/*'; may be repeated. '*': all. Else as before.",
)
@click.option("--from-file", metavar="FILE", help="Take the fields from a JSON file; - is stdin.")
@db_option
@server_option
def set_command(
    name: str,
    fields: tuple[str, ...],
    kind: str | None,
    description: str,
    playbooks: tuple[str, ...],
    from_file: str | None,
    db: str | None,
    server: str | None,
) -> None:
    """Store a credential, or replace it.

    A KEY without a value is asked for and not shown; without a terminal it is read from standard
    input, one line for each such key. So secrets need not stand in the list of processes.
    """
    settings = settings_for(db, server)
    document = _from_file(from_file) if from_file is not None else {}
    data = document.get("data", {})
    if not isinstance(data, dict):
        raise click.BadParameter('"data" in the file is a JSON object of fields.')
    data = {**data, **_fields(fields)}
    if not data:
        raise click.UsageError(f"which fields? For instance: noetl credential set {name} password")
    found_kind = kind or str(document.get("type") or "generic")
    about = description or str(document.get("description") or "")
    replaced = asyncio.run(_set(settings, name, found_kind, data, about, playbooks or None))
    say(f'credential "{name}" is {"replaced" if replaced else "stored"}')


async def _set(
    settings: Settings,
    name: str,
    kind: str,
    data: dict[str, Any],
    description: str,
    playbooks: tuple[str, ...] | None,
) -> bool:
    """Store it; whether there was one of that name."""
    from noetl.api.routes.credentials import LIST, PUT, NewCredential
    from noetl.cli.acting import calling

    new = NewCredential(
        name=name, type=kind, data=data, description=description, playbooks=playbooks
    )
    async with calling(settings) as client:
        known = (await client.call(LIST)).credentials
        await client.call(PUT, body=new)
    return any(one.name == name for one in known)


def _fields(written: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in written:
        key, equals, value = item.partition("=")
        if not key or key in found:
            raise click.BadParameter(f'"{key or "=…"}": each field has a name and comes once.')
        found[key] = value if equals else _asked(key)
    return found


def _asked(key: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(key, hide_input=True, err=True))
    line = sys.stdin.readline(BYTES_MAX)
    if not line:
        raise click.BadParameter(f'"{key}" has no value: write {key}=…, or give it on stdin.')
    return line.rstrip("\r\n")


def _from_file(name: str) -> dict[str, Any]:
    """`{type, data}` as the API takes it, or just the fields."""
    import msgspec

    try:
        if name == "-":
            body = sys.stdin.buffer.read(BYTES_MAX)
        else:
            with open(name, "rb") as file:
                body = file.read(BYTES_MAX)
        found = msgspec.json.decode(body)
    except OSError as error:
        raise click.BadParameter(f"--from-file {name}: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"--from-file {name} is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise click.BadParameter(f"--from-file {name} must hold a JSON object.")
    return found if isinstance(found.get("data"), dict) else {"data": found}


@command.command("list")
@json_option
@db_option
@server_option
def list_command(as_json: bool, db: str | None, server: str | None) -> None:
    """What is stored, without any secret."""
    found = asyncio.run(_list(settings_for(db, server)))
    if as_json:
        print_json({"credentials": found})
        return
    width = max((len(row["name"]) for row in found), default=0)
    for row in found:
        line = f"{row['name']:<{width}}  {row['type']:<10}  {row['description']}"
        print_line(printable(line.rstrip()))
    if not found:
        say("there are no credentials")


async def _list(settings: Settings) -> list[dict[str, Any]]:
    from noetl import wiring
    from noetl.api.routes.credentials import LIST
    from noetl.cli.acting import calling
    from noetl.control import documents

    if settings.server_url is not None:
        async with calling(settings) as client:
            return [documents.plain(one) for one in (await client.call(LIST)).credentials]
    # Reading a database is possible beside whoever writes it.
    async with wiring.looking(settings) as store:
        return [documents.plain(documents.credential(row)) for row in await store.credentials()]


@command.command("show")
@click.argument("name")
@click.option("--reveal", is_flag=True, help="Print the secrets, too.")
@json_option
@db_option
@server_option
def show_command(
    name: str, reveal: bool, as_json: bool, db: str | None, server: str | None
) -> None:
    """One credential: its fields, secrets hidden unless --reveal."""
    row = asyncio.run(_read(settings_for(db, server), name))
    fields = row.pop("data")
    shown = fields if reveal else {key: _hidden(key, value) for key, value in fields.items()}
    if as_json:
        print_json({**row, "data": shown})
        return
    print_line(printable(f"{row['name']}  {row['type']}  {row['description']}".rstrip()))
    for key, value in shown.items():
        print_line(printable(f"  {key}: {value}"))


async def _read(settings: Settings, name: str) -> dict[str, Any]:
    from noetl import wiring
    from noetl.api.routes.credentials import GET, HowMuch
    from noetl.cli.acting import calling
    from noetl.control import documents
    from noetl.model.spelling import did_you_mean

    if settings.server_url is not None:
        async with calling(settings) as client:
            found = await client.call(GET, name=name, query=HowMuch(include_data=True))
            return documents.plain(found)
    async with wiring.looking(settings) as store:
        row = await store.credential(name)
        if row is None:
            from noetl.errors import NotFound

            known = [found.name for found in await store.credentials()]
            raise NotFound(f'there is no credential "{name}".{did_you_mean(name, known)}')
    async with wiring.looking_at_keys(settings) as keys:
        return documents.plain(documents.credential(row, await keys.credential(name) or {}))


def _hidden(key: str, value: Any) -> Any:
    """What says where and who may be seen; what lets one in may not."""
    from noetl.secrets.masking import OPEN_FIELDS

    is_open = key in OPEN_FIELDS and not (isinstance(value, str) and "@" in value)
    return value if is_open and isinstance(value, str | int) else HIDDEN


@command.command("delete")
@click.argument("name")
@db_option
@server_option
def delete_command(name: str, db: str | None, server: str | None) -> None:
    """Remove a credential."""
    asyncio.run(_delete(settings_for(db, server), name))
    say(f'credential "{name}" is deleted')


async def _delete(settings: Settings, name: str) -> None:
    from noetl.api.routes.credentials import DELETE
    from noetl.cli.acting import calling

    async with calling(settings) as client:
        await client.call(DELETE, name=name)
