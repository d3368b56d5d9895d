"""Where records go. A batch and the mark of how far the transfer is are written in one
transaction, so that whoever goes on after a crash goes on exactly behind it.

A file cannot do that: it appears when all of it is there, and begins anew if it did not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import duckdb
import psycopg

from noetl.tools.running.batches import Batch
from noetl.tools.running.failures import Failed
from noetl.tools.running.plain import plain
from noetl.tools.running.sql_tables import Misfit, Write, insert, quoted, quoted_table
from noetl.tools.running.sql_threads import Halt
from noetl.tools.running.table_types import Column, Kinds, to_duckdb, to_postgres, to_sqlite
from noetl.tools.running.tables import Lines, parsed, reading, write
from noetl.tools.running.transfer_sources import opened_duckdb
from noetl.tools.transfer import InFile, InStore, ToHttp, ToSql

MARKS = "noetl_transfer"
"""The table that remembers how far each transfer is."""


class Mark(NamedTuple):
    """How far a transfer is."""

    records: int = 0
    batches: int = 0
    done: bool = False


class Target(Protocol):
    """An end that takes batches."""

    def mark(self) -> Mark:
        """How far an earlier attempt came."""

    def write(self, batch: Batch, reached: Mark) -> None:
        """Write a batch, all of it or nothing, and where that brings us."""

    def finish(self, reached: Mark) -> None:
        """All is written."""


class Table:
    """What the SQL targets share: names, and the statements that are the same everywhere."""

    def __init__(self, end: ToSql, action_id: str, resume: bool) -> None:
        self.end = end
        self.table = quoted_table(end.table)
        self.key = (end.key,) if isinstance(end.key, str) else (end.key or ())
        if end.mode == "upsert" and not self.key:
            raise Failed("client_error", "target: `mode: upsert` needs `key`.")
        self.action_id = action_id
        self.resume = resume

    def definition(self, columns: tuple[Column, ...], name_of: Callable[[str], str]) -> str:
        listed = [f"{quoted(name)} {name_of(type_)}" for name, type_ in columns]
        if self.key:
            listed.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in self.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.table} ({', '.join(listed)})"

    def misfit(self, batch: Batch, known: list[str]) -> None:
        for name in batch.names:
            if name not in known:
                raise Misfit(
                    f'The records have "{name}", which is not a column of {self.table}. Its '
                    f"columns are {', '.join(known)}. Say with `mapping` what goes where."
                )
        for name in self.key:
            if name not in batch.names:
                raise Misfit(f'The records lack "{name}", a column of the key.')

    def conflict(self, names: list[str]) -> str:
        """What to do with a record whose key exists, as the end of an INSERT."""
        target = f" ({', '.join(quoted(name) for name in self.key)})" if self.key else ""
        if self.end.mode == "ignore":
            return f" ON CONFLICT{target} DO NOTHING"
        if self.end.mode != "upsert":
            return ""
        rest = [quoted(name) for name in names if name not in self.key]
        change = ", ".join(f"{name} = EXCLUDED.{name}" for name in rest)
        return f" ON CONFLICT{target} DO " + (f"UPDATE SET {change}" if rest else "NOTHING")

    def wipes(self, reached: Mark, count: int) -> bool:
        """Whether this is the moment to empty the table: before the first record."""
        return self.end.mode == "replace" and reached.records == count


MARKS_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {MARKS} (action_id {{text}} PRIMARY KEY, "
    "records BIGINT NOT NULL, batches BIGINT NOT NULL, done BOOLEAN NOT NULL)"
)
READ_MARK = f"SELECT records, batches, done FROM {MARKS} WHERE action_id = "  # noqa: S608
KEEP_MARK = (
    f"INSERT INTO {MARKS} (action_id, records, batches, done) VALUES ({{m}}, {{m}}, {{m}}, {{m}}) "  # noqa: S608
    "ON CONFLICT (action_id) DO UPDATE SET records = EXCLUDED.records, "
    "batches = EXCLUDED.batches, done = EXCLUDED.done"
)


# --- PostgreSQL --------------------------------------------------------------------------------


class ToPostgres(Table):
    """By COPY; where keys may exist already, by way of a temporary table."""

    def __init__(
        self, end: ToSql, action_id: str, resume: bool, connection: psycopg.Connection[Any]
    ) -> None:
        super().__init__(end, action_id, resume)
        self._connection = connection
        self._arrays: dict[str, str] = {}
        self._known: list[str] = []

    def mark(self) -> Mark:
        if not self.resume:
            return Mark()
        # Two workers may come here at once; the lock makes the second find it there.
        self._connection.execute(
            f"BEGIN; SELECT pg_advisory_xact_lock(hashtext('{MARKS}')); "
            f"{MARKS_TABLE.format(text='text')}; COMMIT".encode()
        )
        row = self._connection.execute(f"{READ_MARK}%s".encode(), [self.action_id]).fetchone()
        return Mark(*row) if row else Mark()

    def write(self, batch: Batch, reached: Mark) -> None:
        with self._connection.transaction():
            if not self._known:
                self._look(batch)
            self.misfit(batch, self._known)
            if self.wipes(reached, batch.count):
                self._connection.execute(f"DELETE FROM {self.table}".encode())  # noqa: S608
            nested = [c.name for c in batch.columns if c.type == "JSON" and c.name in self._arrays]
            if self.end.mode in ("upsert", "ignore") or nested:
                self._staged(batch, nested)
            else:
                self._copy(self.table, batch)
            self._keep(reached)

    def finish(self, reached: Mark) -> None:
        with self._connection.transaction():
            if self.wipes(reached, 0):
                self._connection.execute(f"DELETE FROM {self.table}".encode())  # noqa: S608
            self._keep(reached._replace(done=True))

    def _keep(self, reached: Mark) -> None:
        if self.resume:
            values = [self.action_id, *reached]
            self._connection.execute(KEEP_MARK.format(m="%s").encode(), values)

    def _look(self, batch: Batch) -> None:
        if self.end.create:
            self._connection.execute(self.definition(batch.columns, to_postgres).encode())
        found = self._connection.execute(f"SELECT * FROM {self.table} LIMIT 0".encode())  # noqa: S608
        described = found.description or []
        self._known = [column.name for column in described]
        arrays = self._connection.execute(
            "SELECT oid::int, format_type(oid, NULL) FROM pg_type "
            "WHERE oid = ANY(%s) AND typcategory = 'A'",
            [[column.type_code for column in described]],
        ).fetchall()
        named = dict(arrays)
        self._arrays = {c.name: named[c.type_code] for c in described if c.type_code in named}

    def _copy(self, table: str, batch: Batch) -> None:
        names = ", ".join(quoted(name) for name in batch.names)
        command = f"COPY {table} ({names}) FROM STDIN (FORMAT csv)"
        with self._connection.cursor().copy(command.encode()) as copy:
            copy.write(batch.lines)

    def _staged(self, batch: Batch, nested: list[str]) -> None:
        names = [quoted(name) for name in batch.names]
        listed = ", ".join(
            f"NULL::jsonb AS {quoted(name)}" if name in nested else quoted(name)
            for name in batch.names
        )
        self._connection.execute(
            f"CREATE TEMP TABLE noetl_stage ON COMMIT DROP AS SELECT {listed} FROM {self.table} "  # noqa: S608
            "LIMIT 0; ALTER TABLE noetl_stage ADD noetl_place bigserial".encode()
        )
        self._copy("noetl_stage", batch)
        shown = ", ".join(
            _array(name, self._arrays[name]) if name in nested else quoted(name)
            for name in batch.names
        )
        once = ""
        order = "noetl_place"
        if self.end.mode == "upsert":
            # One statement may not touch a row twice. The last one is what would remain.
            keys = ", ".join(quoted(name) for name in self.key)
            once, order = f"DISTINCT ON ({keys}) ", f"{keys}, noetl_place DESC"
        self._connection.execute(
            f"INSERT INTO {self.table} ({', '.join(names)}) SELECT {once}{shown} FROM noetl_stage "  # noqa: S608
            f"ORDER BY {order}{self.conflict(batch.names)}".encode()
        )


def _array(name: str, type_: str) -> str:
    column = quoted(name)
    elements = f"ARRAY(SELECT jsonb_array_elements_text({column}))::{type_}"
    return f"CASE WHEN jsonb_typeof({column}) = 'array' THEN {elements} END"


# --- DuckDB ------------------------------------------------------------------------------------


class ToDuckDb(Table):
    """DuckDB reads the lines by itself."""

    def __init__(
        self,
        end: ToSql,
        action_id: str,
        resume: bool,
        connection: duckdb.DuckDBPyConnection,
        folder: Path,
    ) -> None:
        super().__init__(end, action_id, resume)
        self._connection = connection
        self._folder = folder
        self._known: list[str] = []

    def mark(self) -> Mark:
        if not self.resume:
            return Mark()
        self._connection.execute(MARKS_TABLE.format(text="VARCHAR"))
        row = self._connection.execute(f"{READ_MARK}?", [self.action_id]).fetchall()
        return Mark(*row[0]) if row else Mark()

    def write(self, batch: Batch, reached: Mark) -> None:
        with self._transaction():
            if not self._known:
                self._look(batch)
            self.misfit(batch, self._known)
            if self.wipes(reached, batch.count):
                self._connection.execute(f"DELETE FROM {self.table}")  # noqa: S608 - quoted
            names = ", ".join(quoted(name) for name in batch.names)
            query = reading(batch.saved(self._folder))
            if self.end.mode == "upsert":
                # One statement may not touch a row twice. The last one is what would remain.
                keys = ", ".join(quoted(name) for name in self.key)
                query = (
                    f"SELECT {names} FROM (SELECT *, row_number() OVER () AS noetl_place "  # noqa: S608
                    f"FROM ({query})) QUALIFY row_number() OVER (PARTITION BY {keys} "
                    "ORDER BY noetl_place DESC) = 1"
                )
            self._connection.execute(
                f"INSERT INTO {self.table} ({names}) {query}{self.conflict(batch.names)}"
            )
            self._keep(reached)

    def finish(self, reached: Mark) -> None:
        with self._transaction():
            if self.wipes(reached, 0):
                self._connection.execute(f"DELETE FROM {self.table}")  # noqa: S608 - quoted
            self._keep(reached._replace(done=True))

    def _keep(self, reached: Mark) -> None:
        if self.resume:
            self._connection.execute(KEEP_MARK.format(m="?"), [self.action_id, *reached])

    def _look(self, batch: Batch) -> None:
        if self.end.create:
            self._connection.execute(self.definition(batch.columns, to_duckdb))
        self._connection.execute(f"SELECT * FROM {self.table} LIMIT 0")  # noqa: S608 - quoted
        self._known = [column[0] for column in self._connection.description or []]
        self._connection.fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        yield
        self._connection.execute("COMMIT")


# --- SQLite ------------------------------------------------------------------------------------


class ToSqlite(Table):
    """Row by row, which SQLite does best."""

    def __init__(
        self,
        end: ToSql,
        action_id: str,
        resume: bool,
        connection: sqlite3.Connection,
        reader: Reader,
    ) -> None:
        super().__init__(end, action_id, resume)
        self._connection = connection
        self._reader = reader
        self._known: list[str] = []

    def mark(self) -> Mark:
        if not self.resume:
            return Mark()
        self._connection.execute(MARKS_TABLE.format(text="TEXT"))
        row = self._connection.execute(f"{READ_MARK}?", [self.action_id]).fetchone()
        return Mark(row[0], row[1], bool(row[2])) if row else Mark()

    def write(self, batch: Batch, reached: Mark) -> None:
        rows = self._reader.rows(batch, _sqlite_expression)
        with self._transaction():
            if not self._known:
                self._look(batch)
            self.misfit(batch, self._known)
            if self.wipes(reached, batch.count):
                self._connection.execute(f"DELETE FROM {self.table}")  # noqa: S608 - quoted
            mode = "insert" if self.end.mode == "replace" else self.end.mode
            form = Write(table=self.table, rows=(), mode=mode, key=self.key)
            self._connection.executemany(insert(form, batch.names, 1, "?"), rows)
            self._keep(reached)

    def finish(self, reached: Mark) -> None:
        with self._transaction():
            if self.wipes(reached, 0):
                self._connection.execute(f"DELETE FROM {self.table}")  # noqa: S608 - quoted
            self._keep(reached._replace(done=True))

    def _keep(self, reached: Mark) -> None:
        if self.resume:
            self._connection.execute(KEEP_MARK.format(m="?"), [self.action_id, *reached])

    def _look(self, batch: Batch) -> None:
        if self.end.create:
            self._connection.execute(self.definition(batch.columns, to_sqlite))
        found = self._connection.execute(f"SELECT * FROM {self.table} LIMIT 0")  # noqa: S608
        self._known = [column[0] for column in found.description]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        yield
        self._connection.execute("COMMIT")


def _sqlite_expression(column: Column) -> str:
    """Numbers and bytes as they are, moments in RFC 3339, all else as text."""
    name = quoted(column.name)
    if column.type == "TIMESTAMPTZ":
        return f"strftime({name}, '%Y-%m-%dT%H:%M:%S.%fZ')"
    if column.type == "TIMESTAMP":
        return f"strftime({name}, '%Y-%m-%dT%H:%M:%S.%f')"
    is_number = to_sqlite(column.type) in ("INTEGER", "REAL", "BLOB")
    return name if is_number else f"{name}::VARCHAR"


class Reader:
    """Makes values of lines, with a DuckDB of its own."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder

    def rows(self, batch: Batch, shown: Callable[[Column], str]) -> list[tuple[Any, ...]]:
        query = reading(batch.saved(self._folder))
        listed = ", ".join(shown(column) for column in batch.columns)
        return self._connection.execute(f"SELECT {listed} FROM ({query})").fetchall()  # noqa: S608

    def records(self, batch: Batch) -> list[dict[str, Any]]:
        self._connection.execute(reading(batch.saved(self._folder)))
        columns = self._connection.description or []
        rows = parsed(self._connection.fetchall(), columns)
        return [dict(zip(batch.names, plain(list(row), "database"), strict=True)) for row in rows]


