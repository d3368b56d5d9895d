"""Reads named statements from the SQL files of a store, so that Python contains no SQL; maps
structs to rows.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import msgspec

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_WITHIN = re.compile(r"/\* (\w+) \*/")


def read_queries(package: str) -> dict[str, str]:
    """The statements of all SQL files of a package."""
    found = [file for file in files(package).iterdir() if file.name.endswith(".sql")]
    return named(*(file.read_text(encoding="utf-8") for file in found))


def named(*texts: str) -> dict[str, str]:
    """Name → statement. A name is a line `-- name --`; text before the first is a heading.

    `/* name */` in a statement is replaced by the part of that name, which is no statement itself.
    """
    parts = [part for text in texts for part in _NAME.split(text)[1:]]
    names = parts[::2]
    assert len(names) == len(set(names)), "two queries have the same name"
    found = {name: body.strip() for name, body in zip(names, parts[1::2], strict=True)}
    within = {name for body in found.values() for name in _WITHIN.findall(body)}
    return {name: _whole(body, found) for name, body in found.items() if name not in within}


def _whole(body: str, found: dict[str, str]) -> str:
    return _WITHIN.sub(
        lambda part: _whole(found[part[1]], found) if part[1] in found else part[0], body
    )


LISTS = frozenset({"roles", "pools", "tags", "playbooks", "columns"})
"""Columns that hold a list of texts as JSON."""
_decode_list = msgspec.json.Decoder(tuple[str, ...]).decode


def columns_of(row: msgspec.Struct) -> dict[str, Any]:
    """A struct as the columns of its row."""
    columns = msgspec.structs.asdict(row)
    for name in LISTS & columns.keys():
        columns[name] = msgspec.json.encode(columns[name]).decode()
    return columns


def fields_of(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row as the fields of its struct."""
    for name in LISTS & columns.keys():
        columns[name] = _decode_list(columns[name])
    return columns
