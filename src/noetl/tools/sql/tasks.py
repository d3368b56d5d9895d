"""What the SQL kinds share: the plan of a task, its execution, and the form of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from noetl.model.outcome import Outcome, ok
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed
from noetl.tools.files.formats import Unreadable, decoded, form_of
from noetl.tools.files.objects import local_file
from noetl.tools.files.scripts import loaded
from noetl.tools.limits import Gathering, shortest, to_thread
from noetl.tools.plain_data import check, numbered, plain
from noetl.tools.sql.config import SqlConfig
from noetl.tools.sql.rows import (
    Batch,
    JsonText,
    Row,
    Write,
    batches,
    quoted_table,
    with_bytes,
)
from noetl.tools.sql.text import BadSql, Bound, Dialect, bound, first_word, statements
from noetl.tools.sql.threads import Halt, in_thread

if TYPE_CHECKING:
    from noetl.tools.tables.files import TableFile


class Plan(NamedTuple):
    """What to do in one transaction: the statements, then the rows."""

    statements: list[Bound]
    write: Write | None


async def planned(config: SqlConfig, context: ToolContext, dialect: Dialect) -> Plan:
    """Raises BadSql, Refused or Failed for a task that no database could run."""
    texts = [config.command] if config.command is not None else []
    written = config.commands or ()
    texts += [written] if isinstance(written, str) else written
    if config.script is not None:
        with out_of_reach():
            texts.append(await loaded(config.script, config.store_auth, context))
    found = [one for text in texts for one in statements(text, dialect)]
    check(config.params, "params")
    write = await _write(config, context)
    if not found and write is None:
        raise BadSql("There is no statement in `command`.")
    if config.result_as != "rows" and (write is not None or not found):
        raise BadSql(f"`result_as: {config.result_as}` needs a query, and no `table`.")
    # Without `params` the statements bind the task's inputs.
    params = config.params if config.params or write is not None else context.inputs
    return Plan(bound(found, params, dialect), write)


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


async def _rows(config: SqlConfig, context: ToolContext) -> Iterable[Row]:
    rows: Any = config.rows
    if rows is None:
        check(context.inputs, "args")
        return [_with_json(context.inputs, context.spec.get("json_inputs", ()))]
    file = context.files.find(rows)
    if file is not None:
        return _file_rows(await context.files.local(file), file.format or "")
    if isinstance(rows, str):
        path = await local_input(rows, config, context)
        if form_of(rows) in ("parquet", "arrow") and path.exists():
            return _file_rows(path, form_of(rows) or "")
        rows = await to_thread(_from_file, path, rows)
    elif isinstance(rows, Mapping):
        rows = await context.read_result(rows)
    if isinstance(rows, Mapping):
        # A result of SQL, or one row.
        rows = rows["rows"] if isinstance(rows.get("rows"), list) else [dict(rows)]
    if not isinstance(rows, list | tuple) or not all(isinstance(row, dict) for row in rows):
        raise Failed("schema", "`rows` must be a list of mappings: column → value.")
    check(rows, "rows")
    made_json = context.spec.get("json_rows", {})
    if not made_json:
        return rows
    return [_with_json(row, made_json.get(str(n), ())) for n, row in enumerate(rows)]


def _with_json(row: Mapping[str, Any], made_json: Sequence[str]) -> Row:
    """The row, with the texts made by `tojson` marked."""
    return {
        name: JsonText(value) if name in made_json and isinstance(value, str) else value
        for name, value in row.items()
    }


async def local_input(address: str, config: SqlConfig, context: ToolContext) -> Path:
    """The file that a task reads: the worker's own, or a copy of an object."""
    with out_of_reach():
        return await local_file(address, config.store_auth, context)


@contextmanager
def out_of_reach() -> Iterator[None]:
    """For a task on a database, an unreachable store is one more thing it cannot reach."""
    try:
        yield
    except Failed as problem:
        if problem.error.kind not in ("connection", "rate_limit", "server_error"):
            raise
        raise Failed("db_connection", str(problem)) from None


def _file_rows(path: Path, form: str) -> Iterable[Row]:
    # DuckDB reads them; a task without files does not load it.
    from noetl.tools.tables.files import rows_of

    return rows_of(path, form)


def _from_file(path: Path, written: str) -> Any:
    try:
        body, form = path.read_bytes(), path.suffix.replace(".jsonl", ".ndjson")[1:]
        if form in ("csv", "json", "ndjson"):
            if not body and form == "json":
                raise Unreadable("it is empty")
            return decoded(body, "", form) if body else []
    except FileNotFoundError:
        raise Failed("not_found", f'rows: the file "{written}" does not exist.') from None
    except Unreadable as error:
        raise Failed("parse", f'rows: the file "{written}" cannot be read: {error}.') from None
    raise BadSql(f'rows: "{written}" is no .csv, .json, .ndjson or .parquet file.')


# --- Transactions ------------------------------------------------------------------------------

_BEGINS = frozenset(["BEGIN", "START"])
_COMMITS = frozenset(["COMMIT", "END"])
_ENDS = _COMMITS | {"ROLLBACK", "ABORT"}


