"""What every tool kind is made of, and the config pieces that several kinds share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from noetl.model.toolshape import ToolShape


def about(help_text: str) -> msgspec.Meta:
    """The one line of help a config field shows in editors and in the docs."""
    return msgspec.Meta(description=help_text)


class ToolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every tool's config: what a playbook writes beside `kind`, after rendering."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the structured values inside a config."""


# --- Values that several kinds take ------------------------------------------------------------

Name = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]
Size = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)? ?([KMGT]i?)?B$", examples=["512MB"])]
Duration = (
    Annotated[float, msgspec.Meta(ge=0)]
    | Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)?(ms|s|m|h|d)$", examples=["30s"])]
)
"""Seconds as a number, or a number with its unit."""

Credential = Annotated[
    str | dict[str, Any],
    about("Name of a keychain entry or credential, or its fields written out."),
]
Reference = dict[str, Any]
"""A stored result as events show it: `{"_ref": {store, key, …}}`."""


class Timeouts(Options, frozen=True, kw_only=True):
    """How long to wait for each part of a call."""

    connect: Annotated[Duration | None, about("How long to wait for the connection.")] = None
    read: Annotated[Duration | None, about("How long to wait for data.")] = None
    total: Annotated[Duration | None, about("How long the whole call may take.")] = None


# --- SQL ---------------------------------------------------------------------------------------

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
    params: Annotated[
        Params, about("Values bound to the statements' placeholders, by name or position.")
    ] = {}
    table: Annotated[
        Name | None, about("Table to write to: `rows`, or the task's `args` as one row.")
    ] = None
    rows: Annotated[
        Rows | None, about("Rows for `table`: a list, a result reference, or a file's address.")
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
    timeout: Annotated[
        Duration | None, about("How long a statement may take before it is cancelled.")
    ] = None


def sql_shape(
    kind: str, summary: str, config: type[SqlConfig], *needs: tuple[str, ...]
) -> ToolShape:
    """The shape of a SQL kind: the spellings and rules that all of them share."""
    return ToolShape(
        kind=kind,
        summary=summary,
        config=config,
        aliases={"query": "command", "credential": "auth"},
        needs=(("command", "commands", "table"), *needs),
        code_fields=("command", "commands"),
        code_inputs="params",
    )


__all__ = [
    "Count",
    "Credential",
    "Duration",
    "ExitCode",
    "Name",
    "Options",
    "Params",
    "Reference",
    "Rows",
    "Size",
    "SqlConfig",
    "Timeouts",
    "ToolConfig",
    "ToolShape",
    "WriteMode",
    "about",
    "sql_shape",
]
