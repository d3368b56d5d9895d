"""How a store reaches its database: by statements that have names.

The text of a statement is in an SQL file, so Python contains no SQL: beside this one if every store
understands it, else in the package of the store. A part that does the same everywhere is written
once, over `Database`; then the stores differ in their own SQL files alone.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Rows = AsyncIterator[dict[str, Any]]


class Statements(ABC):
    """Runs statements by name. Their values are plain ones, or lists of them."""

    @abstractmethod
    async def tuples(self, query: str, /, **values: Any) -> list[Any]:
        """The rows of the answer, each as a tuple."""

    @abstractmethod
    async def rows(self, query: str, kind: Callable[..., T], /, **values: Any) -> list[T]:
        """The rows of the answer, each as one of this kind, made from its columns by name."""

    @abstractmethod
    async def change(self, query: str, /, **values: Any) -> int:
        """Run a statement without an answer. Returns how many rows it changed."""

    async def row(self, query: str, kind: Callable[..., T], /, **values: Any) -> T | None:
        return next(iter(await self.rows(query, kind, **values)), None)

    async def column(self, query: str, /, **values: Any) -> list[Any]:
        """The only column of the answer."""
        return [one for (one,) in await self.tuples(query, **values)]


class Undo(Exception):
    """Raised within `Database.together`: roll the transaction back, and return this."""

    def __init__(self, result: Any) -> None:
        self.result = result


class Transaction(Statements):
    """Runs statements within one transaction."""

    @abstractmethod
    async def change_all(self, query: str, rows: Sequence[msgspec.Struct], /) -> int:
        """Run a statement once for each of these. Returns how many rows that changed."""

    @abstractmethod
    async def lock(self, query: str, /, **values: Any) -> None:
        """Keep other processes away until the transaction ends, if others write at all."""


class Database(Statements):
    """Runs each statement in a transaction of its own. A statement that asks may not write."""

    queries: Mapping[str, str]
    """The statements by name, as their files have them."""

    @abstractmethod
    async def returned(self, query: str, /, **values: Any) -> list[Any]:
        """The rows that a statement returns which writes, each as a tuple."""

    @abstractmethod
    async def composed(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """The answer to a statement that was put together from named ones, as tuples."""

    @abstractmethod
    async def scan(
        self, query: str, job: Callable[[Rows], Coroutine[Any, Any, T]], /, **values: Any
    ) -> T:
        """Run a job over the rows of the answer, of which only a few are in memory at a time. It
        waits for nothing but the next row, and may run again from the first one.
        """

    @abstractmethod
    async def together(
        self, job: Callable[[Transaction], Coroutine[Any, Any, T]], *, is_long: bool = False
    ) -> T:
        """Run a job in one transaction. It waits for nothing but its statements, and may run again
        if the transaction failed. If it raises `Undo`, nothing is written.
        """


_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_WITHIN = re.compile(r"/\* (\w+) \*/")
PARAMETER = re.compile(r"(?<!:):(\w+)")
"""A parameter in a statement; its group is the name. `::` is a cast."""


def read_queries(package: str, *, tables: str) -> dict[str, str]:
    """The statements of a store: those for every store, and those of its own package.

    The former call a table `noetl.NAME`; `tables` is how its name begins in this store. All of them
    compare with a list by `= ANY(:list)`; what is shared compares without case by `ILIKE`.
    """
    shared = [text.replace("noetl.", tables) for text in _sql_files(__package__)]
    return named(*shared, *_sql_files(package))


def _sql_files(package: str) -> list[str]:
    found = [file for file in files(package).iterdir() if file.name.endswith(".sql")]
    return [file.read_text(encoding="utf-8") for file in found]


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
