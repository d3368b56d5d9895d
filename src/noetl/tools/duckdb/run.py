"""Runs SQL in DuckDB in threads, over files and attached databases."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import msgspec

from noetl.model.outcome import Outcome
from noetl.tools.base import ToolContext
from noetl.tools.duckdb import DuckDb
from noetl.tools.duckdb.attached import (
    Attached,
    attach,
    attached,
    closed_in_the_end,
    hidden,
    kind_of,
    stoppable,
)
from noetl.tools.duckdb.extensions import load
from noetl.tools.files.formats import form_of
from noetl.tools.files.objects import is_object
from noetl.tools.limits import Gathering
from noetl.tools.sql.duckdb import (
    LOADS_UNNAMED,
    Instance,
    check_log,
    check_statement,
    check_stored,
    confine,
    connection_to,
    failure,
    literal,
    sharing,
    spill_to,
)
from noetl.tools.sql.rows import Batch, Write, insert, no_table, quoted
from noetl.tools.sql.tasks import (
    NOTHING,
    Database,
    Done,
    Statement,
    local_input,
    out_of_reach,
    run_in_thread,
    table,
)
from noetl.tools.sql.text import BadSql, Bound, Dialect, first_word, tokens
from noetl.tools.sql.threads import alone, database_of, prepare
from noetl.tools.tables.files import TableFile, described, parsed, source, write
from noetl.tools.web.request import Request

WEB = "HTTPFileSystem,S3FileSystem,HuggingFaceFileSystem"
"""DuckDB's own ways to other hosts, which ignore the egress policy; once disabled they stay so."""


async def run(config: DuckDb, context: ToolContext) -> Outcome:
    return await run_in_thread(Task(config, context))


class FileView(msgspec.Struct, frozen=True):
    """Rows that statements read by a name: the file and its format."""

    place: str
    form: str


async def _view(name: str, written: Any, config: DuckDb, context: ToolContext) -> FileView:
    """A file, an object, a result reference, or inline rows, which become a file."""
    file = context.files.find(written)
    if file is not None:
        return FileView(str(await context.files.local(file)), file.format or "")
    if not isinstance(written, str):
        rows = written.get("rows") if isinstance(written, dict) else written
        if not isinstance(rows, list | tuple):
            raise BadSql(f"files: {name} is neither a file nor a reference nor a list of rows.")
        path = context.files.folder / f"{len(list(context.files.folder.iterdir()))}.ndjson"
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        return FileView(str(path), "ndjson")
    form = form_of(written)
    if form is None:
        raise BadSql(f'files: "{written}" ends like no CSV, JSON, Parquet or Arrow file.')
    if written.startswith(("http://", "https://")):
        return FileView(str(await _downloaded(written, context)), form)
    if is_object(written) and set("*?[") & set(written):
        raise BadSql(f'files: "{written}" is a pattern; name each object, a pattern finds files.')
    return FileView(str(await local_input(written, config, context)), form)


async def _downloaded(url: str, context: ToolContext) -> Path:
    """A local copy of the object. DuckDB itself would follow any redirect."""
    from noetl.tools.web.client import run

    with out_of_reach():
        outcome = await run(Request(url=url, download=True), context)
    file = context.files.find(outcome.result["data"])
    assert file is not None  # it was stored just now
    return await context.files.local(file)