def is_ours(number: int, plan: Plan, dialect: Dialect) -> bool:
    """Whether a statement only opens or ends the one transaction, and can be skipped.

    Raises BadSql for one that would split the transaction.
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
    """The result of one statement. Raises NotPlain."""
    names = numbered(columns)
    found = plain([dict(zip(names, row, strict=True)) for row in rows], "database")
    return {
        "rows": found,
        "row_count": len(found) if row_count is None else row_count,
        "columns": names,
    }


def joined(parts: Sequence[Statement]) -> Statement:
    """The results of several statements that write one table, merged."""
    if not parts:
        return NOTHING
    return {
        "rows": [row for part in parts for row in part["rows"]],
        "row_count": sum(part["row_count"] for part in parts),
        "columns": parts[-1]["columns"],
    }


def result(parts: Sequence[Statement]) -> dict[str, Any]:
    """The task's result: that of the last statement, and each by its number."""
    return {**parts[-1], **{f"command_{n}": part for n, part in enumerate(parts)}}


# --- Databases that run in threads -------------------------------------------------------------


class Found(NamedTuple):
    """What a statement yields."""

    columns: Sequence[str] | None
    """None: no rows."""
    fetch: Callable[[int], Sequence[Sequence[Any]]]
    """So many further rows; none at the end."""
    changed: Callable[[], int | None]
    """How many rows it has changed, once all that it yields are fetched; None: as many."""


class Database:
    """A whole task on one connection, in a thread of its own. Each kind says how."""

    dialect: Dialect
    variables_max: ClassVar[int]
    rows_per_look: ClassVar[int] = 1000
    plan: Plan
    connection: Any
    """While it runs."""

    def __init__(self, config: Any, context: ToolContext) -> None:
        self.config = config
        self.context = context
        self.rules = context.resources.rules
        self.files = context.files
        self.halt = Halt(shortest(config.timeout))

    # --- Of each kind ---

    async def prepare(self) -> None:
        """Find out in the event loop what it needs beside its plan."""
        raise NotImplementedError

    def run(self) -> Done:
        """Open the connection and `perform` the task on it."""
        raise NotImplementedError

    def begin(self) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def executed(self, one: Bound) -> Found:
        raise NotImplementedError

    def columns(self, table: str) -> dict[str, bool]:
        """The columns, and which of them hold bytes; text for those is base64."""
        raise NotImplementedError

    def batch(self, write: Write, batch: Batch) -> Statement:
        raise NotImplementedError

    # --- Of all ---

    def perform(self) -> Done:
        """Run the whole task in one transaction."""
        plan = self.plan
        ours = [is_ours(number, plan, self.dialect) for number in range(len(plan.statements))]
        self.begin()
        parts: list[Statement] = []
        file = None
        for number, (one, is_mark) in enumerate(zip(plan.statements, ours, strict=True)):
            if self.config.result_as != "rows" and number == len(plan.statements) - 1:
                file = self.table_file(one)
            parts.append(NOTHING if is_mark or file is not None else self.statement(one))
        if plan.write is not None:
            known = self.columns(plan.write.table)
            binary = [name for name, is_binary in known.items() if is_binary]
            portions = batches(plan.write, self.variables_max, list(known))
            written = [self.batch(plan.write, with_bytes(batch, binary)) for batch in portions]
            parts.append(joined(written))
        self.halt.check()
        self.commit()
        return Done(parts, file)

    def statement(self, one: Bound) -> Statement:
        with self.halt.statement():
            found = self.executed(one)
            if found.columns is None:
                return {**NOTHING, "row_count": max(0, found.changed() or 0)}
            gathered = Gathering(self.rules.max_response_bytes)
            while portion := found.fetch(self.rows_per_look):
                gathered.take(portion)
                self.halt.check()
        return table(found.columns, gathered.rows, found.changed())

    def table_file(self, one: Bound) -> TableFile:
        """The rows of a query, as a file."""
        from noetl.tools.tables.files import file_of

        with self.halt.statement():
            found = self.executed(one)
            form = self.config.result_as
            if found.columns is None:
                raise BadSql(f"`result_as: {form}` needs a query as the last statement.")
            portions = iter(lambda: found.fetch(self.rows_per_look), [])
            return file_of(found.columns, portions, self.files.folder, form, self.halt)


class Done(NamedTuple):
    """The result of each statement; the last one's rows perhaps in a file."""

    parts: list[Statement]
    file: TableFile | None = None


async def run_in_thread(task: Database) -> Outcome:
    """Run a task on a database inside the worker, in a thread that can be stopped."""
    context = task.context
    await task.prepare()
    task.plan = await planned(task.config, context, task.dialect)
    total = shortest(context.timeout)
    done = await in_thread(context.resources.threads, task.run, task.halt, total)
    return ok(await outcome_of(done, context))


async def outcome_of(done: Done, context: ToolContext) -> dict[str, Any]:
    """The task's result: the last statement's rows, or a reference to a file of them."""
    if done.file is None:
        return result(done.parts)
    file = done.file
    hint = {column.name: column.type for column in file.columns}
    reference = await context.files.keep(
        file.path, form=file.form, schema_hint=hint, preview=file.preview
    )
    rest = {f"command_{n}": part for n, part in enumerate(done.parts[:-1])}
    return {**reference, "row_count": file.rows, "columns": list(hint), **rest}
