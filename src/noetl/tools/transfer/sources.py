"""Where records come from. Each source yields batches and can skip a number of records.

A source that is read again must yield the same records in the same order: a table does by its
primary key, a query by its own ORDER BY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin

import duckdb
import psycopg

from noetl.tools.failures import Failed
from noetl.tools.sql.duckdb import bounded, check_statement, confine, literal
from noetl.tools.sql.postgres import connected, ordered_by
from noetl.tools.sql.rows import quoted_table
from noetl.tools.sql.sqlite import BUSY_SECONDS, connection_to, keep_to_itself
from noetl.tools.sql.text import BadSql, Dialect, bound, statements
from noetl.tools.sql.threads import Halt
from noetl.tools.tables.files import source
from noetl.tools.tables.types import (
    NESTED_TYPES,
    Column,
    columns_of_postgres,
    duckdb_expression,
    of_duckdb,
    postgres_expression,
)
from noetl.tools.transfer import FromHttp, FromSql, InFile, InStore, Paging
from noetl.tools.transfer.batches import Batches, of_lines, of_records, of_rows

Ask = Callable[[Mapping[str, Any]], Any]
"""Sends one request of kind http. Returns the decoded body. Raises Failed."""
SPOOL = "COPY (SELECT {shown} FROM {place}{behind}) TO {path} (FORMAT csv, HEADER false)"
COPY_OUT = "COPY (SELECT {shown} FROM ({query}) AS records{behind}) TO STDOUT (FORMAT csv)"


class Wanted(NamedTuple):
    """What to read of a source, and how."""

    mapping: Mapping[str, str]
    """Renames columns, or omits some."""
    size: int
    """Records of a batch."""
    skip: int
    """Records that an earlier attempt has read."""
    folder: Path
    """For temporary files."""
    halt: Halt
    root: str | None
    """The directory of the files that tasks may use; None for all files."""

    @property
    def behind(self) -> str:
        """The clause that skips what was read before."""
        return f" OFFSET {self.skip}" if self.skip else ""

    def columns(self, known: list[str]) -> list[tuple[str, str]]:
        """Pairs of the name in the target and the name in the source."""
        if not self.mapping:
            return [(name, name) for name in known]
        for wanted, name in self.mapping.items():
            if name not in known:
                raise Failed(
                    "schema",
                    f'mapping: there is no column "{name}" for "{wanted}". The source has '
                    f"{', '.join(known)}.",
                )
        return list(self.mapping.items())


def query_of(end: FromSql, dialect: Dialect) -> tuple[str, Any]:
    """The query of a source and the values bound to it."""
    if (end.command is None) == (end.table is None):
        raise BadSql("source: write either `command` or `table`.")
    if end.table is not None:
        return f"SELECT * FROM {quoted_table(end.table)}", None  # noqa: S608 - quoted
    found = statements(end.command or "", dialect)
    if len(found) != 1:
        raise BadSql("source: `command` must be one query.")
    [one] = bound(found, end.params, dialect)
    return one.sql, one.values


# --- PostgreSQL --------------------------------------------------------------------------------


def from_postgres(end: FromSql, login: Mapping[str, str], wanted: Wanted) -> Batches:
    query, values = query_of(end, "postgres")
    with connected(login, wanted.halt) as connection:
        # One snapshot of the data, however long reading takes; and a scan that starts at the
        # beginning.
        connection.execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL synchronize_seqscans = off"
        )
        text = psycopg.ClientCursor(connection).mogrify(query, values)
        if end.table is not None:
            text += ordered_by(connection, quoted_table(end.table))
        described = _described(connection, text)
        shown = [(name, old, described[old]) for name, old in wanted.columns(list(described))]
        columns = tuple(Column(name, type_) for name, _, type_ in shown)
        expressions = ", ".join(postgres_expression(old, type_) for _, old, type_ in shown)
        command = COPY_OUT.format(shown=expressions, query=text, behind=wanted.behind)
        with connection.cursor().copy(command.encode()) as copy:
            yield from of_lines(columns, copy, wanted.size)
            wanted.halt.check()


def _described(connection: psycopg.Connection[Any], query: str) -> dict[str, str]:
    cursor = connection.execute(f"SELECT * FROM ({query}) AS records LIMIT 0".encode())  # noqa: S608
    found = cursor.description or []
    nested = connection.execute(NESTED_TYPES, [[column.type_code for column in found]]).fetchall()
    return dict(columns_of_postgres(found, nested))


# --- DuckDB and files --------------------------------------------------------------------------


def from_duckdb(end: FromSql, connection: duckdb.DuckDBPyConnection, wanted: Wanted) -> Batches:
    query, values = query_of(end, "duckdb")
    check_statement(connection, query)
    yield from _spooled(connection, f"({query})", values, wanted)


def from_file(end: InFile | InStore, path: Path, form: str, wanted: Wanted) -> Batches:
    with bounded(wanted.folder, wanted.halt) as connection:
        if isinstance(end, InFile):
            # Its path may be a pattern.
            confine(connection, wanted.root, wanted.folder)
        if form == "csv":
            how = f"header = {literal(end.header)}, delim = {literal(end.delimiter)}"
            place = f"read_csv({literal(str(path))}, {how})"
        else:
            place = source(connection, path, form)
        yield from _spooled(connection, place, None, wanted)


def _spooled(
    connection: duckdb.DuckDBPyConnection, place: str, values: Any, wanted: Wanted
) -> Batches:
    """Through a file: DuckDB writes CSV far faster than it returns values."""
    connection.execute(f"SELECT * FROM {place} LIMIT 0", values)  # noqa: S608 - the author's own
    types = {column[0]: str(column[1]) for column in connection.description or []}
    connection.fetchall()
    shown = wanted.columns(list(types))
    columns = tuple(Column(name, of_duckdb(types[old])) for name, old in shown)
    expressions = ", ".join(duckdb_expression(old, types[old]) for _, old in shown)
    path = wanted.folder / "spool.csv"
    spool = SPOOL.format(
        shown=expressions, place=place, behind=wanted.behind, path=literal(str(path))
    )
    connection.execute(spool, values)
    with path.open("rb") as file:
        yield from of_lines(columns, _records(file), wanted.size)
    path.unlink()


def _records(lines: Any) -> Iterator[bytes]:
    """Lines of CSV, joined if a line break is inside quotes."""
    pending, inside = b"", False
    for line in lines:
        if line.count(b'"') % 2:
            inside = not inside
        pending = pending + line if pending else line
        if not inside:
            yield pending
            pending = b""


# --- SQLite ------------------------------------------------------------------------------------


def from_sqlite(end: FromSql, database: Path, wanted: Wanted) -> Batches:
    query, values = query_of(end, "sqlite")
    connection = connection_to(database, "ro", BUSY_SECONDS)
    with closing(connection), wanted.halt.stoppable(connection.interrupt):
        keep_to_itself(connection, wanted.root)
        cursor = connection.execute(query, values or ())
        known = [column[0] for column in cursor.description or []]
        shown = wanted.columns(known)
        places = [known.index(old) for _, old in shown]
        rows = ([row[place] for place in places] for row in islice(cursor, wanted.skip, None))
        yield from of_rows([name for name, _ in shown], rows, wanted.size)


# --- Web services ------------------------------------------------------------------------------


def from_http(end: FromHttp, ask: Ask, wanted: Wanted) -> Batches:
    first, left = 0, wanted.skip
    paging = end.paging
    if paging is not None and paging.size_param is not None and not (paging.next or paging.more):
        # Pages of a known size can be skipped without reading them. With `more` a page may be
        # short, and others follow.
        first, left = divmod(wanted.skip, paging.size)
    yield from of_records(_read(end, ask, first), wanted.mapping, wanted.size, left)


def _read(end: FromHttp, ask: Ask, first: int) -> Iterator[Any]:
    asked = ("method", "url", "params", "headers", "json", "auth")
    request: dict[str, Any] = {name: getattr(end, name) for name in asked}
    request["params"] = dict(end.params)
    paging = end.paging
    if paging is not None and paging.next is None:
        request["params"][paging.param] = paging.start + first
    if paging is not None and paging.size_param is not None:
        request["params"][paging.size_param] = paging.size
    page = first
    while True:
        answer = ask(request)
        records = _at(answer, end.records)
        if not isinstance(records, list):
            where = f'at "{end.records}" of the answer' if end.records else "in the answer"
            raise Failed("schema", f"source: there is no list of records {where}.")
        yield from records
        page += 1
        if paging is None or not _goes_on(paging, request, answer, records, page):
            return


def _goes_on(
    paging: Paging, request: dict[str, Any], answer: Any, records: list[Any], page: int
) -> bool:
    """Turn the request into that for the next page. Returns whether there is one."""
    if paging.max_pages is not None and page >= paging.max_pages:
        return False
    if paging.more is not None and not _at(answer, paging.more):
        return False
    if paging.next is None:
        request["params"][paging.param] = paging.start + page
        short = paging.size_param is not None and len(records) < paging.size
        return bool(records) and not (short and paging.more is None)
    cursor = _at(answer, paging.next)
    if not cursor:
        return False
    if isinstance(cursor, str) and (cursor.startswith("/") or "://" in cursor):
        request["url"] = urljoin(request["url"], cursor)
        # The address is complete; parameters would be duplicated.
        request["params"] = {}
    else:
        request["params"][paging.param] = cursor
    return True


def _at(value: Any, path: str | None) -> Any:
    for step in path.split(".") if path else ():
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
