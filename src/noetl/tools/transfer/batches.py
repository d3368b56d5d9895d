"""Records in transit: batches of CSV lines (see `tables.types`), which every end accepts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from noetl.tools.failures import Failed
from noetl.tools.tables.files import Lines
from noetl.tools.tables.types import Column, Kinds, line_of

BYTES_MAX = 32 * 1024 * 1024
"""A batch of long records ends at this size, however few they are."""


class Batch(msgspec.Struct, frozen=True):
    """Some records with the same columns."""

    columns: tuple[Column, ...]
    lines: bytes
    count: int
    widest: int

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def saved(self, folder: Path) -> Lines:
        """The batch as a file; replaces the file of the previous batch."""
        path = folder / "batch.csv"
        path.write_bytes(self.lines)
        return Lines(path, self.columns, self.widest)


Batches = Generator[Batch, None, None]
Item = TypeVar("Item")


def of_lines(columns: tuple[Column, ...], lines: Iterable[Any], size: int) -> Batches:
    """Batches from lines, one record each."""
    kept: list[Any] = []
    weight = widest = 0
    for line in lines:
        kept.append(line)
        length = len(line)
        weight += length
        if length > widest:
            widest = length
        if len(kept) >= size or weight >= BYTES_MAX:
            yield Batch(columns, b"".join(kept), len(kept), widest)
            kept, weight, widest = [], 0, 0
    if kept:
        yield Batch(columns, b"".join(kept), len(kept), widest)


def of_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], size: int) -> Batches:
    """Batches from rows of values. Each batch has the types that its own values need."""
    for portion in _portions(rows, size):
        yield _batch(names, portion)


def of_records(records: Iterable[Any], mapping: Mapping[str, str], size: int, skip: int) -> Batches:
    """Batches from mappings, whose keys may differ; `mapping` selects them."""
    mapped = (_mapped(one, mapping, n) for n, one in islice(enumerate(records), skip, None))
    for portion in _portions(mapped, size):
        names = list(dict.fromkeys(name for record in portion for name in record))
        yield _batch(names, [[record.get(name) for name in names] for record in portion])


def _portions(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while portion := list(islice(left, size)):
        yield portion


def _mapped(record: Any, mapping: Mapping[str, str], number: int) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise Failed("schema", f"Record {number} is not a mapping of columns to values.")
    if not mapping:
        return record
    found = {}
    for wanted, path in mapping.items():
        at: Any = record
        for step in [path] if path in record else path.split("."):
            if not isinstance(at, dict) or step not in at:
                raise Failed("schema", f'mapping: record {number} has no "{path}" for "{wanted}".')
            at = at[step]
        found[wanted] = at
    return found


def _batch(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Batch:
    kinds = Kinds(names)
    kinds.see(rows)
    lines = [line_of(row).encode() for row in rows]
    return Batch(kinds.columns(), b"".join(lines), len(lines), max(map(len, lines)))
