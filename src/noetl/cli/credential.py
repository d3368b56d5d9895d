"""`noetl credential`: secrets for playbooks, encrypted in the database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl.api.routes.credentials import DELETE, GET, LIST, PUT, HowMuch, NewCredential
from noetl.cli.calls import acting, acts, adds, looks
from noetl.cli.options import SECRET_MAX, ask_secret, json_option
from noetl.cli.output import print_json, print_line, print_list, printable, say
from noetl.control.documents import plain
from noetl.model.spelling import did_you_mean, is_slip

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.settings import Settings

GENERIC = "generic"
"""The type of a credential that names none."""


@click.group()
def command() -> None:
    """Store the secrets that playbooks use.

    They are encrypted in the database, with NOETL_SECRET_KEY or with a key file that NoETL creates
    beside the database; back that file up. A playbook names credentials under `keychain` or in
    `auth`.

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
@click.option("--type", "kind", default=None, help="The type, e.g. postgres or bearer.")
@click.option("--description", default="", help="A note for people.")
@click.option(
    "--for",
    "playbooks",
    metavar="PATH",
    multiple=True,
    help="Only these playbooks may use it, e.g. 'shop/*'; may be repeated. '*': all.",
)
@click.option(
    "--from-file", metavar="FILE", help="Read the fields from a JSON file; - is standard input."
)
@adds
async def set_command(
    settings: Settings,
    name: str,
    fields: tuple[str, ...],
    kind: str | None,
    description: str,
    playbooks: tuple[str, ...],
    from_file: str | None,
) -> None:
    """Store a credential, or replace it.

    The command asks for each KEY without a value, and does not show what you type; without a
    terminal it reads one line per such key from standard input. So secrets need not appear in the
    process list. Without --for, a replaced credential keeps its playbooks.

    \b
    Example:
      noetl credential set shop_db --type postgres host=db.example.com user=etl password
    """
    document = _from_file(from_file) if from_file is not None else {}
    data = document.get("data", {})
    if not isinstance(data, dict):
        raise click.BadParameter('"data" in the file must be a JSON object of fields.')
    data = {**data, **_fields(fields)}
    if not data:
        raise click.UsageError(f"name the fields, e.g. noetl credential set {name} password")
    found_kind = kind or str(document.get("type") or GENERIC)
    about = description or str(document.get("description") or "")
    new = NewCredential(
        name=name, type=found_kind, data=data, description=about, playbooks=playbooks or None
    )
    async with acting(settings) as api:
        known = {one.name for one in (await api.call(LIST)).credentials}
        await api.call(PUT, body=new)
    say(f'credential "{name}" is {"replaced" if name in known else "stored"}')
    _tell_if_own(found_kind)


def _tell_if_own(kind: str) -> None:
    """Say that no tool knows this type: it may be misspelt."""
    from noetl.tools.registry import tools
    from noetl.tools.web.auth import KINDS, kind_named

    types = {*tools(), *KINDS, GENERIC}
    if kind not in types and not kind_named(kind):
        hint = did_you_mean(kind, types) if is_slip(kind, types) else ""
        say(f'warning: no tool knows the type "{kind}"; it is kept as one of your own.{hint}')


def _fields(written: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in written:
        key, equals, value = item.partition("=")
        if not key or key in found:
            raise click.BadParameter(
                f'"{key or "=…"}": each field needs a name and may appear once.'
            )
        missing = f'"{key}" has no value: write {key}=…, or give it on stdin.'
        found[key] = value if equals else ask_secret(key, missing, may_be_empty=True)
    return found


def _from_file(name: str) -> dict[str, Any]:
    """`{type, data}` as in the API, or only the fields."""
    try:
        if name == "-":
            body = sys.stdin.buffer.read(SECRET_MAX)
        else:
            with open(name, "rb") as file:
                body = file.read(SECRET_MAX)
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
@looks
async def list_command(api: Api, as_json: bool) -> None:
    """List stored credentials, without secrets.

    \b
    Example:
      noetl credential list
    """
    print_list(
        "credentials",
        (await api.call(LIST)).credentials,
        lambda one: (one.name, f"{one.type:<10}", one.description),
        "there are no credentials",
        as_json=as_json,
    )


@command.command("show")
@click.argument("name")
@click.option("--reveal", is_flag=True, help="Print the secrets, too.")
@json_option
@acts
async def show_command(api: Api, name: str, reveal: bool, as_json: bool) -> None:
    """Show the fields of a credential, without secrets.

    \b
    Example:
      noetl credential show shop_db
    """
    how_much = HowMuch(include_data=reveal, include_fields=not reveal)
    found = await api.call(GET, name=name, query=how_much)
    row = plain(found)
    if as_json:
        print_json(row)
        return
    print_line(printable(f"{row['name']}  {row['type']}  {row['description']}".rstrip()))
    for key, value in row["data"].items():
        print_line(printable(f"  {key}: {value}"))


@command.command("delete")
@click.argument("name")
@acts
async def delete_command(api: Api, name: str) -> None:
    """Remove a credential.

    \b
    Example:
      noetl credential delete shop_db
    """
    await api.call(DELETE, name=name)
    say(f'credential "{name}" is deleted')
