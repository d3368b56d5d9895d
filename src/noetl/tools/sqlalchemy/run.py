"""Runs a task's SQL on any database that SQLAlchemy supports, in a thread."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import psycopg
import sqlalchemy
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import NullPool

from noetl.model.outcome import ErrorKind, Outcome
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of, secret_key
from noetl.tools.egress import check_database
from noetl.tools.failures import Failed, Refused, failed_with
from noetl.tools.limits import to_thread
from noetl.tools.resources import ToolResources
from noetl.tools.sql.postgres import NOT_LENT, OF_THE_WORKER
from noetl.tools.sql.postgres import failure as postgres_failure
from noetl.tools.sql.rows import Batch, Write, names_in, on_conflict
from noetl.tools.sql.sqlite import failure as sqlite_failure
from noetl.tools.sql.sqlite import keep_to_itself
from noetl.tools.sql.tasks import NOTHING, Database, Done, Found, Statement, run_in_thread
from noetl.tools.sql.text import BadSql, Bound, Dialect, driver_spelling, first_word
from noetl.tools.sql.threads import Halt, in_background
from noetl.tools.sqlalchemy import Sql
from noetl.tools.sqlalchemy.addresses import DRIVERS, Address, address

HOSTS = ("host", "hostaddr", "server")
"""Parameters of drivers that name hosts."""
WHOLE = ("conninfo", "dsn")
"""Parameters of drivers that hold a whole address."""
ODBC_HOST = re.compile(
    r"\b(?:server(?:name)?|addr(?:ess)?|host(?:name)?)\s*=\s*\{?\s*(?:tcp:)?([^;,}\\]*)",
    re.IGNORECASE,
)
"""The hosts in `odbc_connect`, which holds all parameters in one text."""
NAME_NO_FILES = frozenset(
    (
        *(*HOSTS, "port", "user", "password", "dbname", "database"),
        *("application_name", "charset", "client_encoding", "connect_timeout", "sslmode"),
        *("role", "secure", "service_name", "target_session_attrs", "warehouse"),
    )
)
"""Parameters in URLs with which no driver reads files. Others may let it (`local_infile`), load
libraries (`driver`) or hold any of them (`odbc_connect`)."""
LIBPQ = ("psycopg", "psycopg2", "psycopg_async")
CODES: dict[int, ErrorKind] = {
    1040: "db_connection",
    1044: "auth",
    1045: "auth",
    1049: "db_connection",
    1205: "db_timeout",
    1213: "db_deadlock",
    1317: "db_timeout",
    1698: "auth",
    1969: "db_timeout",
    2002: "db_connection",
    2003: "db_connection",
    2006: "db_connection",
    2013: "db_connection",
    3024: "db_timeout",
}
"""Error numbers of MySQL and MariaDB."""
FINAL = frozenset([1049])
PLAIN = frozenset(
    [
        *("SELECT", "WITH", "VALUES", "SHOW", "DESCRIBE", "EXPLAIN"),
        *("INSERT", "REPLACE", "UPDATE", "DELETE", "MERGE", "TRUNCATE"),
    ]
)
"""First words of statements that leave nothing in a session, unless they call what `LASTS`."""
LASTS = re.compile(
    r"[@#]|\b(?:get_lock|set_config|\w*advisory_lock\w*|pg_temp"
    r"|into\s+(?:local\s+|global\s+)?temp(?:orary)?)\b",
    re.IGNORECASE,
)
"""Variables, tables, settings and locks of a session."""
KINDS: tuple[tuple[type[exc.DBAPIError], ErrorKind], ...] = (
    (exc.IntegrityError, "db_constraint"),
    (exc.DataError, "schema"),
    (exc.ProgrammingError, "client_error"),
    (exc.NotSupportedError, "client_error"),
    (exc.InterfaceError, "db_connection"),
    (exc.OperationalError, "db_connection"),
)


async def run(kind: str, config: Sql, context: ToolContext) -> Outcome:
    return await run_in_thread(Task(kind, config, context))


def _hosts(where: Address, config: Sql) -> list[str]:
    """Every host that the driver is told of: parameters replace the one at the URL's beginning."""
    named = [where.url.host or ""]
    for given in (where.url.query, config.options):
        if whole := [name for name in WHOLE if given.get(name)]:
            raise Refused(f"`{whole[0]}` may name any host. Write the host in `url`.")
        for text in _texts(given, *HOSTS):
            named += text.split(",")
        for text in _texts(given, "odbc_connect"):
            named += ODBC_HOST.findall(text)
    return [_bare(host.strip()) for host in named]


