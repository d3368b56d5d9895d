"""Bulk data by COPY: rows of a task, and files of the worker, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import Literal

from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed
from noetl.tools.files.results import arriving
from noetl.tools.limits import to_thread
from noetl.tools.postgres import Copy
from noetl.tools.sql.rows import quoted
from noetl.tools.sql.tasks import NOTHING, Statement
from noetl.tools.sql.text import BadSql
from noetl.tools.sql.threads import Halt, in_thread
from noetl.tools.tables.types import NESTED_TYPES, Column, columns_of_postgres, postgres_expression

if TYPE_CHECKING:
    from noetl.tools.tables.files import TableFile

CHUNK = 256 * 1024
Connection = psycopg.AsyncConnection[Any]


async def copy_rows(
    connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> Statement:
    """Copy rows that are plainly inserted."""
    names = ", ".join(quoted(name) for name in columns)
    cursor = connection.cursor()
    async with cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy:
        for row in rows:
            await copy.write_row(row)
    return {**NOTHING, "row_count": cursor.rowcount}


async def copy_in(connection: Connection, table: str, how: Copy, path: Path) -> Statement:
    """Copy a file into a table."""
    cursor = connection.cursor()
    try:
        file = await to_thread(path.open, "rb")
    except FileNotFoundError:
        raise Failed("not_found", f'copy: the file "{how.source}" does not exist.') from None
    with file:
        command = f"COPY {table}{_columns(how)} FROM STDIN {_options(how)}"
        async with cursor.copy(command.encode()) as copy:
            while data := await to_thread(file.read, CHUNK):
                await copy.write(data)
    return {**NOTHING, "row_count": cursor.rowcount}


async def copy_out(connection: Connection, what: str, how: Copy, path: Path) -> Statement:
    """Copy a table, or a query in parentheses, into a file, which is complete or absent."""
    cursor = connection.cursor()
    columns = "" if what.startswith("(") else _columns(how)
    with arriving(path) as partial, await to_thread(partial.open, "wb") as file:
        command = f"COPY {what}{columns} TO STDOUT {_options(how)}"
        async with cursor.copy(command.encode()) as copy:
            async for data in copy:
                file.write(data)
    return {**NOTHING, "row_count": cursor.rowcount}


async def copy_to_table_file(
    connection: Connection, query: str, form: str, context: ToolContext
) -> TableFile:
    """Copy the rows of a query into a file of that format."""
    from noetl.tools.tables.files import Lines, converted

    # Parquet has no negative intervals; as text (ISO 8601) all of them survive.
    columns = tuple(
        column._replace(type="VARCHAR") if column.type == "INTERVAL" else column
        for column in await columns_of_query(connection, query)
    )
    shown = ", ".join(postgres_expression(name, type_) for name, type_ in columns)
    command = f"COPY (SELECT {shown} FROM ({query}) AS wanted) TO STDOUT (FORMAT csv)"  # noqa: S608
    folder = context.files.folder
    path, widest = folder / "rows.csv", 0
    with await to_thread(path.open, "wb") as file:
        async with connection.cursor().copy(command.encode()) as copy:
            async for data in copy:
                widest = max(widest, len(data))
                file.write(data)
    halt, lines = Halt(None), Lines(path, columns, widest)
    table = partial(converted, lines, folder / f"table.{form}", form, halt)
    return await in_thread(context.resources.threads, table, halt, None)


async def columns_of_query(connection: Connection, query: str) -> tuple[Column, ...]:
    limited = f"SELECT * FROM ({query}) AS wanted LIMIT 0"  # noqa: S608 - the author's own query
    cursor = await connection.execute(limited.encode())
    found = cursor.description or []
    nested = await connection.execute(NESTED_TYPES, [[column.type_code for column in found]])
    return columns_of_postgres(found, await nested.fetchall())


def _columns(how: Copy) -> str:
    return f" ({', '.join(quoted(name) for name in how.columns)})" if how.columns else ""


def _options(how: Copy) -> str:
    options = [f"FORMAT {how.format}"]
    if how.format == "binary" and (how.delimiter is not None or how.null_as is not None):
        raise BadSql("copy: `format: binary` has neither `delimiter` nor `null_as`.")
    if how.format == "csv":
        options.append(f"HEADER {str(how.header).lower()}")
    if how.delimiter is not None:
        options.append(f"DELIMITER {Literal(how.delimiter).as_string()}")
    if how.null_as is not None:
        options.append(f"NULL {Literal(how.null_as).as_string()}")
    return f"WITH ({', '.join(options)})"
