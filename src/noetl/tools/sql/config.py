"""What a playbook writes for every SQL kind: statements to run, or a table to write rows to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from noetl.model.older_forms import Written, auth_by_name
from noetl.model.outcome import ErrorKind, Outcome
from noetl.model.toolshape import Each, Yielded
from noetl.tools.base import (
    OLDER_SCRIPT,
    Count,
    Credential,
    Duration,
    Name,
    Reference,
    Tool,
    ToolConfig,
    ToolContext,
    about,
    older_script,
)

Params = dict[str, Any] | tuple[Any, ...]
Rows = tuple[dict[str, Any], ...] | Reference | str
WriteMode = Literal["insert", "upsert", "ignore"]


class SqlConfig(ToolConfig, frozen=True, kw_only=True):
    """What every SQL kind takes: statements to run, or a table to write rows to."""

    auth: Annotated[
        Credential | None,
        about("Name of a keychain entry or credential, or its fields written out."),
    ] = None
    command: Annotated[str | None, about("SQL to run; may hold several statements.")] = None
    commands: Annotated[
        str | tuple[str, ...] | None,
        about("Statements to run in order, in the same transaction."),
    ] = None
    script: Annotated[
        str | None, about("File or address to load the SQL from, instead of `command`.")
    ] = None
    params: Annotated[
        Params, about("Values bound to the statements' placeholders, by name or position.")
    ] = {}
    table: Annotated[
        Name | None, about("Table to write to: `rows`, or the task's `args` as one row.")
    ] = None
    rows: Annotated[
        Rows | None,
        about("Rows for `table`: a list, one mapping, a result reference, or a file's address."),
    ] = None
    mode: Annotated[
        WriteMode, about("What to do with a row whose `key` exists: fail, replace it, skip it.")
    ] = "insert"
    key: Annotated[
        Name | tuple[Name, ...] | None,
        about("Column or columns that identify a row, for `upsert` and `ignore`."),
    ] = None
    returning: Annotated[
        bool | tuple[Name, ...],
        about("Yield the written rows: all columns (`true`) or these."),
    ] = False
    batch_size: Annotated[Count, about("Rows written to `table` at a time.")] = 1000
    result_as: Annotated[
        Literal["rows", "parquet", "arrow"],
        about("Yield rows, or a reference to a Parquet or Arrow file of them."),
    ] = "rows"
    store_auth: Annotated[
        Credential | None, about("Credential of the store, where a file is an object (`s3://…`).")
    ] = None
    timeout: Annotated[
        Duration | None, about("How long a statement may take before it is cancelled.")
    ] = None


class FileDatabase(SqlConfig, frozen=True, kw_only=True):
    """Config of a database that is a file, opened inside the worker."""

    database: Annotated[str | None, about("Database file; in memory when left out.")] = None
    read_only: Annotated[bool, about("Open `database` for reading only.")] = False


DATABASE_ERRORS: tuple[ErrorKind, ...] = (
    *("db_connection", "auth", "db_constraint", "db_deadlock", "db_timeout", "timeout"),
    *("client_error", "schema", "not_found", "parse"),
)


def sql_tool(
    kind: str,
    summary: str,
    config: type[SqlConfig],
    run: Callable[[Any, ToolContext], Awaitable[Outcome]],
    *,
    needs: tuple[tuple[str, ...], ...] = (),
    errors: tuple[ErrorKind, ...] = DATABASE_ERRORS,
    claims: bool = True,
    extra: str = "",
    example: str,
) -> Tool:
    """A SQL kind: the spellings and rules that all of them share."""
    return Tool(
        kind=kind,
        summary=summary,
        config=config,
        run=run,
        errors=errors,
        claims=claims,
        extra=extra,
        example=example,
        aliases={"query": "command", "credential": "auth"},
        needs=(("command", "commands", "script", "table"), *needs),
        idle_without=dict.fromkeys(("rows", "mode", "key", "returning", "batch_size"), "table"),
        needs_when={"mode": {"upsert": (("key",),)}},
        code_fields=("command", "commands"),
        code_inputs="params",
        view="rows",
        yields=lambda config: _rows_of(kind, config),
        older=_older_sql,
        deprecated={
            "statement": "Write `command`.",
            "data": "With `table`: write `args` for one row, `rows` for several.",
            "pool": "Write `spec.timeout.connect`; the pool is the worker's.",
        },
        older_shapes={"script": OLDER_SCRIPT},
    )


def _rows_of(kind: str, config: Mapping[str, Any]) -> Yielded:
    """The columns of the rows, if the last statement names each of them."""
    from noetl.tools.sql.text import Dialect, columns, statements

    if {"table", "script", "copy"} & set(config) or config.get("result_as", "rows") != "rows":
        return None
    dialect: Dialect = kind if kind in ("postgres", "sqlite", "duckdb") else "sql"  # type: ignore[assignment]
    texts: list[Any] = []
    for field in ("command", "commands"):
        written = config.get(field) or []
        texts += written if isinstance(written, list) else [written]
    if any(not isinstance(one, str) or "{" in one for one in texts):
        return None
    found = [one for text in texts for one in statements(text, dialect)]
    names = columns(found[-1], dialect) if found else None
    if names is None:
        return None
    answer = {"rows": Each(dict.fromkeys(names)), "row_count": None, "columns": None}
    others = dict.fromkeys(f"command_{number}" for number in range(len(found) - 1))
    return {**answer, **others, f"command_{len(found) - 1}": answer}


def _older_sql(task: Written) -> None:
    if task.has("statement"):
        task.rename("statement", "command")
    if task.has("data") and task.has("table"):
        task.rename("data", "args" if isinstance(task.plain("data"), dict) else "rows")
    older_script(task, "command", "store_auth")
    auth_by_name(task)
    _older_pool(task)


def _older_pool(task: Written) -> None:
    """Older form, `pool: {timeout, …}`: how long to wait for a connection."""
    pool = task.below("pool", "`pool`")
    if pool is None:
        return
    for key in pool.names():
        if key != "timeout":
            pool.ignore(key, "connections are pooled by the worker")
    spec = task.room("spec")
    if pool.has("timeout") and spec is not None:
        written = spec.plain("timeout")
        if written is not None and not isinstance(written, dict):
            total = {"total": written, "connect": pool.plain("timeout")}
            spec.put("timeout", total, "write `spec: {timeout: {total, connect}}`")
            pool.discard("timeout")
        elif (limits := spec.room("timeout")) is not None:
            pool.move("timeout", limits, "connect", "write `spec: {timeout: {connect: …}}`")
    if not pool.names():
        task.discard("pool")