def _texts(given: Mapping[str, Any], *names: str) -> list[str]:
    """What these parameters say; each may be given more than once."""
    found: list[str] = []
    for value in (given[name] for name in names if given.get(name)):
        found += map(str, value if isinstance(value, list | tuple) else [value])
    return found


def _bare(host: str) -> str:
    """Without its port, and without the brackets of IPv6."""
    found = re.fullmatch(r"\[([^\]]*)\](?::\d*)?|([^:]*):\d*", host)
    return host if found is None else found[1] or found[2] or ""


def _confined(where: Address, config: Sql, resources: ToolResources) -> Address:
    """Restrict file databases to the worker's file directory."""
    database = where.url.database
    if resources.rules.file_root is not None:
        if where.url.get_backend_name() == "duckdb":
            raise Refused(
                "this worker uses files of one directory only, which SQL of DuckDB is kept to by "
                "`kind: duckdb`. Use that."
            )
        if config.options:
            raise Refused(
                "this worker uses files of one directory only, and `options` of a driver may name "
                "others. Leave them out, or ask the operator."
            )
        is_file = where.url.get_backend_name() == "sqlite"
        if not is_file and (others := sorted(where.url.query.keys() - NAME_NO_FILES)):
            raise Refused(
                "this worker uses files of one directory only, and a driver may read others if its "
                f"URL says `{others[0]}`. Leave it out, or ask the operator."
            )
    if where.url.get_backend_name() not in ("sqlite", "duckdb") or database in (None, ":memory:"):
        return where
    path = resources.path(str(database))
    path.parent.mkdir(parents=True, exist_ok=True)
    return where._replace(url=where.url.set(database=str(path)))


class Engines:
    """The engines of one worker, by address: each has a pool of connections."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}

    def engine(self, kind: str, where: Address, config: Sql, root: str | None) -> Engine:
        shown = where.url.render_as_string(hide_password=False)
        key = secret_key(shown, where.options, config.options, config.isolation)
        if key not in self._engines:
            engine = self._engines[key] = _engine(kind, where, config)
            if engine.dialect.name == "sqlite":
                sqlalchemy.event.listen(
                    engine, "connect", lambda made, _: keep_to_itself(made, root)
                )
        return self._engines[key]

    async def close(self) -> None:
        for engine in self._engines.values():
            await to_thread(engine.dispose)
        self._engines.clear()


def _engine(kind: str, where: Address, config: Sql) -> Engine:
    own = _not_lent(where, config.options) if where.url.get_backend_name() == "postgresql" else {}
    told = {**own, **where.options.get("connect_args", {}), **config.options}
    options: dict[str, Any] = {**where.options, "connect_args": told}
    if where.url.get_backend_name() == "sqlite":
        # Its connections cost nothing, and another thread than the one that uses it must stop it.
        options |= {"poolclass": NullPool}
        options["connect_args"].setdefault("check_same_thread", False)
    else:
        # The pool keeps a few connections. No task waits for one, because that would count as its
        # time.
        options.setdefault("max_overflow", -1)
    if config.isolation is not None:
        options["isolation_level"] = config.isolation.upper().replace("_", " ")
    try:
        return sqlalchemy.create_engine(
            where.url, pool_pre_ping=True, hide_parameters=True, **options
        )
    except (exc.NoSuchModuleError, ModuleNotFoundError) as error:
        extra = kind if kind in DRIVERS else "sql"
        raise Failed(
            "not_found",
            f'The driver of "{where.url.drivername}" is not installed on this worker ({error}). '
            f"Run `pip install 'noetl[{extra}]'` there, or install that driver.",
        ) from None
    except exc.ArgumentError as error:
        raise BadSql(f"The database cannot be asked like this: {error}.") from None


def _not_lent(where: Address, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keep libpq from using the worker's own credentials; other drivers have no such options."""
    if where.url.get_driver_name() not in LIBPQ:
        return {}
    if named := [name for name in OF_THE_WORKER if name in where.url.query or name in given]:
        raise Refused(f"`{named[0]}` names credentials of the worker's own, which are not lent.")
    written = where.url.translate_connect_args() | dict(where.url.query)
    return {name: value for name, value in NOT_LENT.items() if name not in written}


