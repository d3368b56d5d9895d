"""Tables as files. DuckDB reads and writes every format.

Rows come as CSV (see `tables.types`) or in one of the common formats: CSV, JSON, NDJSON, Parquet,
Arrow. Everything runs in a thread, in memory that does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec

from noetl.tools.failures import Failed
from noetl.tools.plain_data import NotPlain, plain
from noetl.tools.sql.duckdb import bounded, literal
from noetl.tools.sql.rows import quoted
from noetl.tools.sql.threads import Halt
from noetl.tools.tables.types import Column, Kinds, line_of, of_duckdb, to_duckdb

READERS = {
    "csv": "read_csv_auto",
    "json": "read_json_auto",
    "ndjson": "read_ndjson_auto",
    "parquet": "read_parquet",
}
WIDE = 2 * 1024 * 1024
"""Bytes of a line that DuckDB expects by default."""
ROWS_AT_A_TIME = 10_000
PREVIEW_ROWS = 5


class TableFile(NamedTuple):
    """A table in a file."""

    path: Path
    form: str
    columns: tuple[Column, ...]
    rows: int
    preview: list[dict[str, Any]]


class Lines(NamedTuple):
    """Rows as lines of CSV in a file, and what is needed to read them."""

    path: Path
    columns: tuple[Column, ...]
    widest: int = 0
    """Bytes of the longest line."""


def reading(lines: Lines, form: str = "") -> str:
    """A query over the lines, with every column in its own type; for JSON, what that cannot carry
    is text.
    """
    listed = ", ".join(
        f"{literal(name)}: {literal('VARCHAR' if type_ == 'BLOB' else to_duckdb(type_))}"
        for name, type_ in lines.columns
    )
    shown = ", ".join(_shown(column, form) for column in lines.columns)
    # DuckDB would take a carriage return inside the quotes of the first line for the end of lines.
    return (
        f"SELECT {shown} FROM read_csv({literal(str(lines.path))}, columns = {{{listed}}}, "  # noqa: S608
        "header = false, auto_detect = false, delim = ',', quote = '\"', escape = '\"', "
        "new_line = '\\n', allow_quoted_nulls = false, "
        f"max_line_size = {max(WIDE, lines.widest + 1)})"
    )


def _shown(column: Column, form: str) -> str:
    name = quoted(column.name)
    if column.type == "BLOB":
        return f"unhex(substr({name}, 3)) AS {name}"
    if column.type in ("FLOAT", "DOUBLE") and form in ("json", "ndjson"):
        return f"if(isfinite({name}), to_json({name}), to_json({name}::VARCHAR)) AS {name}"
    return name


@contextmanager
def converter(folder: Path, halt: Halt | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory that spills into `folder`. Faults of files are `parse` errors."""
    try:
        with bounded(folder, halt) as connection:
            yield connection
    except duckdb.InterruptException:
        raise InterruptedError("the task was stopped") from None
    except duckdb.Error as error:
        text = str(error).strip()
        raise Failed("not_found" if "No files found" in text else "parse", text) from None


# --- Writing -----------------------------------------------------------------------------------


def write(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    path: Path,
    form: str,
    values: Any = None,
    *,
    header: bool = True,
    delimiter: str = ",",
) -> int:
    """Write the rows of a query in this format. Returns how many. `values` are bound to the
    query.
    """
    if form == "arrow":
        return _write_arrow(connection, query, path, values)
    how = {
        "csv": f"FORMAT csv, HEADER {literal(header)}, DELIMITER {literal(delimiter)}",
        "json": "FORMAT json, ARRAY true",
        "ndjson": "FORMAT json",
        "parquet": "FORMAT parquet",
    }[form]
    command = f"COPY ({query}) TO {literal(str(path))} ({how})"
    found = connection.execute(command, values).fetchone()
    return int(found[0]) if found else 0


