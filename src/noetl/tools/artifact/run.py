"""Reads the value of a result reference, as a whole or in part."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import msgspec

from noetl.errors import TooLarge
from noetl.model import refs
from noetl.model.outcome import Outcome, ok
from noetl.tools.artifact import Artifact
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed
from noetl.tools.files.formats import Unreadable, decoded
from noetl.tools.limits import Gathering, check_memory, to_thread
from noetl.tools.plain_data import plain

KEY = re.compile(r"[0-9a-f]{8,64}\Z")
NO_REFERENCE = (
    "`ref` is not a reference that this execution, its parent or a child made. Give what a step "
    "of it yielded (`{{ step._ref }}`); what comes from elsewhere is data."
)
ROWS_PER_LOOK = 1000
TABLES = frozenset(["parquet", "arrow", "csv", "ndjson", "json"])


async def run(config: Artifact, context: ToolContext) -> Outcome:
    return ok(await _read(config, context))


async def _read(config: Artifact, context: ToolContext) -> Any:
    """The value of a whole reference, of its inner part, or of a bare key."""
    written: Any = config.ref
    if isinstance(written, str):
        if not KEY.match(written):
            raise Failed("client_error", "`ref` is neither a reference nor the key of one.")
        body = await context.files.body(written)
        try:
            value = refs.decode(body)
        except msgspec.DecodeError as error:
            raise Failed("parse", f"What is kept under this key is not JSON: {error}.") from None
    else:
        reference = written if "_ref" in written else {"_ref": written}
        if not context.files.is_reference(reference):
            raise Failed("client_error", NO_REFERENCE)
        file = context.files.find(reference)
        if file is not None:
            rows = await _of_file(config, file, context)
            return rows if config.path is None else _part(rows, config.path)
        value = await context.read_result(reference)
    if config.path is not None:
        value = _part(value, config.path)
    return _portion(value, config)


def _portion(value: Any, config: Artifact) -> Any:
    if config.offset == 0 and config.limit is None:
        return value
    if not isinstance(value, list | str):
        raise Failed("client_error", "`offset` and `limit` need a list or a text to count in.")
    stop = None if config.limit is None else config.offset + config.limit
    return value[config.offset : stop]


async def _of_file(config: Artifact, file: refs.About, context: ToolContext) -> Any:
    """Rows of a table, counted in rows; any other file in bytes."""
    form = file.format if config.decode == "auto" else config.decode
    if form in TABLES:
        path = await context.files.local(file)
        stop = None if config.limit is None else config.offset + config.limit

        def rows() -> list[dict[str, Any]]:
            from noetl.tools.tables.files import rows_of

            wanted = islice(rows_of(path, form), config.offset, stop)
            gathered = Gathering(context.resources.rules.max_response_bytes)
            while portion := list(islice(wanted, ROWS_PER_LOOK)):
                gathered.take(portion)
            return gathered.rows

        try:
            return plain(await to_thread(rows), "database")
        except TooLarge as error:
            told = f"{error} Here, `offset` and `limit` read it piece by piece."
            raise Failed("client_error", told, code=error.code) from None
    size = file.size
    stop = size if config.limit is None else config.offset + config.limit
    most = context.resources.rules.max_response_bytes
    remedy = "Read it piece by piece with `offset` and `limit`."
    check_memory(min(stop, size) - config.offset, most, remedy)
    body = await context.files.read(file, config.offset, stop)
    try:
        return plain(decoded(body, "", "text" if form == "text" else "bytes"))
    except Unreadable as error:
        raise Failed("parse", f"The file cannot be read: {error}.") from None


def _part(value: Any, path: str) -> Any:
    """`rows.0.id`: keys of mappings and indexes of lists."""
    at = value
    for step in path.split("."):
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isdigit() and int(step) < len(at):
            at = at[int(step)]
        else:
            raise Failed("not_found", f'There is nothing at "{step}" of the path "{path}".')
    return at