class Task(Database):
    """On a connection of the engine."""

    dialect: Dialect = "sql"
    variables_max: ClassVar[int] = 1_000_000
    config: Sql

    def __init__(self, kind: str, config: Sql, context: ToolContext) -> None:
        super().__init__(config, context)
        self.kind = kind

    async def prepare(self) -> None:
        config, resources = self.config, self.context.resources
        fields = await fields_of(config.auth, self.context)
        where = _confined(address(self.kind, config.url, fields), config, resources)
        await check_database(*_hosts(where, config))
        engines, root = resources.shared("sql", Engines), self.rules.file_root
        self.engine = await to_thread(engines.engine, self.kind, where, config, root)
        if self.engine.dialect.name in MYSQL:
            self.dialect = "mysql"

    def run(self) -> Done:
        halt = self.halt
        try:
            with self.engine.connect() as connection, halt.stoppable(_stopping(connection)):
                # A statement without values is sent as it is: drivers take a % for a placeholder.
                how = {} if self.config.transaction else {"isolation_level": "AUTOCOMMIT"}
                self.connection = connection.execution_options(no_parameters=True, **how)
                try:
                    return self.perform()
                finally:
                    if not self._leaves_nothing():
                        connection.invalidate()
        except exc.DBAPIError as error:
            raise failure(error, halt) from None
        except exc.SQLAlchemyError as error:
            raise Failed("client_error", f"{error}") from None

    def _leaves_nothing(self) -> bool:
        """Whether the next task may have the connection. Otherwise it would have the schema of this
        one, its settings and locks, or a stop that comes late.
        """
        if self.halt.late or self.halt.wanted or self.config.schema is not None:
            return False
        texts = [one.sql for one in self.plan.statements]
        return all(
            first_word(text, self.dialect) in PLAIN and not LASTS.search(text) for text in texts
        )

    # --- What `perform` asks for ---

    def begin(self) -> None:
        if self.config.schema is None:
            return
        name = self._quoted(self.config.schema)
        use = {
            "mysql": f"USE {name}",
            "mariadb": f"USE {name}",
            "postgresql": f"SET search_path TO {name}",
            "snowflake": f"USE SCHEMA {name}",
            "oracle": f"ALTER SESSION SET CURRENT_SCHEMA = {name}",
        }.get(self.engine.dialect.name)
        if use is None:
            raise BadSql(
                f"`schema` cannot be set on {self.engine.dialect.name}; name it in the credential "
                "or before each table."
            )
        self.connection.exec_driver_sql(use)

    def commit(self) -> None:
        if self.config.transaction:
            self.connection.commit()

    def executed(self, one: Bound) -> Found:
        sql, values = self._spelled(one.sql, one.values)
        found = self.connection.exec_driver_sql(sql, values)
        if not found.returns_rows:
            return Found(None, found.fetchmany, lambda: found.rowcount)

        def fetch(count: int) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in found.fetchmany(count)]

        return Found(list(found.keys()), fetch, lambda: None)

    def columns(self, table: str) -> dict[str, bool]:
        found = self.connection.exec_driver_sql(f"SELECT * FROM {self._named(table)} WHERE 1 = 0")  # noqa: S608
        known = dict.fromkeys(found.keys(), False)
        # Databases differ in what they reveal of their tables.
        if self.engine.dialect.name in KNOWS_CONFLICTS:
            *schema, name = names_in(table)
            inspector = sqlalchemy.inspect(self.connection)
            for one in inspector.get_columns(name, schema=".".join(schema) or None):
                known[one["name"]] = bool(_BINARY.search(type(one["type"]).__name__))
        return known

    def batch(self, write: Write, batch: Batch) -> Statement:
        if write.returning is not False:
            raise BadSql("`returning` is not available here; ask with a query behind the write.")
        style = self.engine.dialect.name
        with self.halt.statement():
            if write.mode == "upsert" and style not in KNOWS_CONFLICTS:
                self._deleted(write, batch)
            sql = self._insert(write, batch.columns)
            rows = [[_bindable(value) for value in row] for row in batch.rows]
            spelled = [self._spelled(sql, row) for row in rows]
            values: Any = [one.values for one in spelled]
            found = self.connection.exec_driver_sql(spelled[0].sql, values)
            # MySQL counts a row twice that was there.
            count = min(found.rowcount, len(rows)) if found.rowcount >= 0 else len(rows)
        return {**NOTHING, "row_count": count}

    def _insert(self, write: Write, columns: Sequence[str]) -> str:
        names = [self._quoted(name) for name in columns]
        marks = ", ".join(["?"] * len(names))
        style = self.engine.dialect.name
        verb = "INSERT IGNORE" if write.mode == "ignore" and style in MYSQL else "INSERT"
        sql = f"{verb} INTO {self._named(write.table)} ({', '.join(names)}) VALUES ({marks})"
        if write.mode == "insert" or style not in KNOWS_CONFLICTS:
            if write.mode == "ignore":
                raise BadSql(f"`mode: ignore` is not available on {style}.")
            return sql
        if style in MYSQL:
            if write.mode == "ignore":
                return sql
            rest = [name for name in columns if name not in write.key]
            keep = map(self._quoted, rest or write.key[:1])
            change = ", ".join(f"{name} = VALUES({name})" for name in keep)
            return f"{sql} ON DUPLICATE KEY UPDATE {change}"
        return sql + on_conflict(write, columns, self._quoted)

    def _deleted(self, write: Write, batch: Batch) -> None:
        """Delete the rows first, where no statement can replace one."""
        places = [batch.columns.index(name) for name in write.key]
        where = " AND ".join(f"{self._quoted(name)} = ?" for name in write.key)
        sql = f"DELETE FROM {self._named(write.table)} WHERE {where}"  # noqa: S608 - quoted
        for row in batch.rows:
            self.executed(Bound(sql, [row[place] for place in places]))

    def _spelled(self, sql: str, values: Any) -> Bound:
        return driver_spelling(sql, values, self.engine.dialect.paramstyle, self.dialect)

    def _quoted(self, name: str) -> str:
        return self.engine.dialect.identifier_preparer.quote_identifier(name)

    def _named(self, table: str) -> str:
        """A table name, given in double quotes, in the quotes of this database."""
        return ".".join(map(self._quoted, names_in(table)))


