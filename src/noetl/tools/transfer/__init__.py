"""kind: transfer. Copies records from one place to another, batch by batch, in bounded memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from noetl.model.older_forms import Written, auth_by_name
from noetl.tools.base import Count, Credential, Name, Options, Tool, ToolConfig, about, run_of
from noetl.tools.sql.config import Params, WriteMode
from noetl.tools.web.request import SERVICE_ERRORS

Format = Literal["csv", "json", "ndjson", "parquet"]
PageStart = Annotated[int, msgspec.Meta(ge=0)]


class End(Options, frozen=True, kw_only=True, tag_field="kind"):
    """Base of both ends of a transfer; `kind` says what is there."""

    auth: Annotated[Credential | None, about("Credential of this end.")] = None


# --- Where records come from -------------------------------------------------------------------


class Paging(Options, frozen=True, kw_only=True):
    """How to ask for the next page: by number, or by what the last answer said."""

    param: Annotated[Name, about("Query parameter that carries the page or cursor.")] = "page"
    start: Annotated[PageStart, about("Number of the first page.")] = 1
    size_param: Annotated[Name | None, about("Query parameter that carries the page size.")] = None
    size: Annotated[Count, about("Records to ask for per page.")] = 100
    next: Annotated[
        Name | None, about("Path in the answer of the next cursor or address; none: count pages.")
    ] = None
    more: Annotated[
        Name | None, about("Path in the answer that is true while there are more pages.")
    ] = None
    max_pages: Annotated[Count | None, about("Pages to read at most.")] = None


class FromHttp(End, frozen=True, kw_only=True, tag="http"):
    """The records in the answers of a web service."""

    url: Annotated[Name, about("Address to ask.")]
    method: Annotated[Literal["GET", "POST"], about("The request's method.")] = "GET"
    params: Annotated[dict[str, Any], about("Query parameters.")] = {}
    headers: Annotated[dict[str, str], about("Request headers.")] = {}
    json: Annotated[Any, about("Body to send as JSON.")] = None
    records: Annotated[
        Name | None, about("Path in the answer of the list of records; the answer itself if none.")
    ] = None
    paging: Annotated[Paging | None, about("How to read page after page.")] = None


class FromSql(End, frozen=True, kw_only=True):
    """The rows of a query or table."""

    command: Annotated[str | None, about("Query whose rows to read.")] = None
    params: Annotated[Params, about("Values bound to the query's placeholders.")] = {}
    table: Annotated[Name | None, about("Table to read, instead of a query.")] = None


class FromPostgres(FromSql, frozen=True, kw_only=True, tag="postgres"):
    """Rows of PostgreSQL."""


class FromDuckDb(FromSql, frozen=True, kw_only=True, tag="duckdb"):
    """Rows of a DuckDB file."""

    database: Annotated[str | None, about("Database file.")] = None


class FromSqlite(FromSql, frozen=True, kw_only=True, tag="sqlite"):
    """Rows of a SQLite file."""

    database: Annotated[str | None, about("Database file.")] = None


# --- Where records go --------------------------------------------------------------------------


class ToHttp(End, frozen=True, kw_only=True, tag="http"):
    """A web service that takes one batch per request."""

    url: Annotated[Name, about("Address to send each batch to.")]
    method: Annotated[Literal["POST", "PUT", "PATCH"], about("The request's method.")] = "POST"
    headers: Annotated[dict[str, str], about("Request headers.")] = {}
    records: Annotated[
        Name | None, about("Key of the body that holds the batch; the body itself if none.")
    ] = None


class ToSql(End, frozen=True, kw_only=True):
    """A table."""

    table: Annotated[Name, about("Table to write to.")]
    mode: Annotated[
        WriteMode | Literal["replace"],
        about("Add rows, replace or skip those whose `key` exists, or replace the whole table."),
    ] = "insert"
    key: Annotated[
        Name | tuple[Name, ...] | None, about("Column or columns that identify a row.")
    ] = None
    create: Annotated[bool, about("Create the table if it is not there.")] = False


class ToPostgres(ToSql, frozen=True, kw_only=True, tag="postgres"):
    """A table of PostgreSQL."""


class ToDuckDb(ToSql, frozen=True, kw_only=True, tag="duckdb"):
    """A table in a DuckDB file."""

    database: Annotated[str, about("Database file.")]


class ToSqlite(ToSql, frozen=True, kw_only=True, tag="sqlite"):
    """A table in a SQLite file."""

    database: Annotated[str, about("Database file.")]


# --- Files and objects, either way -------------------------------------------------------------


class Stored(End, frozen=True, kw_only=True):
    """Records in the form of a file."""

    format: Annotated[Format | None, about("Form of the records; by the ending if left out.")] = (
        None
    )
    header: Annotated[bool, about("CSV: the first line names the columns.")] = True
    delimiter: Annotated[str, about("CSV: what separates columns.")] = ","


class InFile(Stored, frozen=True, kw_only=True, tag="file"):
    """A file."""

    path: Annotated[
        Name, about("Path of the file, or an object's address; a source may be a glob of files.")
    ]


class InStore(Stored, frozen=True, kw_only=True, tag="store"):
    """An object in an object store."""

    url: Annotated[
        Name | None, about("Store, e.g. `s3://bucket`; the operator's default when left out.")
    ] = None
    key: Annotated[Name, about("Key of the object.")]


Source = FromHttp | FromPostgres | FromDuckDb | FromSqlite | InFile | InStore
Target = ToHttp | ToPostgres | ToDuckDb | ToSqlite | InFile | InStore


class Transfer(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: transfer`."""

    source: Annotated[Source | None, about("Where records come from; `kind` says what it is.")] = (
        None
    )
    target: Annotated[Target | None, about("Where records go; `kind` says what it is.")] = None
    mapping: Annotated[
        dict[str, str], about("Target column → source column; all as they are when left out.")
    ] = {}
    batch_size: Annotated[Count, about("Records written and committed at a time.")] = 10_000
    resume: Annotated[
        bool, about("After a crash continue after the last committed batch, not from the start.")
    ] = True


