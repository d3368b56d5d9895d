"""`noetl register`: puts documents into the catalog, and credentials into the database."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.calls import acts
from noetl.cli.exits import OK, WRONG
from noetl.cli.files import Source, Unreadable, sources
from noetl.cli.options import json_option
from noetl.cli.output import print_json, problem_line, say
from noetl.cli.rewrites import older_dialect

if TYPE_CHECKING:
    from noetl.cli.calls import Api

_CREDENTIAL = re.compile(r"^kind:\s*[\"']?Credential\b", re.MULTILINE)

_TRIGGER = re.compile(
    r"^kind:\s*[\"']?(Schedule|Hook|Consumer|Notification)\b", re.MULTILINE | re.IGNORECASE
)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE_OR_DIR...")
@json_option
@acts
async def command(api: Api, files: tuple[str, ...], as_json: bool) -> int:
    """Register playbooks, triggers and credentials by name.

    A playbook is stored in the catalog under its `metadata.path`. The same text again yields the
    same version; a changed text becomes the next one. Schedules, hooks, consumers and notifications
    take effect at once, on the servers of the database. A credential is a file of `kind:
    Credential`, or a JSON file with name, type and data. Exits with 2 if a file is wrong; the
    others are registered.

    \b
    Examples:
      noetl register orders.yaml
      noetl register playbooks/
    """
    kept: list[dict[str, Any]] = []
    wrong = False
    # Playbooks come before the triggers that start them.
    for found in sorted(sources(files), key=_starts_others):
        one = await _keep(api, found)
        if one is None:
            wrong = True
        else:
            lacks = one.pop("lacks", "")
            kept.append({"file": found.name, **one})
            say(f"{found.name}: {_said(one)}")
            if lacks:
                say(f"{found.name}: {lacks}")
    if as_json:
        print_json({"registered": kept})
    return WRONG if wrong else OK


def _starts_others(found: Source | Unreadable) -> bool:
    return isinstance(found, Source) and _TRIGGER.search(found.text) is not None


def _said(one: dict[str, Any]) -> str:
    if one["kind"] == "Credential":
        return f'credential "{one["name"]}"'
    kind = "" if one["kind"] == "Playbook" else f"{one['kind'].lower()} "
    return f"{kind}{one['path']} version {one['version']}"


async def _keep(api: Api, found: Source | Unreadable) -> dict[str, Any] | None:
    """Register one file. Prints why and returns None if that fails."""
    if isinstance(found, Unreadable):
        say(f"{found.name}: {found.reason}.")
        return None
    if _CREDENTIAL.search(found.text) or found.name.endswith(".json"):
        return await _keep_credential(api, found)
    return await _keep_document(api, found)


async def _keep_document(api: Api, found: Source) -> dict[str, Any] | None:
    from noetl.api.routes.catalog import REGISTER, Register
    from noetl.errors import Conflict, PlaybookRejected

    try:
        entry = await api.call(REGISTER, body=Register(content=found.text))
    except Conflict as error:
        say(f"{found.name}: {error}")
        return None
    except PlaybookRejected as error:
        if hint := older_dialect(found.name, found.text, error.problems):
            say(hint)
        for problem in error.problems:
            click.echo(str(problem_line(found.name, problem)), err=True)
        return None
    for problem in entry.problems:
        click.echo(str(problem_line(found.name, problem)), err=True)
    wanted = ("kind", "path", "version", "catalog_id", "lacks")
    return {name: getattr(entry, name) for name in wanted}


async def _keep_credential(api: Api, found: Source) -> dict[str, Any] | None:
    from noetl import wiring
    from noetl.api.routes.credentials import PUT, NewCredential

    try:
        document = wiring.plain_document(found.text)
    except ValueError as error:
        say(f"{found.name}: {error}")
        return None
    about = document.get("metadata") if isinstance(document.get("metadata"), dict) else {}
    assert isinstance(about, dict)
    spec = document.get("spec") if isinstance(document.get("spec"), dict) else {}
    assert isinstance(spec, dict)
    together = {**document, **about, **spec}
    name, data = together.get("name"), together.get("data")
    if not isinstance(name, str) or not isinstance(data, dict):
        say(f"{found.name}: a credential has a `name`, a `type` and `data`, which is a mapping.")
        return None
    kind = str(together.get("type") or "generic")
    about_it = str(together.get("description") or "")
    new = NewCredential(name=name, type=kind, data=data, description=about_it)
    await api.call(PUT, body=new)
    return {"kind": "Credential", "name": name, "type": kind}
