"""Where records go: the protocol of targets, and web services, which recognise a repeated batch by
its key (tables are in `tables`, files in `files`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import duckdb
import msgspec

from noetl.tools.files.results import Files
from noetl.tools.plain_data import plain
from noetl.tools.tables.files import parsed, reading
from noetl.tools.tables.types import Column
from noetl.tools.transfer import ToHttp
from noetl.tools.transfer.batches import Batch

DONE = 0
"""The batch number of a web service's final note."""


class Mark(NamedTuple):
    """The progress of a transfer."""

    records: int = 0
    batches: int = 0
    done: bool = False


# Made once: msgspec crashes if several threads do this at the same time.
_mark = msgspec.json.Decoder(Mark).decode


class Target(Protocol):
    """An end that takes batches."""

    def mark(self) -> Mark:
        """The progress of an earlier attempt."""

    def write(self, batch: Batch, reached: Mark) -> None:
        """Write a batch and the new progress, atomically."""

    def finish(self, reached: Mark) -> None:
        """All is written."""


class Reader(NamedTuple):
    """Converts lines to values, with a DuckDB of its own."""

    connection: duckdb.DuckDBPyConnection
    folder: Path

    def rows(self, batch: Batch, shown: Callable[[Column], str]) -> list[tuple[Any, ...]]:
        query = reading(batch.saved(self.folder))
        listed = ", ".join(shown(column) for column in batch.columns)
        return self.connection.execute(f"SELECT {listed} FROM ({query})").fetchall()  # noqa: S608

    def records(self, batch: Batch) -> list[dict[str, Any]]:
        self.connection.execute(reading(batch.saved(self.folder)))
        columns = self.connection.description or []
        rows = parsed(self.connection.fetchall(), columns)
        return [dict(zip(batch.names, plain(list(row), "database"), strict=True)) for row in rows]


# --- Web services ------------------------------------------------------------------------------


class Notes(NamedTuple):
    """Notes that attempts leave for later ones, each name once; none if nothing is resumed."""

    files: Files
    awaited: Callable[[Coroutine[Any, Any, Any]], Any]
    resume: bool

    def keep(self, name: str, body: bytes) -> None:
        if self.resume:
            self.awaited(self.files.note(name, body))

    def read(self, name: str) -> bytes | None:
        found: bytes | None = self.awaited(self.files.noted(name)) if self.resume else None
        return found


class ToService(msgspec.Struct, frozen=True):
    """One request per batch, with a key that makes repeats harmless.

    An accepted batch is noted; only the one under way at a crash is sent again.
    """

    end: ToHttp
    send: Callable[[Mapping[str, Any], int], Any]
    reader: Reader
    notes: Notes

    def mark(self) -> Mark:
        """The progress of the last noted batch; there are no gaps, so they are read in order."""
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
        records: Any = self.reader.records(batch)
        request = {
            "method": self.end.method,
            "url": self.end.url,
            "headers": self.end.headers,
            "json": {self.end.records: records} if self.end.records else records,
            "auth": self.end.auth,
        }
        self.send(request, reached.batches)
        self._note(reached.batches, reached)

    def finish(self, reached: Mark) -> None:
        self._note(DONE, reached)

    def _note(self, number: int, reached: Mark) -> None:
        self.notes.keep(f"batch {number}", msgspec.json.encode(reached))

    def _noted(self, number: int) -> Mark | None:
        body = self.notes.read(f"batch {number}")
        return None if body is None else _mark(body)
