"""Runs SQL in DuckDB in threads, over files and attached databases."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from noetl.model.duration import seconds
from noetl.model.outcome import ErrorKind, Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.duckdb import Attach, DuckDb
from noetl.tools.running.limits import shortest
from noetl.tools.running.pg_credentials import BadCredential, parameters
from noetl.tools.running.plain import NotPlain
from noetl.tools.running.resources import ToolResources
from noetl.tools.running.sql_tables import Write, batches, insert, misfit, quoted
from noetl.tools.running.sql_tasks import (
    NOTHING,
    Failed,
    Plan,
    Statement,
    is_ours,
    joined,
    known_failure,
    planned,
    result,
    table,
)
from noetl.tools.running.sql_text import BadSql, Bound, first_word, tokens
from noetl.tools.running.sql_threads import Halt, in_thread

VARIABLES_MAX = 20_000
ROWS_PER_LOOK = 10_000
READERS = {
    "read_csv_auto": (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz"),
    "read_json_auto": (".json", ".ndjson", ".jsonl", ".json.gz", ".ndjson.gz"),
    "read_parquet": (".parquet", ".parq"),
}
EXTENSIONS = {"postgres": "postgres", "sqlite": "sqlite", "mysql": "mysql"}
KINDS: tuple[tuple[type[duckdb.Error], ErrorKind], ...] = (
    (duckdb.ConstraintException, "db_constraint"),
    (duckdb.TransactionException, "db_deadlock"),
    (duckdb.HTTPException, "db_connection"),
    (duckdb.ConnectionException, "db_connection"),
    (duckdb.OutOfMemoryException, "db_connection"),
    (duckdb.PermissionException, "auth"),
)


async def run(config: DuckDb, context: ToolContext) -> Outcome:
    halt = Halt(seconds(config.timeout) if config.timeout is not None else None)
    total = shortest(context.timeout)
    try:
        task = Task(
            config=config,
            plan=await planned(config, context, "duckdb"),
            path=await _database(config, context),
            attached={n: await _attached(one, context) for n, one in config.attach.items()},
            resources=context.resources,
        )
        return await in_thread(context.resources.threads, task.run, halt, total)
    except TimeoutError:
        return failed("timeout", f"The task took longer than {total:g} seconds.", retryable=True)
    except BadCredential as error:
        return failed("auth", str(error))
    except Exception as error:
        outcome = known_failure(error)
        if outcome is None:
            raise
        return outcome


async def _database(config: DuckDb, context: ToolContext) -> Path | None:
    written = config.database
    if config.auth is not None:
        fields = await context.credential(config.auth)
        written = written or fields.get("database") or fields.get("path")
        if written is None:
            raise Failed(
                "auth",
                "auth: the credential has no field `database`, and this version reads object "
                "stores without credentials only.",
            )
    return None if written in (None, ":memory:") else context.resources.path(str(written))


class Attached(msgspec.Struct, frozen=True):
    """A database to attach: where it is, and what of that must not be shown."""

    kind: str
    place: str
    read_only: bool
    secret: str = ""


async def _attached(written: Attach, context: ToolContext) -> Attached:
    if written.kind in ("sqlite", "duckdb"):
        if written.database is None:
            raise BadSql(f"attach: {written.kind} needs `database`, the path of its file.")
        path = str(context.resources.path(written.database))
        return Attached(written.kind, path, written.read_only)
    if written.auth is None:
        raise BadSql(f"attach: {written.kind} needs `auth`.")
    found = parameters(await context.credential(written.auth))
    if written.kind == "mysql":
        found["database"] = found.pop("dbname", "")
    place = " ".join(f"{name}={_escaped(value)}" for name, value in found.items() if value)
    return Attached(written.kind, place, written.read_only, found.get("password", ""))


def _escaped(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else "'" + value.replace("'", "''") + "'"


class Task:
    """All of one task, in its own thread on its own connection."""

    def __init__(
        self,
        *,
        config: DuckDb,
        plan: Plan,
        path: Path | None,
        attached: dict[str, Attached],
        resources: ToolResources,
    ) -> None:
        self._config = config
        self._plan = plan
        self._path = path
        self._attached = attached
        self._resources = resources

    def run(self, halt: Halt) -> Outcome:
        self._halt = halt
        try:
            with closing(self._opened()) as connection:
                halt.interrupt = connection.interrupt
                self._connection = connection
                self._prepare()
                return ok(result(self._transaction()))
        except duckdb.Error as error:
            raise self._failure(error) from None
        finally:
            halt.interrupt = None

    def _opened(self) -> duckdb.DuckDBPyConnection:
        if self._path is None:
            return duckdb.connect(":memory:")
        if self._config.read_only and not self._path.exists():
            raise Failed("not_found", f'The database "{self._config.database}" does not exist.')
        if not self._config.read_only:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        return duckdb.connect(str(self._path), read_only=self._config.read_only)

    # --- Before the first statement ---

    def _prepare(self) -> None:
        config, execute = self._config, self._connection.execute
        # What is not on this machine is fetched only when the task names it.
        execute("SET autoinstall_known_extensions = false")
        if config.memory_limit is not None:
            execute(f"SET memory_limit = {_literal(config.memory_limit)}")
        if config.threads is not None:
            execute(f"SET threads = {config.threads}")
        for name, value in config.settings.items():
            if not re.fullmatch(r"\w+", name):
                raise BadSql(f'settings: "{name}" is not the name of a setting.')
            execute(f"SET {name} = {_literal(value)}")
        needed = [EXTENSIONS[one.kind] for one in self._attached.values() if one.kind in EXTENSIONS]
        for extension in (*config.extensions, *needed):
            self._load(extension)
        for name, one in self._attached.items():
            self._attach(name, one)
        self._confine()
        for name, written in config.files.items():
            self._view(name, written)

    def _load(self, extension: str) -> None:
        if not re.fullmatch(r"\w+", extension):
            raise BadSql(f'extensions: "{extension}" is not the name of an extension.')
        try:
            self._connection.execute(f"LOAD {extension}")
        except duckdb.IOException:
            try:
                self._connection.execute(f"INSTALL {extension}; LOAD {extension}")
            except (duckdb.IOException, duckdb.HTTPException) as error:
                raise Failed(
                    "not_found",
                    f'The DuckDB extension "{extension}" is not on this worker and could not be '
                    f"fetched: {str(error).splitlines()[0]}",
                ) from None

    def _attach(self, name: str, one: Attached) -> None:
        options = [f"TYPE {one.kind}"] if one.kind != "duckdb" else []
        options += ["READ_ONLY"] if one.read_only else []
        how = f" ({', '.join(options)})" if options else ""
        try:
            self._connection.execute(f"ATTACH {_literal(one.place)} AS {quoted(name)}{how}")
        except duckdb.Error as error:
            text = str(error).replace(one.place, "…")
            if one.secret:
                text = text.replace(one.secret, "***")
            raise Failed("db_connection", f"attach {name}: {text}") from None

    def _confine(self) -> None:
        root = self._resources.rules.file_root
        if root is None:
            return
        real = _literal(str(Path(root).resolve()))
        self._connection.execute(f"SET allowed_directories = [{real}]")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def _view(self, name: str, written: str) -> None:
        is_remote = "://" in written and not written.startswith("file:")
        place = written if is_remote else str(self._resources.path(written))
        plain_name = written.lower().partition("?")[0]
        reader = next((r for r, ends in READERS.items() if plain_name.endswith(ends)), None)
        if reader is None:
            raise BadSql(f'files: "{written}" ends like no CSV, JSON or Parquet file.')
        self._connection.execute(
            f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS "  # noqa: S608 - quoted
            f"SELECT * FROM {reader}({_literal(place)})"
        )

    # --- The statements ---

    def _transaction(self) -> list[Statement]:
        plan = self._plan
        ours = [is_ours(number, plan, "duckdb") for number in range(len(plan.statements))]
        self._connection.execute("BEGIN")
        parts = [
            NOTHING if is_mark else self._statement(one)
            for one, is_mark in zip(plan.statements, ours, strict=True)
        ]
        if plan.write is not None:
            parts.append(self._written(plan.write))
        self._halt.check()
        self._connection.execute("COMMIT")
        return parts

    def _statement(self, one: Bound) -> Statement:
        with self._halt.statement():
            self._connection.execute(one.sql, one.values)
            described = self._connection.description or []
            rows: list[Any] = []
            while portion := self._connection.fetchmany(ROWS_PER_LOOK):
                rows += portion
                self._halt.check()
        columns = [column[0] for column in described]
        if columns == ["Success"] and not rows:
            return NOTHING
        if columns == ["Count"] and not _yields_rows(one.sql):
            return {**NOTHING, "row_count": rows[0][0] if rows else 0}
        documents = [n for n, column in enumerate(described) if str(column[1]) == "JSON"]
        return table(columns, _parsed(rows, documents), None)

    def _written(self, write: Write) -> Statement:
        self._connection.execute(f"SELECT * FROM {write.table} LIMIT 0")  # noqa: S608 - quoted
        known = [column[0] for column in self._connection.description or []]
        if problem := misfit(write, known):
            raise Failed("schema", problem)
        parts = []
        for batch in batches(write, VARIABLES_MAX):
            sql = insert(write, batch.columns, len(batch.rows), "?")
            parts.append(self._statement(Bound(sql, [v for row in batch.rows for v in row])))
        return joined(parts)

    def _failure(self, error: duckdb.Error) -> Exception:
        text = str(error).strip()
        if isinstance(error, duckdb.InterruptException):
            if self._halt.late:
                said = "A statement took longer than `timeout` and was stopped."
                return Failed("db_timeout", said)
            return InterruptedError("the task was stopped")
        for kind_of_error, kind in KINDS:
            if isinstance(error, kind_of_error):
                return Failed(kind, text)
        if isinstance(error, duckdb.IOException):
            return _io_failure(text)
        if "malformed" in text.lower() or "error when sniffing" in text.lower():
            return Failed("parse", text)
        return Failed("client_error", text)


def _io_failure(text: str) -> Exception:
    if "No files found" in text or "No such file" in text:
        return Failed("not_found", text)
    if "not a valid DuckDB" in text:
        return Failed("db_connection", text, retryable=False)
    return Failed("db_connection", text)


def _yields_rows(sql: str) -> bool:
    if first_word(sql, "duckdb") in ("SELECT", "FROM", "WITH", "VALUES", "TABLE", "SHOW"):
        return True
    return any(t.kind == "word" and t.text.upper() == "RETURNING" for t in tokens(sql, "duckdb"))


def _parsed(rows: list[Any], documents: list[int]) -> list[Any]:
    """The rows with JSON columns as values; DuckDB hands them out as text."""
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
