"""Numbered steps from one schema to the next, and which schemas this code can use."""

from __future__ import annotations

import re
from collections.abc import Sequence
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


def missing(
    applied: Sequence[tuple[int, str]], migrations: Sequence[Migration], place: str
) -> list[Migration]:
    """The migrations that a database still needs, given those that it has.

    Raises StoreError if it was written by a newer NoETL, or between releases: such schemas were
    never released, and are not upgraded.
    """
    known = {migration.version: migration.name for migration in migrations}
    if any(known.get(version, name) != name for version, name in applied):
        raise StoreError(
            f"{place} was made by a version of NoETL that was never released, and cannot be read."
            " Use another database, or remove this one if nothing in it is needed."
        )
    version, newest = newest_of(applied), migrations[-1].version
    if version > newest:
        raise StoreError(
            f"{place} has schema {version}, but this version of NoETL knows only up to {newest}:"
            " a newer NoETL wrote it. Upgrade NoETL, or use another database."
        )
    return [migration for migration in migrations if migration.version > version]


def require_none_missing(
    applied: Sequence[tuple[int, str]], migrations: Sequence[Migration], place: str
) -> None:
    """Raise StoreError unless this code can read and write the database as it is."""
    if missing(applied, migrations, place):
        raise StoreError(
            f"{place} has schema {newest_of(applied)}; this version of NoETL reads schema"
            f" {migrations[-1].version}. Upgrade it in place with `noetl db migrate`."
        )


def newest_of(applied: Sequence[tuple[int, str]]) -> int:
    """The version of a schema; 0 for a new database."""
    return max((version for version, _ in applied), default=0)