# --- Files and web services --------------------------------------------------------------------


class ToFile:
    """Lines gather beside the file; at the end DuckDB makes the file of them."""

    def __init__(
        self, end: InFile | InStore, path: Path, form: str, folder: Path, halt: Halt
    ) -> None:
        self._end = end
        self._path = path
        self._form = form
        self._folder = folder
        self._halt = halt
        self._names: list[str] = []
        self._kinds: Kinds | None = None
        self._widest = 0
        self._lines = folder / "gathered.csv"

    def mark(self) -> Mark:
        return Mark()

    def write(self, batch: Batch, reached: Mark) -> None:
        if self._kinds is None:
            self._names, self._kinds = batch.names, Kinds(batch.names)
        if sorted(batch.names) != sorted(self._names):
            strange = sorted(set(batch.names) ^ set(self._names))[0]
            raise Misfit(
                f'"{strange}" is a column of some records and not of others, but a file has the '
                "same columns for all. Name the columns you want with `mapping`."
            )
        if batch.names != self._names:
            raise Misfit("The columns of the records change their order; name them by `mapping`.")
        self._kinds.know(batch.columns)
        self._widest = max(self._widest, batch.widest)
        with self._lines.open("ab") as file:
            file.write(batch.lines)

    def finish(self, reached: Mark) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.partial")
        try:
            if self._kinds is None:
                self._empty(partial)
            else:
                with opened_duckdb(None, self._folder, self._halt) as connection:
                    lines = Lines(self._lines, self._kinds.columns(), self._widest)
                    write(
                        connection,
                        reading(lines),
                        partial,
                        self._form,
                        header=self._end.header,
                        delimiter=self._end.delimiter,
                    )
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)

    def _empty(self, path: Path) -> None:
        if self._form == "parquet":
            raise Failed("schema", "There are no records, and a Parquet file needs columns.")
        path.write_text("[]\n" if self._form == "json" else "")


class ToService:
    """One request for each batch, with a key of its own that makes repeats harmless."""

    def __init__(
        self, end: ToHttp, send: Callable[[Mapping[str, Any], int], Any], reader: Reader
    ) -> None:
        self._end = end
        self._send = send
        self._reader = reader

    def mark(self) -> Mark:
        return Mark()

    def write(self, batch: Batch, reached: Mark) -> None:
        records: Any = self._reader.records(batch)
        request = {
            "method": self._end.method,
            "url": self._end.url,
            "headers": self._end.headers,
            "json": {self._end.records: records} if self._end.records else records,
            "auth": self._end.auth,
        }
        self._send(request, reached.batches)

    def finish(self, reached: Mark) -> None:
        return
