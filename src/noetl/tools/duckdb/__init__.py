"""kind: duckdb. Analytical SQL over files and attached databases, inside the worker."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from noetl.tools.base import Count, Credential, Name, Options, Reference, Size, about, run_of
from noetl.tools.sql.config import FileDatabase, sql_tool


class Attach(Options, frozen=True, kw_only=True):
    """Another database, readable (and writable) in the same statements."""

    kind: Annotated[
        Literal["postgres", "sqlite", "duckdb", "mysql"], about("What kind of database it is.")
    ]
    auth: Annotated[Credential | None, about("Credential of a database server.")] = None
    database: Annotated[str | None, about("File of a SQLite or DuckDB database.")] = None
    read_only: Annotated[bool, about("Refuse to write to it.")] = False


class DuckDb(FileDatabase, frozen=True, kw_only=True):
    """What a playbook writes under `kind: duckdb`."""

    attach: Annotated[
        dict[str, Attach], about("Databases to attach: the name they get → what they are.")
    ] = {}
    files: Annotated[
        dict[str, str | Reference | tuple[dict[str, Any], ...]],
        about("Views to make: name → path or glob of CSV, JSON, Parquet files, or a reference."),
    ] = {}
    extensions: Annotated[tuple[Name, ...], about("DuckDB extensions to load.")] = ()
    memory_limit: Annotated[Size | None, about("Memory it may use, e.g. `2GB`.")] = None
    threads: Annotated[Count | None, about("Threads it may use.")] = None
    settings: Annotated[
        dict[str, str | int | float | bool], about("Other DuckDB settings: name → value.")
    ] = {}


EXAMPLE = """\
- step: revenue_by_city
  tool:
    kind: duckdb
    files: { sales: "data/sales/*.parquet" }
    attach:
      shop: { kind: postgres, auth: pg_main, read_only: true }
    command: |
      SELECT city.name, sum(sales.amount) AS revenue
        FROM sales JOIN shop.public.city AS city USING (city_id)
       WHERE sales.year = $year
       GROUP BY city.name
    params: { year: 2025 }
    memory_limit: 2GB
"""

TOOL = sql_tool(
    "duckdb",
    "Runs SQL in DuckDB, over files and attached databases.",
    DuckDb,
    run_of("noetl.tools.duckdb.run"),
    example=EXAMPLE,
)
