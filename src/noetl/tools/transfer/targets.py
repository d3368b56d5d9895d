"""Where records go: what every target promises, and web services, which know a batch that is sent
again by its key (tables are in `transfer_tables`, files in `transfer_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import duckdb
import msgspec

from noetl.tools.plain_data import plain
from noetl.tools.tables.files import parsed, reading
from noetl.tools.tables.types import Column
from noetl.tools.transfer import ToHttp
from noetl.tools.transfer.batches import Batch

DONE = 0
"""The number under which a web service's end is noted."""


class Mark(NamedTuple):
    """How far a transfer is."""

    records: int = 0
    batches: int = 0
    done: bool = False


# Made once: threads that do so at the same time crash in msgspec.
_mark = msgspec.json.Decoder(Mark).decode


class Target(Protocol):
    """An end that takes batches."""

    def mark(self) -> Mark:
        """How far an earlier attempt came."""

    def write(self, batch: Batch, reached: Mark) -> None:
        """Write a batch, all of it or nothing, and where that brings us."""

    def finish(self, reached: Mark) -> None:
        """All is written."""


class Reader:
    """Makes values of lines, with a DuckDB of its own."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder

    def rows(self, batch: Batch, shown: Callable[[Column], str]) -> list[tuple[Any, ...]]:
        query = reading(batch.saved(self._folder))
        listed = ", ".join(shown(column) for column in batch.columns)
        return self._connection.execute(f"SELECT {listed} FROM ({query})").fetchall()  # noqa: S608

    def records(self, batch: Batch) -> list[dict[str, Any]]:
        self._connection.execute(reading(batch.saved(self._folder)))
        columns = self._connection.description or []
        rows = parsed(self._connection.fetchall(), columns)
        return [dict(zip(batch.names, plain(list(row), "database"), strict=True)) for row in rows]


# --- Web services ------------------------------------------------------------------------------


class Notes(NamedTuple):
    """What attempts write down for those after them, each name once."""

    keep: Callable[[str, bytes], None]
    read: Callable[[str], bytes | None]


class ToService:
    """One request for each batch, with a key of its own that makes repeats harmless.

    A batch that was taken is noted; only the one that was on its way at a crash is sent again.
    """

    def __init__(
        self,
        end: ToHttp,
        send: Callable[[Mapping[str, Any], int], Any],
        reader: Reader,
        notes: Notes | None,
    ) -> None:
        self._end = end
        self._send = send
        self._reader = reader
        self._notes = notes

    def mark(self) -> Mark:
        """Of the last batch that was noted; there are no gaps, so it need not be looked for."""
        found, above = Mark(), 1
        while (reached := self._noted(above)) is not None:
            found, above = reached, above * 2
        while above - found.batches > 1:
            middle = (found.batches + above) // 2
            reached = self._noted(middle)
            if reached is None:
                above = middle
            else:
                found = reached
        return found._replace(done=self._noted(DONE) is not None)

    def write(self, batch: Batch, reached: Mark) -> None:
        records: Any = self._reader.records(batch)
        request = {
            "method": self._end.method,
            "url": self._end.url,
            "headers": self._end.headers,
            "json": {self._end.records: records} if self._end.records else records,
            "auth": self._end.auth,
        }
        self._send(request, reached.batches)
        self._note(reached.batches, reached)

    def finish(self, reached: Mark) -> None:
        self._note(DONE, reached)

    def _note(self, number: int, reached: Mark) -> None:
        if self._notes is not None:
            self._notes.keep(f"batch {number}", msgspec.json.encode(reached))

    def _noted(self, number: int) -> Mark | None:
        body = self._notes.read(f"batch {number}") if self._notes is not None else None
        return None if body is None else _mark(body)
