"""Runs a task's SQL on PostgreSQL in one transaction, and classifies its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import postgres
from psycopg.errors import Diagnostic, UndefinedTable
from psycopg.types.json import Jsonb

from noetl.model.outcome import Outcome, ok
from noetl.model.secrets import without_values
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of
from noetl.tools.failures import Failed, within
from noetl.tools.files.objects import is_object, store_and_key, stored
from noetl.tools.limits import Gathering, part, shortest, to_thread
from noetl.tools.plain_data import as_text
from noetl.tools.postgres import Postgres
from noetl.tools.postgres.connections import ALIVE_SECONDS, Connections
from noetl.tools.postgres.copy import copy_in, copy_out, copy_rows, copy_to_table_file
from noetl.tools.sql.postgres import BadCredential, failure, login_of
from noetl.tools.sql.rows import (
    JsonText,
    Write,
    batches,
    decoded_bytes,
    insert,
    no_table,
    quoted,
    quoted_table,
)
from noetl.tools.sql.tasks import (
    NOTHING,
    Done,
    Plan,
    Statement,
    is_ours,
    joined,
    local_input,
    out_of_reach,
    outcome_of,
    planned,
    table,
)
from noetl.tools.sql.text import BadSql, tokens

VARIABLES_MAX = 60_000
MANY_ROWS = 500
"""From this many rows on, COPY is worth its round trips."""
ROWS_PER_LOOK = 1000
READS = frozenset(["SELECT", "VALUES", "TABLE", "WITH"])
WRITES = frozenset(["INSERT", "UPDATE", "DELETE", "MERGE", "INTO"])
BYTEA = postgres.types["bytea"].oid
TEXTS = frozenset(postgres.types[name].oid for name in ("text", "varchar", "bpchar"))
MOST = {postgres.types[name].oid: 2.0**63 for name in ("int2", "int4", "int8")}
MOST |= dict.fromkeys(TEXTS, 1e15)
"""Whole numbers below this are written without a point into columns of these types."""
DOCUMENTS = frozenset([postgres.types["json"].oid, postgres.types["jsonb"].oid])
MARKS = "noetl_effect"
"""The table that remembers which effects have happened."""
WHERE_MARKS = """
    SELECT quote_ident(nspname)
      FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
     WHERE pg_class.oid = to_regclass('noetl_effect')
