"""Writes rows to a table: which statements, in which batches. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from noetl.tools.failures import Failed, Foreseen
from noetl.tools.sql.config import WriteMode
from noetl.tools.sql.text import BadSql

Row = dict[str, Any]
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
NO_KEY = (
    "The columns of `key` (or of ON CONFLICT) must be the primary key or a unique index of the"
    " table: create one with CREATE UNIQUE INDEX, or name the columns of the one that it has."
)
"""The remedy for a database that cannot tell whether a row is there already."""


def no_table(table: str, code: str | None = None) -> Failed:
    """The failure of a task that writes rows to a table that is not there."""
    said = f"There is no table {table}. Make it in the same task, where statements run before rows"
    return Failed(
        "client_error", f"{said} are written: `command: CREATE TABLE IF NOT EXISTS …`.", code=code
    )


class JsonText(str):
    """A text that is JSON, because `tojson` made it."""

    __slots__ = ()


class Write(NamedTuple):
    """What to write where."""

    table: str
    """Quoted, ready for use in a statement."""
    rows: Iterable[Row]
    mode: WriteMode = "insert"
    key: tuple[str, ...] = ()
    returning: tuple[str, ...] | bool = False
    batch_size: int = 1000


class Misfit(Foreseen):
    """A row does not fit its table; the text says which and why."""

    kind = "schema"


class Batch(NamedTuple):
    """Rows with the same columns, in their given order."""

    columns: tuple[str, ...]
    rows: list[list[Any]]


def quoted(name: str) -> str:
    """A quoted name, safe for any content."""
    if "\0" in name:
        raise BadSql("A name cannot hold a NUL character.")
    return '"' + name.replace('"', '""') + '"'


def quoted_table(written: str) -> str:
    """`schema.table`, with each part quoted."""
    parts: list[str] = []
    at = 0
    while found := _PART.match(written, at):
        parts.append((found.group(1) or "").replace('""', '"') or found.group(2).strip())
        at = found.end() + 1
        if written[found.end() : at] not in (".", ""):
            break
    if not parts or at <= len(written) or not all(parts):
        raise BadSql(f'"{written}" is not the name of a table.')
    return ".".join(quoted(part) for part in parts)


def names_in(table: str) -> list[str]:
    """The names in a quoted table."""
    return [part.replace('""', '"') for part in table[1:-1].split('"."')]


def batches(write: Write, variables_max: int, known: Sequence[str]) -> Iterator[Batch]:
    """The rows in portions, none with more values than the database takes in one statement.

    Raises Misfit for a row that does not fit the `known` columns of the table.
    """
    columns: tuple[str, ...] = ()
    rows: list[Row] = []
    for number, row in enumerate(write.rows):
        if problem := _misfit(write, number, row, known):
            raise Misfit(problem)
        full = len(rows) >= max(1, min(write.batch_size, variables_max // max(1, len(columns))))
        if rows and (tuple(row) != columns or full):
            yield Batch(columns, _values(write, columns, rows))
            rows = []
        columns = tuple(row)
        rows.append(row)
    if rows:
        yield Batch(columns, _values(write, columns, rows))


def _values(write: Write, columns: tuple[str, ...], rows: list[Row]) -> list[list[Any]]:
    if write.mode == "upsert":
        # One statement may not touch a row twice; the last one would win.
        last = {repr([row.get(name) for name in write.key]): row for row in rows}
        rows = list(last.values())
    return [[row[name] for name in columns] for row in rows]


def with_bytes(batch: Batch, binary: Collection[str]) -> Batch:
    """The batch with text in these columns decoded to bytes. Raises Misfit."""
    places = [place for place, name in enumerate(batch.columns) if name in binary]
    for row in batch.rows:
        for place in places:
            if isinstance(row[place], str):
                row[place] = decoded_bytes(row[place], batch.columns[place])
    return batch


def decoded_bytes(text: str, column: str) -> bytes:
    """Results show bytes as base64; PostgreSQL itself writes them as hex after `\\x`."""
    try:
        if text.startswith("\\x"):
            return bytes.fromhex(text[2:])
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Misfit(
            f'A row has a text for "{column}", a column of bytes, that is neither base64 nor '
            "hex behind \\x. Encode it, e.g. with the filter b64encode."
        ) from None


def insert(
    write: Write, columns: Sequence[str], count: int = 1, mark: str = "?", select: str | None = None
) -> str:
    """The statement that writes `count` rows, with `mark` for each value; with `select`, the one
    that writes the rows of this query.
    """

    def name(one: str) -> str:
        return quoted(one).replace("%", "%%") if mark == "%s" else quoted(one)

    one = f"({', '.join([mark] * len(columns))})"
    table = write.table.replace("%", "%%") if mark == "%s" else write.table
    # Names are quoted, values are bound: no input becomes SQL.
    rows = select or f"VALUES {', '.join([one] * count)}"
    sql = f"INSERT INTO {table} ({', '.join(map(name, columns))}) {rows}"
    sql += on_conflict(write, columns, name)
    if isinstance(write.returning, tuple) and write.returning:
        return f"{sql} RETURNING {', '.join(map(name, write.returning))}"
    return sql if write.returning is False else f"{sql} RETURNING *"


def on_conflict(write: Write, columns: Sequence[str], name: Callable[[str], str]) -> str:
    """The clause for a row whose key exists; empty if that is to fail. `name` quotes a column."""
    if write.mode == "insert":
        return ""
    target = f" ({', '.join(map(name, write.key))})" if write.key else ""
    rest = [name(one) for one in columns if one not in write.key and write.mode == "upsert"]
    change = ", ".join(f"{one} = EXCLUDED.{one}" for one in rest)
    return f" ON CONFLICT{target} DO " + (f"UPDATE SET {change}" if rest else "NOTHING")


def _misfit(write: Write, number: int, row: Row, known: Sequence[str]) -> str | None:
    if not row:
        return f"rows[{number}] is empty."
    for name in row:
        if name not in known:
            return (
                f'rows[{number}] has "{name}", which is not a column of {write.table}. '
                f"Its columns are {', '.join(known)}."
            )
    if write.mode == "upsert" and not all(name in row for name in write.key):
        return f"rows[{number}] lacks a column of the key ({', '.join(write.key)})."
    return None
