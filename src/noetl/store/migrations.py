"""Numbered steps from one schema to the next, and which schemas this code can use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple

from noetl.errors import StoreError

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    """One step from a schema to the next."""

    version: int
    name: str
    script: str


def read_migrations(package: str) -> tuple[Migration, ...]:
    """The files in `migrations` of a package, in order."""
    found = []
    for file in (files(package) / "migrations").iterdir():
        if match := _FILE_NAME.fullmatch(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def refuse_others(
    applied: Iterable[tuple[int, str]], migrations: Sequence[Migration], place: str
) -> None:
    """Schemas between releases were never released, and are not upgraded."""
    known = {migration.version: migration.name for migration in migrations}
    if any(known.get(version, name) != name for version, name in applied):
        raise StoreError(
            f"{place} was made by a version of NoETL that was never released, and cannot be read."
            " Use another database, or remove this one if nothing in it is needed."
        )


def refuse_older(version: int, newest: int, place: str) -> None:
    if version < newest:
        raise StoreError(
            f"{place} has schema {version}; this version of NoETL reads schema {newest}."
            " Upgrade it in place with `noetl db migrate`."
        )


def refuse_newer(version: int, newest: int, place: str) -> None:
    if version > newest:
        raise StoreError(
            f"{place} has schema {version}, but this version of NoETL knows only up to {newest}:"
            " a newer NoETL wrote it. Upgrade NoETL, or use another database."
        )
