"""Runs SQL on SQLite files in threads; waits for locks in a way that can be stopped."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from noetl.model.duration import seconds
from noetl.model.outcome import Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.running.limits import shortest
from noetl.tools.running.sql_tables import Batch, Write, batches, insert, misfit, quoted
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
from noetl.tools.running.sql_text import BadSql, Bound, first_word
from noetl.tools.running.sql_threads import Halt, in_thread
from noetl.tools.sqlite import Sqlite

VARIABLES_MAX = 30_000
LOCK_TICK_SECONDS = 0.02
ROWS_PER_LOOK = 1000
READS = frozenset(["SELECT", "VALUES", "EXPLAIN", "PRAGMA"])
ALONE = frozenset(["VACUUM", "PRAGMA", "ATTACH", "DETACH"])
"""What may not stand in a transaction; if a task has nothing else, it gets none."""
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

Value = TypeVar("Value")


async def run(config: Sqlite, context: ToolContext) -> Outcome:
    halt = Halt(seconds(config.timeout) if config.timeout is not None else None)
    total = shortest(context.timeout)
    try:
        path = await _database(config, context)
        attached = {name: context.resources.path(text) for name, text in config.attach.items()}
        plan = await planned(config, context, "sqlite")
        task = Task(config, plan, path, attached, context.resources.rules.file_root is not None)
        return await in_thread(context.resources.threads, task.run, halt, total)
    except TimeoutError:
        return failed("timeout", f"The task took longer than {total:g} seconds.", retryable=True)
    except Exception as error:
        outcome = known_failure(error)
        if outcome is None:
            raise
        return outcome


async def _database(config: Sqlite, context: ToolContext) -> Path | None:
    written = config.database
    if written is None and config.auth is not None:
        fields = await context.credential(config.auth)
        written = fields.get("database") or fields.get("path") or fields.get("dbname")
        if written is None:
            raise Failed("auth", "auth: the credential has no field `database`.")
    return None if written in (None, ":memory:") else context.resources.path(str(written))


class Task:
    """All of one task, in its own thread on its own connection."""

    def __init__(
        self,
        config: Sqlite,
        plan: Plan,
        path: Path | None,
        attached: dict[str, Path],
        confined: bool,
    ) -> None:
        self._config = config
        self._plan = plan
        self._path = path
        self._attached = attached
        self._confined = confined
        self._patience = seconds(config.busy_timeout) or 0.0

    def run(self, halt: Halt) -> Outcome:
        self._halt = halt
        try:
            with closing(self._opened()) as connection:
                halt.interrupt = connection.interrupt
                self._connection = connection
                self._prepare()
                return ok(result(self._transaction()))
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            halt.interrupt = None

    def _opened(self) -> sqlite3.Connection:
        if self._path is None:
            place = ":memory:"
        else:
            if self._config.read_only and not self._path.exists():
                raise Failed("not_found", f'The database "{self._config.database}" does not exist.')
            if not self._config.read_only:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            mode = "ro" if self._config.read_only else "rwc"
            place = f"file:{quote(str(self._path.absolute()))}?mode={mode}"
        return sqlite3.connect(
            place, uri=self._path is not None, isolation_level=None, check_same_thread=False
        )

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA busy_timeout = 0")
        if self._config.memory_limit is not None:
            execute(f"PRAGMA cache_size = -{max(1, _bytes(self._config.memory_limit) // 1024)}")
        for name, path in self._attached.items():
            execute(f"ATTACH ? AS {quoted(name)}", (str(path),))
        for name, value in self._config.pragmas.items():
            if not re.fullmatch(r"\w+", name):
                raise BadSql(f'pragmas: "{name}" is not the name of a pragma.')
            shown = int(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
            self._patiently(execute, f"PRAGMA {name} = {shown}")
        if self._confined:
            self._connection.set_authorizer(_no_other_files)

    def _transaction(self) -> list[Statement]:
        plan = self._plan
        words = [first_word(one.sql, "sqlite") for one in plan.statements]
        if words and plan.write is None and all(word in ALONE for word in words):
            return [self._statement(one) for one in plan.statements]
        reads = plan.write is None and all(word in READS for word in words)
        ours = [is_ours(number, plan, "sqlite") for number in range(len(plan.statements))]
        execute = self._connection.execute
        self._patiently(execute, "BEGIN" if reads else "BEGIN IMMEDIATE")
        parts = [
            NOTHING if is_mark else self._statement(one)
            for one, is_mark in zip(plan.statements, ours, strict=True)
        ]
        if plan.write is not None:
            parts.append(self._written(plan.write))
        self._halt.check()
        self._patiently(execute, "COMMIT")
        return parts

    def _statement(self, one: Bound) -> Statement:
        with self._halt.statement():
            cursor = self._patiently(self._connection.execute, one.sql, _bindable(one.values))
            if cursor.description is None:
                return {**NOTHING, "row_count": max(0, cursor.rowcount)}
            rows: list[Any] = []
            while portion := cursor.fetchmany(ROWS_PER_LOOK):
                rows += portion
                self._halt.check()
        wrote = cursor.rowcount if cursor.rowcount >= 0 else None
        return table([column[0] for column in cursor.description], rows, wrote)

    def _written(self, write: Write) -> Statement:
        cursor = self._connection.execute(f"SELECT * FROM {write.table} LIMIT 0")  # noqa: S608
        if problem := misfit(write, [column[0] for column in cursor.description]):
            raise Failed("schema", problem)
        return joined([self._batch(write, batch) for batch in batches(write, VARIABLES_MAX)])

    def _batch(self, write: Write, batch: Batch) -> Statement:
        if write.returning is not False:
            sql = insert(write, batch.columns, len(batch.rows), "?")
            return self._statement(Bound(sql, [value for row in batch.rows for value in row]))
        sql = insert(write, batch.columns, 1, "?")
        with self._halt.statement():
            rows = [_bindable(row) for row in batch.rows]
            cursor = self._patiently(self._connection.executemany, sql, rows)
        return {**NOTHING, "row_count": cursor.rowcount}

    def _patiently(self, act: Callable[..., Value], *arguments: Any) -> Value:
        """Wait for other writers as long as the task allows, but never longer than wanted."""
        end = time.monotonic() + self._patience
        while True:
            try:
                return act(*arguments)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                    raise
            self._halt.check()
            time.sleep(LOCK_TICK_SECONDS)

    def _failure(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", None) or 0
        name = getattr(error, "sqlite_errorname", None)
        text = f"SQLite: {error}."
        base = code & 0xFF
        if self._halt.late and base == sqlite3.SQLITE_INTERRUPT:
            return Failed("db_timeout", "A statement took longer than `timeout` and was stopped.")
        if base == sqlite3.SQLITE_CONSTRAINT:
            return Failed("db_constraint", text, code=name)
        if base in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            kind = "db_deadlock" if code == sqlite3.SQLITE_BUSY_SNAPSHOT else "db_timeout"
            return Failed(kind, text, code=name)  # type: ignore[arg-type]  # both are kinds
        if base in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
            return Failed("db_connection", text, code=name)
        if base in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return Failed("db_connection", text, code=name, retryable=False)
        if base in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PERM):
            return Failed("auth", text, code=name)
        return Failed("client_error", text, code=name)


def _no_other_files(action: int, first: str | None, *_: object) -> int:
    # An empty name is the temporary database that VACUUM needs.
    is_other = action == sqlite3.SQLITE_ATTACH and first != ""
    return sqlite3.SQLITE_DENY if is_other else sqlite3.SQLITE_OK


def _bindable(values: Any) -> Any:
    """SQLite knows texts, numbers and NULL; lists and mappings are kept as JSON text."""
    if values is None:
        return ()
    if isinstance(values, dict):
        return {name: _one(value) for name, value in values.items()}
    return [_one(value) for value in values]


def _one(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def _bytes(size: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B", size)
    assert found is not None, size
    number, unit, binary = found.groups()
    scale = 1024 ** " KMGT".index(unit) if binary else _SIZES[unit]
    return int(float(number) * scale)
