"""kind: postgres. SQL on PostgreSQL, one transaction per task."""

from __future__ import annotations

from typing import Annotated, Literal

from noetl.tools.base import Name, Options, Reference, about, run_of
from noetl.tools.sql.config import SqlConfig, sql_tool


class Copy(Options, frozen=True, kw_only=True):
    """Bulk data in or out by COPY."""

    source: Annotated[
        str | Reference | None,
        about("File, object address or result reference to copy into `table`."),
    ] = None
    target: Annotated[
        str | None,
        about("File or object address to copy out to; the result store when left out."),
    ] = None
    format: Annotated[Literal["csv", "text", "binary"], about("Form of the data.")] = "csv"
    header: Annotated[bool, about("CSV: the first line names the columns.")] = True
    delimiter: Annotated[str | None, about("What separates columns.")] = None
    null_as: Annotated[str | None, about("How NULL is written.")] = None
    columns: Annotated[tuple[Name, ...], about("Columns in their order; all when left out.")] = ()


class Postgres(SqlConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: postgres`."""

    schema: Annotated[
        Name | tuple[Name, ...] | None, about("Schemas to look names up in (`search_path`).")
    ] = None
    bulk: Annotated[
        Literal["auto", "insert", "copy"],
        about("How `rows` travel; `auto` takes COPY for many, INSERT for few."),
    ] = "auto"
    copy: Annotated[
        Copy | None,
        about("COPY data into `table`, or out of `table` or the query in `command`."),
    ] = None
    effect: Annotated[
        Literal["at_least_once", "once"],
        about("`once`: the completion mark is part of the same transaction."),
    ] = "at_least_once"
    isolation: Annotated[
        Literal["read_committed", "repeatable_read", "serializable"] | None,
        about("Isolation of the transaction; the server's default when left out."),
    ] = None
    transaction: Annotated[
        bool, about("`false` runs each statement by itself, for those that need it (VACUUM).")
    ] = True


EXAMPLE = """\
- step: find_user
  tool:
    kind: postgres
    auth: pg_main
    command: SELECT user_id, email FROM users WHERE user_id = %(user_id)s
    params: { user_id: "{{ workload.user_id }}" }
"""

TOOL = sql_tool(
    "postgres",
    "Runs SQL on PostgreSQL or writes rows to a table.",
    Postgres,
    run_of("noetl.tools.postgres.run"),
    example=EXAMPLE,
)
