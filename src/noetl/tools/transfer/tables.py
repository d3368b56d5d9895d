"""Tables as targets of a transfer.

A batch and the progress of the transfer are written in one transaction, so that an attempt after a
crash continues exactly there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from noetl.tools.failures import Failed
from noetl.tools.sql.rows import Misfit, Write, insert, quoted, quoted_table
from noetl.tools.tables.files import reading
from noetl.tools.tables.types import Column, to_duckdb, to_postgres, to_sqlite
from noetl.tools.transfer import ToSql
from noetl.tools.transfer.batches import Batch
from noetl.tools.transfer.targets import Mark, Reader

MARKS = "noetl_transfer"
"""The table with the progress of each transfer."""
MARKS_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {MARKS} (action_id {{text}} PRIMARY KEY, "
    "records BIGINT NOT NULL, batches BIGINT NOT NULL, done BOOLEAN NOT NULL)"
)
READ_MARK = f"SELECT records, batches, done FROM {MARKS} WHERE action_id = {{m}}"  # noqa: S608
KEEP_MARK = (
    f"INSERT INTO {MARKS} (action_id, records, batches, done) VALUES ({{m}}, {{m}}, {{m}}, {{m}}) "  # noqa: S608
    "ON CONFLICT (action_id) DO UPDATE SET records = EXCLUDED.records, "
    "batches = EXCLUDED.batches, done = EXCLUDED.done"
)


class Table:
    """The common part of all databases; each writes a batch in its own way."""

    placeholder = "?"
    type_of: Callable[[str], str]
    """The database's name of a column type."""

    def __init__(self, end: ToSql, mark_id: str | None, connection: Any) -> None:
        """`mark_id` is the name of its progress; None: it is not kept."""
        self.end = end
        self.connection = connection
        self.table = quoted_table(end.table)
        self.key = (end.key,) if isinstance(end.key, str) else (end.key or ())
        if end.mode == "upsert" and not self.key:
            raise Failed("client_error", "target: `mode: upsert` needs `key`.")
        self.form = Write(
            table=self.table,
            rows=(),
            mode="insert" if end.mode == "replace" else end.mode,
            key=self.key,
        )
        self._mark_id = mark_id
        self._known: list[str] = []

    # --- Of each database ---

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement. Returns an object with `fetchone`."""
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def make_marks(self) -> None:
        self.execute(MARKS_TABLE.format(text=self.type_of("VARCHAR")))

    def columns(self) -> list[str]:
        """The columns of the table, in order."""
        raise NotImplementedError

    def insert(self, batch: Batch) -> None:
        raise NotImplementedError

    # --- A target ---

    def mark(self) -> Mark:
        if self._mark_id is None:
            return Mark()
        self.make_marks()
        query = READ_MARK.format(m=self.placeholder)
        row = self.execute(query, [self._mark_id]).fetchone()
        return Mark(row[0], row[1], bool(row[2])) if row else Mark()

    def write(self, batch: Batch, reached: Mark) -> None:
        with self.transaction():
            if not self._known:
                if self.end.create:
                    self.execute(self._definition(batch.columns))
                self._known = self._columns()
            self._check(batch)
            self._wipe(reached, batch.count)
            self.insert(batch)
            self._keep(reached)

    def _columns(self) -> list[str]:
        try:
            return self.columns()
        except (psycopg.errors.UndefinedTable, duckdb.CatalogException, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and "no such table" not in str(error):
                raise
            told = f"target: there is no table {self.table}. With `create: true` it is made."
            raise Failed("not_found", told) from None

    def finish(self, reached: Mark) -> None:
        with self.transaction():
            self._wipe(reached, 0)
            self._keep(reached._replace(done=True))

    def _keep(self, reached: Mark) -> None:
        if self._mark_id is not None:
            self.execute(KEEP_MARK.format(m=self.placeholder), [self._mark_id, *reached])

    def _wipe(self, reached: Mark, count: int) -> None:
        """Empty the table before the first record, if requested."""
        if self.end.mode == "replace" and reached.records == count:
            self.execute(f"DELETE FROM {self.table}")  # noqa: S608

    def _definition(self, columns: tuple[Column, ...]) -> str:
        listed = [f"{quoted(name)} {self.type_of(type_)}" for name, type_ in columns]
        if self.key:
            listed.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in self.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.table} ({', '.join(listed)})"

    def _check(self, batch: Batch) -> None:
        for name in batch.names:
            if name not in self._known:
                raise Misfit(
                    f'The records have "{name}", which is not a column of {self.table}. Its '
                    f"columns are {', '.join(self._known)}. Say with `mapping` what goes where."
                )
        for name in self.key:
            if name not in batch.names:
                raise Misfit(f'The records lack "{name}", a column of the key.')


# --- PostgreSQL --------------------------------------------------------------------------------


class ToPostgres(Table):
    """By COPY; if keys may already exist, through a temporary table."""

    placeholder = "%s"
    type_of = staticmethod(to_postgres)

    connection: psycopg.Connection[Any]
    _arrays: dict[str, str]
    """Of the columns that are arrays, the types."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        return self.connection.execute(sql.encode(), values or None)

    def transaction(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()

    def make_marks(self) -> None:
        # Two workers may do this at the same time; with the lock, the second finds the table.
        self.execute(
            f"BEGIN; SELECT pg_advisory_xact_lock(hashtext('{MARKS}')); "
            f"{MARKS_TABLE.format(text='text')}; COMMIT"
        )

    def columns(self) -> list[str]:
        described = self.execute(f"SELECT * FROM {self.table} LIMIT 0").description or []  # noqa: S608
        named = dict(
            self.execute(
                "SELECT oid::int, format_type(oid, NULL) FROM pg_type "
                "WHERE oid = ANY(%s) AND typcategory = 'A'",
                [[column.type_code for column in described]],
            ).fetchall()
        )
        self._arrays = {c.name: named[c.type_code] for c in described if c.type_code in named}
        return [column.name for column in described]

    def insert(self, batch: Batch) -> None:
        nested = [c.name for c in batch.columns if c.type == "JSON" and c.name in self._arrays]
        if self.end.mode in ("upsert", "ignore") or nested:
            self._staged(batch, nested)
        else:
            self._copy(self.table, batch)

    def _copy(self, table: str, batch: Batch) -> None:
        names = ", ".join(quoted(name) for name in batch.names)
        command = f"COPY {table} ({names}) FROM STDIN (FORMAT csv)"
        with self.connection.cursor().copy(command.encode()) as copy:
            copy.write(batch.lines)

    def _staged(self, batch: Batch, nested: list[str]) -> None:
        listed = ", ".join(
            f"NULL::jsonb AS {quoted(name)}" if name in nested else quoted(name)
            for name in batch.names
        )
        self.execute(
            f"CREATE TEMP TABLE noetl_stage ON COMMIT DROP AS SELECT {listed} FROM {self.table} "  # noqa: S608
            "LIMIT 0; ALTER TABLE noetl_stage ADD noetl_place bigserial"
        )
        self._copy("noetl_stage", batch)
        shown = ", ".join(
            _array(name, self._arrays[name]) if name in nested else quoted(name)
            for name in batch.names
        )
        once = ""
        order = "noetl_place"
        if self.end.mode == "upsert":
            # One statement may not touch a row twice; the last one would win.
            keys = ", ".join(quoted(name) for name in self.key)
            once, order = f"DISTINCT ON ({keys}) ", f"{keys}, noetl_place DESC"
        staged = f"SELECT {once}{shown} FROM noetl_stage ORDER BY {order}"  # noqa: S608
        self.execute(insert(self.form, batch.names, select=staged))


def _array(name: str, type_: str) -> str:
    column = quoted(name)
    elements = f"ARRAY(SELECT jsonb_array_elements_text({column}))::{type_}"
    return f"CASE WHEN jsonb_typeof({column}) = 'array' THEN {elements} END"


# --- DuckDB and SQLite -------------------------------------------------------------------------


class Embedded(Table):
    """A database in this process, with explicit transactions."""

    begin = "BEGIN"
    connection: duckdb.DuckDBPyConnection | sqlite3.Connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        return self.connection.execute(sql, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        # An open transaction is rolled back when the connection closes.
        self.execute(self.begin)
        yield
        self.execute("COMMIT")

    def columns(self) -> list[str]:
        found = self.execute(f"SELECT * FROM {self.table} LIMIT 0")  # noqa: S608
        names = [column[0] for column in found.description]
        found.fetchall()
        return names


class ToDuckDb(Embedded):
    """DuckDB reads the lines itself."""

    type_of = staticmethod(to_duckdb)

    def __init__(self, end: ToSql, mark_id: str | None, connection: Any, folder: Path) -> None:
        super().__init__(end, mark_id, connection)
        self._folder = folder

    def insert(self, batch: Batch) -> None:
        query = reading(batch.saved(self._folder))
        if self.end.mode == "upsert":
            # One statement may not touch a row twice; the last one would win.
            keys, names = (
                ", ".join(quoted(name) for name in listed) for listed in (self.key, batch.names)
            )
            query = (
                f"SELECT {names} FROM (SELECT *, row_number() OVER () AS noetl_place "  # noqa: S608
                f"FROM ({query})) QUALIFY row_number() OVER (PARTITION BY {keys} "
                "ORDER BY noetl_place DESC) = 1"
            )
        self.execute(insert(self.form, batch.names, select=query))


class ToSqlite(Embedded):
    """Row by row, which suits SQLite best."""

    begin = "BEGIN IMMEDIATE"
    type_of = staticmethod(to_sqlite)
    connection: sqlite3.Connection

    def __init__(self, end: ToSql, mark_id: str | None, connection: Any, reader: Reader) -> None:
        super().__init__(end, mark_id, connection)
        self._reader = reader

    def insert(self, batch: Batch) -> None:
        rows = self._reader.rows(batch, _sqlite_expression)
        self.connection.executemany(insert(self.form, batch.names), rows)


def _sqlite_expression(column: Column) -> str:
    """Numbers and bytes as they are, moments in RFC 3339, everything else as text."""
    name = quoted(column.name)
    if column.type == "TIMESTAMPTZ":
        return f"strftime({name}, '%Y-%m-%dT%H:%M:%S.%fZ')"
    if column.type == "TIMESTAMP":
        return f"strftime({name}, '%Y-%m-%dT%H:%M:%S.%f')"
    is_number = to_sqlite(column.type) in ("INTEGER", "REAL", "BLOB")
    return name if is_number else f"{name}::VARCHAR"