MYSQL = ("mysql", "mariadb")
KNOWS_CONFLICTS = (*MYSQL, "sqlite", "postgresql", "duckdb")
_BINARY = re.compile(r"BLOB|BYTEA|BINARY", re.IGNORECASE)


def _bindable(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


# --- Stopping and failing ----------------------------------------------------------------------


def _stopping(connection: Connection) -> Any:
    """How to stop a connection from another thread, with what its driver offers."""
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name in MYSQL:
        number = connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
        connection.rollback()
        engine = connection.engine

        def kill() -> None:
            with engine.connect() as other:
                other.exec_driver_sql(f"KILL QUERY {int(number)}")

        return in_background(kill)
    for name in ("interrupt", "cancel"):
        if hasattr(driver, name):
            return in_background(getattr(driver, name))
    return in_background(driver.close)


def failure(error: exc.DBAPIError, halt: Halt) -> Exception:
    """The error of the database, in our words: it repeats neither the statement nor its values."""
    inner: Any = error.orig
    if halt.late:
        return Failed("db_timeout", "A statement took longer than `timeout` and was stopped.")
    if isinstance(inner, sqlite3.Error):
        return sqlite_failure(inner, halt)
    if isinstance(inner, psycopg.Error):
        return failed_with(postgres_failure(inner))
    number = inner.args[0] if inner is not None and inner.args else None
    text = str(inner.args[1]) if inner is not None and len(inner.args) > 1 else str(inner)
    of_type = (kind for type_, kind in KINDS if isinstance(error, type_))
    by_type: ErrorKind = next(of_type, "client_error")
    kind = CODES.get(number, by_type) if isinstance(number, int) else by_type
    said = f"{type(inner).__name__}: {text}".strip().rstrip(".") + "."
    retryable = False if number in FINAL else None
    return Failed(kind, said, code=number if isinstance(number, int) else None, retryable=retryable)