class Task(Database):
    """On a connection of its own."""

    dialect: Dialect = "duckdb"
    variables_max: ClassVar[int] = 20_000
    rows_per_look: ClassVar[int] = 10_000
    config: DuckDb

    async def prepare(self) -> None:
        config, context = self.config, self.context
        self.path = await database_of(config, context)
        self.attached = {n: await attached(n, one, context) for n, one in config.attach.items()}
        self.views = {n: await _view(n, one, config, context) for n, one in config.files.items()}
        self.there: dict[str, Attached] = {}
        """The databases attached so far."""

    def run(self) -> Done:
        halt = self.halt
        try:
            with ExitStack() as stack:
                if self.path is not None and self.rules.file_root is not None:
                    # What it may read is set for everyone who has the file open, and cannot be
                    # changed.
                    stack.enter_context(alone(self.path, halt))
                if self.path is not None:
                    prepare(self.path, self.config)
                needed = [one.kind for one in self.attached.values() if one.kind != "duckdb"]
                extensions = (*self.config.extensions, *needed)
                texts = (*self.config.settings, *(one.sql for one in self.plan.statements))
                extends = bool(extensions) or any(map(LOADS_UNNAMED.search, texts))
                shared = stack.enter_context(sharing(self.path, self.files.folder, extends=extends))
                read_only = self.path is not None and self.config.read_only
                self.connection = connection_to(self.path or ":memory:", read_only=read_only)
                stack.enter_context(closed_in_the_end(self.connection, self.there))
                for one in self.attached.values():
                    stack.enter_context(stoppable(one, halt))
                stack.enter_context(halt.stoppable(self.connection.interrupt))
                self._prepare(shared, extensions)
                return self.perform()
        except duckdb.Error as error:
            others = list(self.attached.values())
            told = kind_of(error) if others else None
            raise failure(error, halt, lambda text: hidden(text, others), told) from None

    # --- Before the first statement ---

    def _prepare(self, shared: Instance, extensions: tuple[str, ...]) -> None:
        config, execute = self.config, self.connection.execute
        # Nothing is fetched from the network, and only extensions that the task names are loaded.
        execute("SET autoinstall_known_extensions = false")
        execute("SET autoload_known_extensions = false")
        execute(f"SET disabled_filesystems = {literal(WEB)}")
        spill_to(self.connection, shared.spill)
        if config.memory_limit is not None:
            execute(f"SET memory_limit = {literal(config.memory_limit)}")
        if config.threads is not None:
            execute(f"SET threads = {config.threads}")
        own = [] if self.path is None else ["duckdb"]
        if extensions and shared.tasks > 1:
            check_stored(self.connection, own)
        for extension in extensions:
            load(self.connection, extension)
        # Files first: loading their extension must not contact any server.
        self._attach(on_server=False)
        if shared.is_extended:
            check_stored(self.connection, [*own, *(one.kind for one in self.there.values())])
        self._attach(on_server=True)
        confine(self.connection, self.rules.file_root, self.files.folder)
        # Some name files, so what is outside is closed before.
        for name, value in config.settings.items():
            if not re.fullmatch(r"\w+", name):
                raise BadSql(f'settings: "{name}" is not the name of a setting.')
            check_log(name, "settings")
            execute(f"SET {name} = {literal(value)}")
        if self.rules.file_root is not None:
            execute("SET lock_configuration = true")
        for name, view in self.views.items():
            place = source(self.connection, view.place, view.form, f"{name} (Arrow)")
            execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS FROM {place}")

    def _attach(self, *, on_server: bool) -> None:
        for name, one in self.attached.items():
            if one.on_server == on_server:
                attach(self.connection, name, one, self.halt)
                self.there[name] = one

    # --- What `perform` asks for ---

    def begin(self) -> None:
        self.connection.execute("BEGIN")

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def statement(self, one: Bound) -> Statement:
        check_statement(self.connection, one.sql)
        return self._executed(one)

    def _executed(self, one: Bound) -> Statement:
        with self.halt.statement():
            self.connection.execute(one.sql, one.values)
            described = self.connection.description or []
            found = Gathering(self.rules.max_response_bytes)
            while portion := self.connection.fetchmany(self.rows_per_look):
                found.take(portion)
                self.halt.check()
        rows = found.rows
        columns = [column[0] for column in described]
        if columns == ["Success"] and not rows:
            return NOTHING
        if columns == ["Count"] and not _yields_rows(one.sql):
            return {**NOTHING, "row_count": rows[0][0] if rows else 0}
        return table(columns, parsed(rows, described), None)

    def table_file(self, one: Bound) -> TableFile:
        form = self.config.result_as
        path = self.files.folder / f"table.{form}"
        check_statement(self.connection, one.sql)
        with self.halt.statement():
            rows = write(self.connection, one.sql, path, form, one.values)
        return described(path, form, rows)

    def columns(self, table: str) -> dict[str, bool]:
        try:
            self.connection.execute(f"SELECT * FROM {table} LIMIT 0")  # noqa: S608 - quoted
        except duckdb.CatalogException:
            raise no_table(table) from None
        described = self.connection.description or []
        self.connection.fetchall()
        return {column[0]: str(column[1]) == "BLOB" for column in described}

    def batch(self, write: Write, batch: Batch) -> Statement:
        columns, count = batch.columns, len(batch.rows)
        read = _as_json(batch)
        if read is not None:
            sql = insert(write, columns, count, "?", read.sql)
            return self._executed(Bound(sql, read.values))
        sql = insert(write, columns, count, "?")
        return self._executed(Bound(sql, [value for row in batch.rows for value in row]))


_TYPES: dict[type, str] = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", bytes: "BLOB"}
_INT64 = range(-(2**63), 2**63)


def _as_json(batch: Batch) -> Bound | None:
    """The rows as one bound JSON text, which DuckDB unpacks itself; None for values that JSON
    cannot hold exactly, or columns of mixed types.

    The library takes a third of a millisecond for each value that is bound by itself, because it
    looks for pandas each time.
    """
    types: list[str] = []
    for values in zip(*batch.rows, strict=True):
        found = {type_ for value in values if value is not None for type_ in [_type_of(value)]}
        if len(found) > 1 or "" in found:
            return None
        types.append(found.pop() if found else "VARCHAR")
    # Bytes are base64 in JSON.
    read = [f"from_base64(c{n})" if one == "BLOB" else f"c{n}" for n, one in enumerate(types)]
    shape = {f"c{n}": "VARCHAR" if one == "BLOB" else one for n, one in enumerate(types)}
    form = literal(msgspec.json.encode([shape]).decode())
    rows = [{f"c{n}": value for n, value in enumerate(row)} for row in batch.rows]
    return Bound(
        f"SELECT {', '.join(read)} FROM "  # noqa: S608 - nothing of the input is in it
        f"(SELECT unnest(from_json(?, {form}), recursive := true))",
        [msgspec.json.encode(rows).decode()],
    )


def _type_of(value: Any) -> str:
    """The DuckDB type of the value; empty if JSON cannot hold it exactly."""
    if isinstance(value, str):
        return "VARCHAR"
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, int) and value not in _INT64:
        return ""
    return _TYPES.get(type(value), "")


def _yields_rows(sql: str) -> bool:
    if first_word(sql, "duckdb") in ("SELECT", "FROM", "WITH", "VALUES", "TABLE", "SHOW"):
        return True
    return any(t.kind == "word" and t.text.upper() == "RETURNING" for t in tokens(sql, "duckdb"))
