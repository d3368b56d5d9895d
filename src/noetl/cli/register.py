"""`noetl register`: puts documents into the catalog, and credentials into the database."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from noetl import configured
from noetl.api.routes.catalog import REGISTER, Register
from noetl.api.routes.credentials import PUT, NewCredential
from noetl.cli import OK, WRONG
from noetl.cli.calls import acting, adds
from noetl.cli.files import Source, Unreadable, is_test, print_problems, sources, suggest_migrate
from noetl.cli.options import json_option
from noetl.cli.output import print_json, say
from noetl.errors import Conflict, PlaybookRejected
from noetl.model.triggers import TRIGGERS

if TYPE_CHECKING:
    from noetl.api.routes.credentials import NewCredential
    from noetl.cli.calls import Api
    from noetl.model.problems import Problem
    from noetl.settings import Settings

_CREDENTIAL = re.compile(r"^kind:\s*[\"']?Credential\b", re.MULTILINE)

_SCHEMA = re.compile(r"^kind:\s*[\"']?Schema\b", re.MULTILINE | re.IGNORECASE)
_TRIGGER = re.compile(rf"^kind:\s*[\"']?({'|'.join(TRIGGERS)})\b", re.MULTILINE | re.IGNORECASE)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE_OR_DIR...")
@json_option
@adds
async def command(settings: Settings, files: tuple[str, ...], as_json: bool) -> int:
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
    every = list(_without_tests(sources(files)))
    kept = []
    if not _would_make_a_database_for_nothing(settings, every):
        async with acting(settings) as api:
            kept = await register(api, every)
            if not api.is_run() and any(one["kind"] in TRIGGERS for one in kept):
                say(
                    "no server runs on this database, and triggers start nothing without one:"
                    " `noetl dev` or `noetl server start`"
                )
    if as_json:
        print_json({"registered": kept})
    return OK if len(kept) == len(every) else WRONG


async def register(
    api: Api,
    every: Collection[Source | Unreadable],
    known: Collection[Source | Unreadable] = (),
) -> list[dict[str, Any]]:
    """Register those of these files that are not known, schemas before the playbooks that name them
    and those before the triggers that start them, and say so. Returns those that were right.
    """
    _warn_of_shared_paths(every)
    ordered = sorted((one for one in every if one not in known), key=_place)
    return [one for found in ordered if (one := await _registered(api, found)) is not None]


def _without_tests(every: Iterable[Source | Unreadable]) -> Iterator[Source | Unreadable]:
    for one in every:
        if isinstance(one, Source) and is_test(one):
            say(f"{one.name}: tests are not registered; `noetl test {one.name}` runs them")
        else:
            yield one


def _warn_of_shared_paths(every: Iterable[Source | Unreadable]) -> None:
    """Each of such files becomes the next version, at every registration anew."""
    from noetl.dsl.read import declared_path

    found: dict[str, list[Source]] = {}
    for one in every:
        if (
            isinstance(one, Source)
            and not _is_credential(one)
            and (path := declared_path(one.text))
        ):
            found.setdefault(path, []).append(one)
    for path, files in found.items():
        if len({one.text for one in files}) > 1:
            names = " and ".join(one.name for one in files)
            say(
                f"warning: {names} declare the same path, {path}: each is a version of it, and the"
                " last one is what runs. Give the others another `metadata.path` if that is not"
                " meant."
            )


def _would_make_a_database_for_nothing(
    settings: Settings, every: list[Source | Unreadable]
) -> bool:
    """Whether there is no database yet and no file is right. Then it has been said why."""
    if not configured.is_missing(settings):
        return False
    compile_text = configured.document_compiler(settings)
    said: list[str] = []
    problems: list[tuple[Source, tuple[Problem, ...]]] = []
    for found in every:
        if isinstance(found, Unreadable):
            said.append(str(found))
        elif _is_credential(found):
            new = _credential(found)
            if not isinstance(new, str):
                return False
            said.append(f"{found.name}: {new}")
        else:
            told = compile_text(found.text).problems
            if not any(one.severity == "error" for one in told):
                return False
            problems.append((found, told))
    for line in said:
        say(line)
    for source, told in problems:
        _refuse(source, told)
    return True


async def _registered(api: Api, found: Source | Unreadable) -> dict[str, Any] | None:
    """Register one file, and say so. Prints why and returns None if that fails."""
    if isinstance(found, Unreadable):
        say(str(found))
        return None
    if _is_credential(found):
        new = _credential(found)
        if isinstance(new, str):
            say(f"{found.name}: {new}")
            return None
        await api.call(PUT, body=new)
        say(f'{found.name}: credential "{new.name}"')
        return {"file": found.name, "kind": "Credential", "name": new.name, "type": new.type}
    try:
        entry = await api.call(REGISTER, body=Register(content=found.text))
    except Conflict as error:
        say(f"{found.name}: {error}")
        return None
    except PlaybookRejected as error:
        _refuse(found, error.problems)
        return None
    print_problems(found.name, entry.problems)
    kind = "" if entry.kind == "Playbook" else f"{entry.kind.lower()} "
    say(f"{found.name}: {kind}{entry.path} version {entry.version}")
    if entry.lacks:
        say(f"{found.name}: {entry.lacks}")
    wanted = ("kind", "path", "version", "catalog_id")
    return {"file": found.name, **{name: getattr(entry, name) for name in wanted}}


def _place(found: Source | Unreadable) -> int:
    """What others name comes before them."""
    if isinstance(found, Unreadable):
        return 1
    return 0 if _SCHEMA.search(found.text) else 2 if _TRIGGER.search(found.text) else 1


def _is_credential(found: Source) -> bool:
    return _CREDENTIAL.search(found.text) is not None or found.name.endswith(".json")


def _refuse(found: Source, problems: tuple[Problem, ...]) -> None:
    suggest_migrate(found.name, found.text, problems)
    print_problems(found.name, problems)


def _credential(found: Source) -> NewCredential | str:
    """The credential that a file holds, or why it holds none."""
    try:
        document = configured.plain_document(found.text)
    except ValueError as error:
        return str(error)
    together = dict(document)
    for part in (document.get("metadata"), document.get("spec")):
        together |= part if isinstance(part, dict) else {}
    name, data = together.get("name"), together.get("data")
    if not isinstance(name, str) or not isinstance(data, dict):
        return "a credential has a `name`, a `type` and `data`, which is a mapping."
    kind = str(together.get("type") or "generic")
    about_it = str(together.get("description") or "")
    return NewCredential(name=name, type=kind, data=data, description=about_it)
