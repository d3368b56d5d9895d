"""Runs SQL on SQLite files in threads; waits for locks can be stopped."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar, TypeVar

import msgspec

from noetl.model.duration import seconds
from noetl.model.outcome import Outcome
from noetl.tools.base import ToolContext
from noetl.tools.limits import size_in_bytes
from noetl.tools.plain_data import plain
from noetl.tools.sql.rows import Batch, Write, insert, names_in, no_table, quoted
from noetl.tools.sql.sqlite import connection_to, failure, keep_to_itself, known_instead
from noetl.tools.sql.tasks import NOTHING, Database, Done, Found, Statement, run_in_thread
from noetl.tools.sql.text import BadSql, Bound, Dialect, first_word
from noetl.tools.sql.threads import database_of, prepare
from noetl.tools.sqlite import Sqlite

LOCK_TICK_SECONDS = 0.02
READS = frozenset(["SELECT", "VALUES", "EXPLAIN", "PRAGMA"])
ALONE = frozenset(["VACUUM", "PRAGMA", "ATTACH", "DETACH"])
"""Statements that may not run in a transaction; a task with nothing else gets none."""

Value = TypeVar("Value")


async def run(config: Sqlite, context: ToolContext) -> Outcome:
    return await run_in_thread(Task(config, context))


class Task(Database):
    """On a connection of its own; waits for other writers can be stopped."""

    dialect: Dialect = "sqlite"
    variables_max: ClassVar[int] = 30_000
    config: Sqlite

    async def prepare(self) -> None:
        path = self.context.resources.path
        self.path = await database_of(self.config, self.context)
        self.attached = {name: path(text) for name, text in self.config.attach.items()}

    @property
    def verbs(self) -> list[str]:
        return [first_word(one.sql, "sqlite") for one in self.plan.statements]

    def run(self) -> Done:
        try:
            if self.path is not None:
                prepare(self.path, self.config)
            mode = "ro" if self.config.read_only else "rwc"
            connection = self.connection = connection_to(self.path, mode)
            with closing(connection), self.halt.stoppable(connection.interrupt):
                try:
                    self._prepare()
                    verbs = self.verbs
                    if verbs and self.plan.write is None and ALONE.issuperset(verbs):
                        return Done([self.statement(one) for one in self.plan.statements])
                    return self.perform()
                except sqlite3.OperationalError as error:
                    hint = known_instead(error, connection)
                    raise failure(error, self.halt, hint) from error
        except sqlite3.Error as error:
            raise failure(error, self.halt) from error

    def _prepare(self) -> None:
        execute = self.connection.execute
        if self.config.memory_limit is not None:
            kibibytes = max(1, size_in_bytes(self.config.memory_limit) // 1024)
            execute(f"PRAGMA cache_size = -{kibibytes}")
        for name, path in self.attached.items():
            execute(f"ATTACH ? AS {quoted(name)}", (str(path),))
        keep_to_itself(self.connection, self.rules.file_root)
        for name, value in self.config.pragmas.items():
            if not re.fullmatch(r"\w+", name):
                raise BadSql(f'pragmas: "{name}" is not the name of a pragma.')
            shown = int(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
            self._patiently(execute, f"PRAGMA {name} = {shown}")

    # --- What `perform` asks for ---

    def begin(self) -> None:
        reads = self.plan.write is None and READS.issuperset(self.verbs)
        self._patiently(self.connection.execute, "BEGIN" if reads else "BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._patiently(self.connection.execute, "COMMIT")

    def executed(self, one: Bound) -> Found:
        cursor = self._patiently(self.connection.execute, one.sql, _bindable(one.values))
        names = None if cursor.description is None else [one[0] for one in cursor.description]
        return Found(
            names, cursor.fetchmany, lambda: cursor.rowcount if cursor.rowcount >= 0 else None
        )

    def columns(self, table: str) -> dict[str, bool]:
        try:
            cursor = self.connection.execute(f"SELECT * FROM {table} LIMIT 0")  # noqa: S608 - quoted
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise no_table(table, error.sqlite_errorname) from None
        names = names_in(table)
        schema = names[-2] if len(names) > 1 else None
        declared = self.connection.execute(
            "SELECT name FROM pragma_table_info(?, ?) WHERE type LIKE 'blob'", (names[-1], schema)
        )
        binary = {name for (name,) in declared}
        return {column[0]: column[0] in binary for column in cursor.description}

    def batch(self, write: Write, batch: Batch) -> Statement:
        if write.returning is not False:
            sql = insert(write, batch.columns, len(batch.rows), "?")
            return self.statement(Bound(sql, [value for row in batch.rows for value in row]))
        sql = insert(write, batch.columns, 1, "?")
        with self.halt.statement():
            rows = [_bindable(row) for row in batch.rows]
            cursor = self._patiently(self.connection.executemany, sql, rows)
        return {**NOTHING, "row_count": cursor.rowcount}

    def _patiently(self, act: Callable[..., Value], *arguments: Any) -> Value:
        """Wait for other writers as long as the task allows, and stop at once if asked to."""
        end = time.monotonic() + (seconds(self.config.busy_timeout) or 0.0)
        while True:
            try:
                return act(*arguments)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                    raise
            self.halt.check()
            time.sleep(LOCK_TICK_SECONDS)


def _bindable(values: Any) -> Any:
    """SQLite has text, numbers and NULL; lists and mappings are stored as JSON text."""
    if values is None:
        return ()
    if isinstance(values, dict):
        return {name: _one(value) for name, value in values.items()}
    return [_one(value) for value in values]


def _one(value: Any) -> Any:
    if isinstance(value, list | dict):
        return msgspec.json.encode(plain(value, "database")).decode()
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    return plain(value, "database")
