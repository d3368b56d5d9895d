"""What the SQL kinds share: what a task asks for, how its result looks, how it fails."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from noetl.errors import NotFound
from noetl.model.outcome import ErrorKind, Outcome, TaskError, failed
from noetl.tools.base import SqlConfig, ToolContext
from noetl.tools.running.plain import NotPlain, check, plain
from noetl.tools.running.resources import Refused
from noetl.tools.running.sql_tables import Write, quoted_table
from noetl.tools.running.sql_text import BadSql, Bound, Dialect, bound, first_word, statements

RETRYABLE = frozenset(["db_connection", "db_deadlock", "db_timeout"])


class Failed(Exception):
    """The database, or what it was asked, made the task fail."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        code: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.error = TaskError(
            kind=kind,
            message=message,
            code=code,
            retryable=kind in RETRYABLE if retryable is None else retryable,
        )


class Plan(NamedTuple):
    """What to do in one transaction: the statements, then the rows."""

    statements: list[Bound]
    write: Write | None


async def planned(config: SqlConfig, context: ToolContext, dialect: Dialect) -> Plan:
    """Raises BadSql, Refused or Failed for what cannot be asked of any database."""
    if config.result_as != "rows":
        raise BadSql(f"`result_as: {config.result_as}` is not available in this version.")
    texts = [config.command] if config.command is not None else []
    written = config.commands or ()
    texts += [written] if isinstance(written, str) else written
    found = [one for text in texts for one in statements(text, dialect)]
    check(config.params, "params")
    write = await _write(config, context)
    if not found and write is None:
        raise BadSql("There is no statement in `command`.")
    return Plan(bound(found, config.params, dialect), write)


async def _write(config: SqlConfig, context: ToolContext) -> Write | None:
    if config.table is None:
        return None
    key = (config.key,) if isinstance(config.key, str) else (config.key or ())
    if config.mode == "upsert" and not key:
        raise BadSql("`mode: upsert` needs `key`: the columns that identify a row.")
    return Write(
        table=quoted_table(config.table),
        rows=await _rows(config, context),
        mode=config.mode,
        key=key,
        returning=config.returning,
        batch_size=config.batch_size,
    )


async def _rows(config: SqlConfig, context: ToolContext) -> Sequence[dict[str, Any]]:
    rows: Any = config.rows
    if rows is None:
        check(context.inputs, "args")
        return [context.inputs]
    if isinstance(rows, str):
        rows = await asyncio.to_thread(_from_file, context.resources.path(rows), rows)
    elif isinstance(rows, Mapping):
        rows = await context.read_result(rows)
    if isinstance(rows, Mapping) and isinstance(rows.get("rows"), list):
        rows = rows["rows"]
    if not isinstance(rows, list | tuple) or not all(isinstance(row, dict) for row in rows):
        raise Failed("schema", "`rows` must be a list of mappings: column → value.")
    check(rows, "rows")
    return rows


def _from_file(path: Path, written: str) -> Any:
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix == ".json":
            return msgspec.json.decode(text)
        if path.suffix in (".ndjson", ".jsonl"):
            return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
        if path.suffix == ".csv":
            return list(csv.DictReader(text.splitlines(keepends=True), strict=True))
    except FileNotFoundError:
        raise Failed("not_found", f'rows: the file "{written}" does not exist.') from None
    except (msgspec.DecodeError, UnicodeDecodeError, csv.Error) as error:
        raise Failed("parse", f'rows: the file "{written}" cannot be read: {error}.') from None
    raise BadSql(f'rows: "{written}" is no .csv, .json or .ndjson file.')


# --- Transactions ------------------------------------------------------------------------------

_BEGINS = frozenset(["BEGIN", "START"])
_COMMITS = frozenset(["COMMIT", "END"])
_ENDS = _COMMITS | {"ROLLBACK", "ABORT"}


def is_ours(number: int, plan: Plan, dialect: Dialect) -> bool:
    """Whether a statement only says what is so anyway: it opens or ends the one transaction.

    Raises BadSql for one that would break the transaction in two.
    """
    word = first_word(plan.statements[number].sql, dialect)
    if word in _BEGINS and number == 0:
        return True
    if word in _COMMITS and number == len(plan.statements) - 1 and plan.write is None:
        return True
    words = plan.statements[number].sql.upper().split()
    if word in _BEGINS | _ENDS and "TO" not in words:
        raise BadSql(
            f"Statement {number + 1} is {word}, but a task is one transaction: all of its "
            "statements happen or none. Remove it, or split the task in two."
        )
    return False


# --- Results -----------------------------------------------------------------------------------

Statement = dict[str, Any]
NOTHING: Statement = {"rows": [], "row_count": 0, "columns": []}


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], row_count: int | None
) -> Statement:
    """The result of one statement; raises NotPlain. A repeated column name gets a number."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            name, number = f"{column}_{number}", number + 1
        names.append(name)
    found = plain([dict(zip(names, row, strict=True)) for row in rows], "database")
    return {
        "rows": found,
        "row_count": len(found) if row_count is None else row_count,
        "columns": names,
    }


def joined(parts: Sequence[Statement]) -> Statement:
    """The results of several statements that write one table, as of one."""
    if not parts:
        return NOTHING
    return {
        "rows": [row for part in parts for row in part["rows"]],
        "row_count": sum(part["row_count"] for part in parts),
        "columns": parts[-1]["columns"],
    }


def result(parts: Sequence[Statement]) -> dict[str, Any]:
    """What the task yields: the last statement's, and each by its number."""
    return {**parts[-1], **{f"command_{n}": part for n, part in enumerate(parts)}}


def known_failure(error: BaseException) -> Outcome | None:
    """The outcome of a failure that is the same for every database; None for others."""
    match error:
        case Failed():
            return Outcome(status="error", error=error.error)
        case BadSql():
            return failed("client_error", str(error))
        case Refused():
            return failed("auth", str(error))
        case NotFound():
            return failed("auth", f"auth: {error}")
        case NotPlain():
            return failed("schema", f"{error}.")
        case OverflowError():
            return failed("schema", f"A value cannot be stored: {error}.")
    return None