def _write_arrow(connection: duckdb.DuckDBPyConnection, query: str, path: Path, values: Any) -> int:
    arrow = arrow_library()
    rows = 0
    reader = connection.sql(query, params=values).to_arrow_reader(ROWS_AT_A_TIME)
    with arrow.ipc.new_file(str(path), reader.schema) as file:
        for batch in reader:
            file.write_batch(batch)
            rows += batch.num_rows
    return rows


def arrow_library() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise Failed(
            "not_found",
            "Arrow files need the package pyarrow, which is not installed on this worker. Run "
            "`pip install 'noetl[arrow]'` there, or take Parquet, which needs nothing.",
        ) from None
    return pyarrow


def file_of(
    columns: Sequence[str],
    portions: Iterator[Sequence[Sequence[Any]]],
    folder: Path,
    form: str,
    halt: Halt,
) -> TableFile:
    """The rows of a query, as they arrive, as a file; never all of them in memory."""
    path, widest = folder / "rows.csv", 0
    kinds = Kinds(columns)
    with path.open("w", encoding="utf-8", newline="") as file:
        for portion in portions:
            kinds.see(portion)
            for line in map(line_of, portion):
                widest = max(widest, len(line))
                file.write(line)
    # A character may take four bytes.
    lines = Lines(path, kinds.columns(), widest * 4)
    return converted(lines, folder / f"table.{form}", form, halt)


def converted(lines: Lines, path: Path, form: str, halt: Halt) -> TableFile:
    """The table in these lines, as a file of that format."""
    with converter(path.parent, halt) as connection:
        rows = write(connection, reading(lines), path, form)
    return described(path, form, rows)


def described(path: Path, form: str, rows: int) -> TableFile:
    """A table file with its columns and first rows."""
    with opened(path, form) as (connection, query):
        first = connection.execute(f"{query} LIMIT {PREVIEW_ROWS}")
        columns = [Column(c[0], of_duckdb(str(c[1]))) for c in connection.description or []]
        names = [column.name for column in columns]
        rows_shown = parsed(first.fetchall(), connection.description or [])
        shown = [dict(zip(names, row, strict=True)) for row in rows_shown]
    return TableFile(path, form, tuple(columns), rows, plain(shown, "database"))


# --- Reading -----------------------------------------------------------------------------------


@contextmanager
def opened(path: Path, form: str) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """A connection and the query that reads the whole file."""
    with converter(path.parent) as connection:
        yield connection, f"SELECT * FROM {source(connection, path, form)}"  # noqa: S608 - quoted


def source(
    connection: duckdb.DuckDBPyConnection, path: Path | str, form: str, name: str = "arrow"
) -> str:
    """The FROM expression that reads a file. An Arrow file is registered with the connection."""
    if form == "arrow":
        arrow = arrow_library()
        table = arrow.ipc.open_file(arrow.memory_map(str(path))).read_all()
        connection.register(name, table)
        return quoted(name)
    if form not in READERS:
        raise Failed("client_error", f'A file of the form "{form}" holds no rows.')
    return f"{READERS[form]}({literal(str(path))})"


def rows_of(path: Path, form: str) -> Iterator[dict[str, Any]]:
    """The rows as mappings, read as they are needed."""
    with opened(path, form) as (connection, query):
        connection.execute(query)
        columns = connection.description or []
        names = [column[0] for column in columns]
        while portion := connection.fetchmany(ROWS_AT_A_TIME):
            for row in parsed(portion, columns):
                yield dict(zip(names, row, strict=True))


def parsed(rows: list[Any], columns: Sequence[Any]) -> list[Any]:
    """The rows with JSON columns parsed; DuckDB returns them as text."""
    documents = [n for n, column in enumerate(columns) if str(column[1]) == "JSON"]
    if not documents:
        return rows
    changed = [list(row) for row in rows]
    for row in changed:
        for column in documents:
            if row[column] is not None:
                try:
                    row[column] = msgspec.json.decode(row[column])
                except msgspec.DecodeError as error:
                    raise NotPlain(f"holds JSON that cannot be read: {error}") from None
    return changed