"""


class Stale(Exception):
    """A kept connection turned out to be dead before anything was done on it."""


async def run(config: Postgres, context: ToolContext) -> Outcome:
    if config.auth is None:
        raise BadCredential("auth: the task names no credential to connect with.")
    login = await login_of(await fields_of(config.auth, context))
    plan = await _planned(config, context)
    connections = context.resources.shared("postgres", Connections)
    try:
        async with within(shortest(context.timeout), "The task was not done within"):
            return await Task(config, context, plan, connections, login).run()
    except psycopg.Error as error:
        pg = {"code": error.sqlstate, "sqlstate": error.sqlstate}
        return Outcome(status="error", error=failure(error), pg=pg)
    except UnicodeEncodeError as error:
        raise Failed("schema", f"A value cannot be stored: {error}.") from None


async def _planned(config: Postgres, context: ToolContext) -> Plan:
    if config.copy is None:
        return await planned(config, context, "postgres")
    if isinstance(config.copy.source, dict) and context.files.find(config.copy.source) is None:
        raise BadSql("copy: `source` is not a reference to a file; give rows by `rows` instead.")
    if config.copy.source is not None and config.table is None:
        raise BadSql("copy: `source` needs `table`, the table to copy into.")
    if config.table is not None:
        return Plan([], None)
    return await planned(config, context, "postgres")


def _only_reads(sql: str) -> bool:
    """Whether a statement certainly yields rows and writes nothing."""
    words = [token.text.upper() for token in tokens(sql, "postgres") if token.kind == "word"]
    return words[:1] != [] and words[0] in READS and WRITES.isdisjoint(words)


class Earlier(NamedTuple):
    """An effect that had already happened, with its stored result."""

    result: Any


class Task(msgspec.Struct):
    """A whole task on one connection."""

    config: Postgres
    context: ToolContext
    plan: Plan
    connections: Connections
    login: dict[str, str]
    connection: psycopg.AsyncConnection[Any] = None  # type: ignore[assignment]  # while it runs
    marks: str = ""
    """The table of effects that have happened, with its schema."""

    __repr__ = without_values

    async def run(self) -> Outcome:
        try:
            return await self._on_connection(fresh=False)
        except Stale:
            return await self._on_connection(fresh=True)

    async def _on_connection(self, *, fresh: bool) -> Outcome:
        limit = part(self.context.timeout, "connect")
        connection = await self.connections.take(self.login, fresh=fresh, seconds=limit)
        self.connection = connection
        connection.add_notice_handler(self._notice)
        try:
            outcome = await self._all(fresh)
        except BaseException:
            # Its work stops with the connection, and nothing of it is committed.
            await connection.close()
            raise
        connection.remove_notice_handler(self._notice)
        await self.connections.give_back(self.login, connection)
        return outcome

    async def _all(self, fresh: bool) -> Outcome:
        once = self.config.effect == "once"
        if once and not self.config.transaction:
            raise BadSql("`effect: once` needs the transaction that `transaction: false` forgoes.")
        await self._begin(fresh)
        if once and (earlier := await self._mark()) is not None:
            await self.connection.execute("ROLLBACK")
            return ok(earlier.result)
        done = await self._parts()
        found = await outcome_of(done, self.context)
        if once:
            await self._keep_result(found)
        if self.config.transaction:
            await self.connection.execute("COMMIT")
        return ok(found)

    # --- Around the statements ---

    async def _begin(self, fresh: bool) -> None:
        """Open the transaction and set its options, in one round trip."""
        config = self.config
        if config.effect == "once":
            await self._have_marks(fresh)
        scope = "LOCAL " if config.transaction else ""
        lines = ["SET LOCAL datestyle = ISO", "SET LOCAL intervalstyle = iso_8601"]
        if (limit := shortest(config.timeout)) is not None:
            lines.append(f"SET LOCAL statement_timeout = {max(1, int(limit * 1000))}")
        if config.schema is not None:
            names = (config.schema,) if isinstance(config.schema, str) else config.schema
            lines.append(f"SET LOCAL search_path = {', '.join(quoted(name) for name in names)}")
        lines = [line.replace("LOCAL ", scope) for line in lines]
        if config.transaction:
            level = f" ISOLATION LEVEL {config.isolation.upper()}" if config.isolation else ""
            lines.insert(0, f"BEGIN{level.replace('_', ' ')}")
        await self._first("; ".join(lines), fresh)

    async def _first(self, sql: str, fresh: bool) -> psycopg.AsyncCursor[Any]:
        """The first statement on a connection shows whether a kept one is still alive."""
        try:
            async with asyncio.timeout(None if fresh else ALIVE_SECONDS):
                return await self.connection.execute(sql.encode())
        except TimeoutError as error:
            raise Stale from error
        except psycopg.OperationalError as error:
            if fresh or not self.connection.broken:
                raise
            raise Stale from error

    def _notice(self, diagnostic: Diagnostic) -> None:
        self.context.log(f"{diagnostic.severity}: {diagnostic.message_primary}\n")

    async def _parts(self) -> Done:
        config, plan, connection = self.config, self.plan, self.connection
        if config.copy is not None:
            return Done([await self._copied()])
        parts: list[Statement] = []
        for number, one in enumerate(plan.statements):
            values = _parameters(one.values)
            ours = config.transaction and is_ours(number, plan, "postgres")
            if config.result_as != "rows" and number == len(plan.statements) - 1:
                query = psycopg.AsyncClientCursor(connection).mogrify(one.sql, values)
                file = await copy_to_table_file(connection, query, config.result_as, self.context)
                return Done([*parts, NOTHING], file)
            parts.append(NOTHING if ours else await self._statement(one.sql, values))
        if plan.write is not None:
            parts.append(await self._written(plan.write))
        return Done(parts)

    async def _statement(self, sql: str, values: Any) -> Statement:
        found = Gathering(self.context.resources.rules.max_response_bytes)
        if _only_reads(sql):
            return await self._streamed(sql, values, found)
        cursor = await self.connection.execute(sql.encode(), values)
        if cursor.description is None:
            return {**NOTHING, "row_count": max(0, cursor.rowcount)}
        names = [column.name for column in cursor.description]
        while portion := await cursor.fetchmany(ROWS_PER_LOOK):
            found.take(portion)
        return table(names, found.rows, cursor.rowcount)

    async def _streamed(self, sql: str, values: Any, found: Gathering) -> Statement:
        """The rows of a query as they arrive: never more in memory than a result may hold."""
        async with self.connection.cursor() as cursor:
            portion: list[Any] = []
            stream: Any = cursor.stream(sql.encode(), values, size=ROWS_PER_LOOK)
            async with aclosing(stream) as rows:
                async for row in rows:
                    portion.append(row)
                    if len(portion) == ROWS_PER_LOOK:
                        found.take(portion)
                        portion = []
            found.take(portion)
            if not found.rows:
                # The library forgets the columns of a stream without rows. This query runs nothing.
                empty = f"SELECT * FROM ({sql}\n) AS described LIMIT 0"  # noqa: S608 - the task's own
                await cursor.execute(empty.encode(), values)
            names = [column.name for column in cursor.description or ()]
        return table(names, found.rows, len(found.rows))

    # --- Rows and files ---

    async def _written(self, write: Write) -> Statement:
        connection = self.connection
        try:
            cursor = await connection.execute(f"SELECT * FROM {write.table} LIMIT 0".encode())  # noqa: S608
        except UndefinedTable as error:
            raise no_table(write.table, error.sqlstate) from None
        known = {column.name: column.type_code for column in cursor.description or []}
        bulk = self.config.bulk
        plainly = write.mode == "insert" and write.returning is False
        if bulk == "copy" and not plainly:
            raise BadSql("`bulk: copy` can insert rows, but neither upsert, skip nor return them.")
        many = not isinstance(write.rows, Sequence) or len(write.rows) >= MANY_ROWS
        by_copy = plainly and (bulk == "copy" or (bulk == "auto" and many))
        parts = []
        portions = batches(write, VARIABLES_MAX, list(known))
        # The rows may come from a file; reading it must not block the event loop.
        while (batch := await to_thread(next, portions, None)) is not None:
            types = [(name, known[name]) for name in batch.columns]
            rows = [
                [_fitted(value, *type_) for value, type_ in zip(row, types, strict=True)]
                for row in batch.rows
            ]
            if by_copy:
                parts.append(await copy_rows(connection, write.table, batch.columns, rows))
                continue
            sql = insert(write, batch.columns, len(rows), "%s")
            values = [value for row in rows for value in row]
            parts.append(await self._statement(sql, values))
        return joined(parts)

    async def _copied(self) -> Statement:
        config = self.config
        how = config.copy
        assert how is not None
        target = quoted_table(config.table) if config.table is not None else ""
        if how.source is not None:
            file = self.context.files.find(how.source)
            path = (
                await local_input(str(how.source), self.config, self.context)
                if file is None
                else await self.context.files.local(file)
            )
            return await copy_in(self.connection, target, how, path)
        if not target:
            if len(self.plan.statements) != 1 or self.plan.statements[0].values:
                raise BadSql("copy: `command` must be one query without `params`.")
            target = f"({self.plan.statements[0].sql})"
        if how.target is not None and not is_object(how.target):
            path = self.context.resources.path(how.target)
            return await copy_out(self.connection, target, how, path)
        path = self.context.files.folder / f"copied.{how.format}"
        copied = await copy_out(self.connection, target, how, path)
        if how.target is not None:
            with out_of_reach():
                place = store_and_key(how.target)
                await stored(path, *place, self.config.store_auth, self.context)
            return copied
        return {**copied, **await self.context.files.keep(path, form=how.format)}

    # --- Effects that happen once ---

    async def _have_marks(self, fresh: bool) -> None:
        found = await (await self._first(WHERE_MARKS, fresh)).fetchone()
        if found is None:
            # Two workers may do this at the same time; with the lock, the second finds the table.
            await self.connection.execute(
                "BEGIN; SELECT pg_advisory_xact_lock(hashtext('noetl_effect')); "
                f"CREATE TABLE IF NOT EXISTS {MARKS} (action_id text PRIMARY KEY, "
                "result jsonb, at timestamptz NOT NULL DEFAULT now()); COMMIT".encode()
            )
            found = await (await self.connection.execute(WHERE_MARKS)).fetchone()
        assert found is not None
        self.marks = f"{found[0]}.{MARKS}"

    async def _mark(self) -> Earlier | None:
        """Claim the effect; returns its result if it has already happened. Waits for one under
        way.
        """
        claim = f"INSERT INTO {self.marks} (action_id) VALUES (%s) ON CONFLICT DO NOTHING"  # noqa: S608
        key = [self.context.action_id]
        cursor = await self.connection.execute(claim.encode(), key)
        if cursor.rowcount:
            return None
        read = f"SELECT result FROM {self.marks} WHERE action_id = %s"  # noqa: S608
        row = await (await self.connection.execute(read.encode(), key)).fetchone()
        return Earlier(row[0] if row else None)

    async def _keep_result(self, found: Any) -> None:
        update = f"UPDATE {self.marks} SET result = %s WHERE action_id = %s"  # noqa: S608
        values = [_document(found), self.context.action_id]
        await self.connection.execute(update.encode(), values)


# --- Values ------------------------------------------------------------------------------------


def _document(value: Any) -> Jsonb:
    """A value as jsonb."""
    return Jsonb(value, msgspec.json.encode)


def _parameters(values: Any) -> Any:
    """Values that statements bind; their types follow from the values alone."""
    if isinstance(values, dict):
        return {name: _by_itself(value) for name, value in values.items()}
    return None if values is None else [_by_itself(value) for value in values]


def _fitted(value: Any, column: str, type_: int) -> Any:
    """The value for a column of that type. Raises Misfit."""
    if value is None:
        return None
    if type_ in DOCUMENTS:
        # A text made by `tojson` is the document itself; the server parses it.
        return str(value) if isinstance(value, JsonText) else _document(value)
    if type_ == BYTEA and isinstance(value, str):
        return decoded_bytes(value, column)
    found = postgres.types.get(type_)
    if found is not None and found.array_oid == type_ and isinstance(value, list | tuple):
        return [_part(part, column, found.oid) for part in value]
    # What COPY and INSERT take alike: which of them writes depends on how many rows there are.
    if isinstance(value, float) and value.is_integer() and abs(value) < MOST.get(type_, 0):
        value = int(value)
    if type_ in TEXTS and isinstance(value, int | float):
        return as_text(value)
    return _by_itself(value)


def _by_itself(value: Any) -> Any:
    """Mappings, and lists that contain containers, are documents; other lists are arrays."""
    is_document = isinstance(value, dict) or (
        isinstance(value, list | tuple) and any(isinstance(part, dict | list) for part in value)
    )
    return _document(value) if is_document else value


def _part(value: Any, column: str, element: int) -> Any:
    """An element as text: the driver takes no mixed lists, and the server knows the type."""
    if value is None:
        return None
    if element in DOCUMENTS or isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return [_part(part, column, element) for part in value]
    if element == BYTEA:
        raw = decoded_bytes(value, column) if isinstance(value, str) else value
        return f"\\x{bytes(raw).hex()}"
    return as_text(value)
