"""kind: sql, and the kinds for databases that are reached the same way: by a SQLAlchemy URL."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from noetl.tools.base import Name, about, run_of
from noetl.tools.sql.config import SqlConfig, sql_tool


class Sql(SqlConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: sql` and the kinds like it."""

    url: Annotated[
        Name | None, about("SQLAlchemy URL, unless the credential holds it: `mysql+pymysql://…`.")
    ] = None
    schema: Annotated[Name | None, about("Schema or dataset that unqualified names mean.")] = None
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed", "repeatable_read", "serializable"] | None,
        about("Isolation of the transaction; the database's default when left out."),
    ] = None
    transaction: Annotated[
        bool, about("`false` runs each statement by itself, for those that need it.")
    ] = True
    options: Annotated[dict[str, Any], about("Arguments for the database driver's `connect`.")] = {}


DATABASES = {
    "sql": (
        "any database with a SQLAlchemy URL",
        "url: mysql+pymysql://reader@db.example.com/shop",
    ),
    "mysql": ("MySQL or MariaDB", "auth: shop_db"),
    "snowflake": ("Snowflake", "auth: snow"),
    "clickhouse": ("ClickHouse", "auth: events_db"),
    "bigquery": ("Google BigQuery", "auth: warehouse"),
    "mssql": ("Microsoft SQL Server", "auth: erp_db"),
    "oracle": ("Oracle Database", "auth: ledger_db"),
}
"""What each kind runs SQL on, and how its example says where that is."""
EXAMPLE = """\
- step: open_orders
  tool:
    kind: KIND
    WHERE_IT_IS
    command: SELECT id, total FROM orders WHERE status = :status
    params: { status: open }
"""
WAREHOUSES = frozenset({"snowflake", "clickhouse", "bigquery"})
"""A statement that changes rows returns none of them there, so none can claim rows."""

TOOLS = tuple(
    sql_tool(
        kind,
        f"Runs SQL on {name}.",
        Sql,
        run_of("noetl.tools.sqlalchemy.run", kind, extra=kind, libraries=("sqlalchemy",)),
        needs=(("url", "auth"),),
        claims=kind not in WAREHOUSES,
        extra=kind,
        example=EXAMPLE.replace("KIND", kind).replace("WHERE_IT_IS", where),
    )
    for kind, (name, where) in DATABASES.items()
)
