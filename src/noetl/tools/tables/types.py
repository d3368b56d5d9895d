"""Column types on their way from one database to another. Pure.

Types have DuckDB's names, with two additions: NUMERIC is a decimal of any size, and JSON also
stands for lists, structures and arrays. A value travels as text, in CSV that distinguishes NULL
(nothing) from an empty text (`""`); bytes as `\\x…`, JSON as JSON, everything else as its database
writes it and every other one reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from noetl.tools.sql.rows import quoted


class Column(NamedTuple):
    """A column's name and type."""

    name: str
    type: str = "VARCHAR"


# --- PostgreSQL --------------------------------------------------------------------------------

OF_POSTGRES = {
    16: "BOOLEAN",
    17: "BLOB",
    20: "BIGINT",
    21: "SMALLINT",
    23: "INTEGER",
    26: "BIGINT",
    114: "JSON",
    700: "FLOAT",
    701: "DOUBLE",
    1082: "DATE",
    1083: "TIME",
    1114: "TIMESTAMP",
    1184: "TIMESTAMPTZ",
    1186: "INTERVAL",
    1700: "NUMERIC",
    2950: "UUID",
    3802: "JSON",
}
"""By type number; arrays and rows are JSON, all others text."""
TO_POSTGRES = {
    "BOOLEAN": "boolean",
    "TINYINT": "smallint",
    "UTINYINT": "smallint",
    "SMALLINT": "smallint",
    "USMALLINT": "integer",
    "INTEGER": "integer",
    "UINTEGER": "bigint",
    "BIGINT": "bigint",
    "UBIGINT": "numeric",
    "HUGEINT": "numeric",
    "UHUGEINT": "numeric",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "NUMERIC": "numeric",
    "BLOB": "bytea",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamptz",
    "INTERVAL": "interval",
    "UUID": "uuid",
    "JSON": "jsonb",
}


def of_postgres(code: int, precision: int | None, scale: int | None) -> str:
    if code == 1700 and precision is not None and precision <= 38:
        return f"DECIMAL({precision},{scale or 0})"
    return OF_POSTGRES.get(code, "VARCHAR")


NESTED_TYPES = (
    "SELECT oid::int FROM pg_type WHERE oid = ANY(%s) AND (typcategory = 'A' OR typtype = 'c')"
)
"""Which of these types are arrays or rows."""


def columns_of_postgres(
    described: Iterable[Any], nested: Iterable[tuple[int]]
) -> tuple[Column, ...]:
    """The columns of a query, from its description and the answer to `NESTED_TYPES`."""
    codes = {code for (code,) in nested}
    return tuple(
        Column(
            c.name,
            "JSON" if c.type_code in codes else of_postgres(c.type_code, c.precision, c.scale),
        )
        for c in described
    )


def to_postgres(type_: str) -> str:
    return type_.lower() if type_.startswith("DECIMAL") else TO_POSTGRES.get(type_, "text")


def postgres_expression(name: str, type_: str) -> str:
    """The expression that yields this column in portable form."""
    column = quoted(name)
    if type_ == "JSON":
        return f"to_json({column})::text"
    if type_ == "INTERVAL":
        # PostgreSQL would write mixed signs in a form that only it understands.
        months = f"date_part('year', {column}) * 12 + date_part('month', {column})"
        clock = (
            f"date_part('hour', {column}) * 3600000000 + date_part('minute', {column}) * 60000000"
            f" + date_part('microseconds', {column})"
        )
        return (
            f"CASE WHEN {column} IS NOT NULL THEN format('%s months %s days %s microseconds', "
            f"({months})::bigint, date_part('day', {column})::bigint, ({clock})::bigint) END"
        )
    return column


# --- SQLite ------------------------------------------------------------------------------------

_SQLITE_NUMBERS = re.compile(r"BOOLEAN|U?(TINY|SMALL|BIG)?INT(EGER)?")


def to_sqlite(type_: str) -> str:
    if _SQLITE_NUMBERS.fullmatch(type_):
        return "INTEGER"
    if type_ in ("FLOAT", "DOUBLE"):
        return "REAL"
    if type_ == "NUMERIC" or type_.startswith("DECIMAL"):
        return "NUMERIC"
    return "BLOB" if type_ == "BLOB" else "TEXT"


# --- DuckDB ------------------------------------------------------------------------------------


def of_duckdb(written: str) -> str:
    if written.endswith("]") or written.startswith(("STRUCT", "MAP", "UNION", "VARIANT")):
        return "JSON"
    if written.startswith("TIMESTAMP"):
        return "TIMESTAMPTZ" if "WITH TIME ZONE" in written else "TIMESTAMP"
    if written.startswith(("ENUM", "BIT", "TIME WITH", "GEOMETRY")):
        return "VARCHAR"
    return written


def to_duckdb(type_: str) -> str:
    return "VARCHAR" if type_ == "NUMERIC" else type_


def duckdb_expression(name: str, written: str) -> str:
    """The expression that yields this column; `written` is its DuckDB type."""
    column = quoted(name)
    if written == "BLOB":
        return f"'\\x' || lower(hex({column}))"
    if of_duckdb(written) == "JSON" and written != "JSON":
        return f"CASE WHEN {column} IS NOT NULL THEN to_json({column})::VARCHAR END"
    return f"{column}::VARCHAR" if of_duckdb(written) == "VARCHAR" else column


# --- Values of Python --------------------------------------------------------------------------

_OF_VALUES: tuple[tuple[type, str], ...] = (
    (bool, "BOOLEAN"),
    (int, "BIGINT"),
    (float, "DOUBLE"),
    (bytes, "BLOB"),
    (dict, "JSON"),
    (list, "JSON"),
    (tuple, "JSON"),
    (Decimal, "NUMERIC"),
    (UUID, "UUID"),
    (timedelta, "INTERVAL"),
    (datetime, "TIMESTAMP"),
    (date, "DATE"),
    (time, "TIME"),
)


class Kinds:
    """The columns of rows that arrive in portions, each with the narrowest type for its values."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._found: list[set[str]] = [set() for _ in names]

    def know(self, columns: Iterable[Column]) -> None:
        """Merge the types of a portion."""
        for kinds, column in zip(self._found, columns, strict=True):
            kinds.add(column.type)

    def see(self, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            for kinds, value in zip(self._found, row, strict=True):
                if value is not None:
                    kinds.add(_type_of(value))

    def columns(self) -> tuple[Column, ...]:
        pairs = zip(self._names, self._found, strict=True)
        return tuple(Column(name, _common(kinds)) for name, kinds in pairs)


def _type_of(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return "TIMESTAMPTZ"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "NUMERIC"
    return next((name for kind, name in _OF_VALUES if isinstance(value, kind)), "VARCHAR")


def _common(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return "NUMERIC" if kinds and kinds <= {"BIGINT", "DOUBLE", "NUMERIC"} else "VARCHAR"


def line_of(row: Sequence[Any]) -> str:
    """A row of values as one line of CSV."""
    return ",".join([_text(value) for value in row]) + "\n"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal | UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, timedelta):
        microseconds = (value.seconds * 1_000_000) + value.microseconds
        return f"{value.days} days {microseconds} microseconds"
    if isinstance(value, datetime):
        text = value.isoformat(sep=" ")
    elif isinstance(value, dict | list | tuple):
        text = msgspec.json.encode(value).decode()
    else:
        text = str(value)
    return '"' + text.replace('"', '""') + '"'