EXAMPLE = """\
- step: load_orders
  tool:
    kind: transfer
    source:
      kind: http
      url: https://api.example.com/orders
      records: data.orders
      paging: { param: page, size_param: pageSize, size: 200, more: data.paging.hasMore }
    target:
      kind: postgres
      auth: pg_main
      table: orders
      mode: upsert
      key: order_id
    mapping: { order_id: id, total: amount }
    batch_size: 5000
"""


_DATABASES = ("postgres", "duckdb", "sqlite")


def _older(task: Written) -> None:
    for key in ("source", "target"):
        end = task.below(key, f"`{key}`")
        if end is None:
            continue
        if end.has("type"):
            end.rename("type", "kind")
        if end.text("kind") in _DATABASES:
            auth_by_name(end)
            for word in ("query", "statement"):
                if end.has(word):
                    end.rename(word, "command")
        if end.has("mapping") and key == "target":
            end.move("mapping", task, "mapping", "write `mapping` on the task itself")


def _place(end: Any) -> Any:
    return end.get("kind", "?") if isinstance(end, dict) else end


TOOL = Tool(
    kind="transfer",
    example=EXAMPLE,
    summary="Copies records from one place to another.",
    config=Transfer,
    run=run_of("noetl.tools.transfer.run"),
    errors=(
        *SERVICE_ERRORS,
        *("schema", "db_connection", "db_constraint", "db_deadlock", "db_timeout"),
    ),
    needs=(("source",), ("target",)),
    needs_when={
        "source.kind": {
            "postgres": (("auth",), ("command", "table")),
            "duckdb": (("command", "table"),),
            "sqlite": (("command", "table"),),
        },
        "target.kind": {"postgres": (("auth",),)},
        "target.mode": {"upsert": (("key",),)},
    },
    tells=lambda config: (_place(config.get("source")), "to", _place(config.get("target"))),
    older=_older,
    older_shapes={
        "source": {
            "type": "object",
            "anyOf": [{"required": [key]} for key in ("type", "query", "statement")],
            "description": "Write `kind`, and `command` of a database.",
        },
        "target": {
            "type": "object",
            "anyOf": [{"required": ["type"]}, {"required": ["mapping"]}],
            "description": "Write `kind`; `mapping` belongs to the task.",
        },
    },
)
