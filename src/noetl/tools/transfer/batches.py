"""Records in transit: batches of CSV lines (see `tables.types`), which every end accepts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    kept: list[Sequence[Any]] = []
    for row in rows:
        kept.append(row)
        if len(kept) >= size:
            yield _batch(names, kept)
            kept = []
    if kept:
        yield _batch(names, kept)


def of_records(records: Iterable[Any], mapping: Mapping[str, str], size: int, skip: int) -> Batches:
    """Batches from mappings, whose keys may differ; `mapping` selects them."""
    kept: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        if number < skip:
            continue
        if not isinstance(record, dict):
            raise Failed("schema", f"Record {number} is not a mapping of columns to values.")
        kept.append(_mapped(record, mapping, number))
        if len(kept) >= size:
            yield _of_mappings(kept)
            kept = []
    if kept:
        yield _of_mappings(kept)


def _mapped(record: dict[str, Any], mapping: Mapping[str, str], number: int) -> dict[str, Any]:
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


def _of_mappings(records: list[dict[str, Any]]) -> Batch:
    names = list(dict.fromkeys(name for record in records for name in record))
    return _batch(names, [[record.get(name) for name in names] for record in records])


def _batch(names: Sequence[str], rows: list[Sequence[Any]]) -> Batch:
    kinds = Kinds(names)
    kinds.see(rows)
    lines = [line_of(row).encode() for row in rows]
    return Batch(kinds.columns(), b"".join(lines), len(lines), max(map(len, lines)))
