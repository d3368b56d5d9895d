"""Files and objects as targets of a transfer.

Batches are collected as lines in a directory beside the file, each followed by a mark with the
progress of the transfer. After the last batch they become the file, so no one ever sees half of it.
An attempt that finds the directory of an earlier one continues after its last mark; on a machine
without such a directory it starts over.

An attempt locks the directory. If the previous attempt is still alive, because it has not noticed
the loss of its lease, the new one uses a directory of its own.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from noetl.tools.failures import Failed
from noetl.tools.sql.duckdb import bounded
from noetl.tools.sql.rows import Misfit
from noetl.tools.sql.threads import Halt
from noetl.tools.tables.files import Lines, reading, write
from noetl.tools.tables.types import Column, Kinds
from noetl.tools.transfer import InFile, InStore
from noetl.tools.transfer.batches import Batch
from noetl.tools.transfer.targets import Mark, Notes

PART = ".noetl-{id}.part"
ABANDONED_SECONDS = 7 * 24 * 3600
"""After this time no attempt will continue with the collected lines."""


class Gathered(msgspec.Struct, frozen=True):
    """The mark after a batch."""

    records: int
    batches: int
    size: int
    """Bytes of all lines so far."""
    widest: int
    columns: tuple[Column, ...]
    """The columns of this batch; each has the types that its own values need."""


# Made once: msgspec crashes if several threads do this at the same time.
_gathered = msgspec.json.Decoder(Gathered).decode


class Part:
    """The lines of a running transfer, and their marks."""

    def __init__(self, folder: Path, marks: IO[bytes]) -> None:
        self.folder = folder
        self.mark = Mark()
        self.names: list[str] = []
        self._marks = marks
        self._path = folder / "lines"
        self._kinds = Kinds([])
        self._widest = 0
        self._resume()

    def _resume(self) -> None:
        """Continue after the last complete batch; discard the rest."""
        written = self._path.stat().st_size if self._path.exists() else 0
        size = end = 0
        self._marks.seek(0)
        for line in self._marks:
            try:
                gathered = _gathered(line)
            except msgspec.DecodeError:
                break  # It is truncated.
            if not line.endswith(b"\n") or gathered.size > written:
                break
            self._know(gathered)
            size, end = gathered.size, end + len(line)
        self._marks.truncate(end)
        with self._path.open("ab") as file:
            file.truncate(size)

    def add(self, batch: Batch, reached: Mark) -> None:
        """Lines reach the disk before the mark that confirms them."""
        with self._path.open("ab") as file:
            file.write(batch.lines)
            _to_disk(file)
            size = file.tell()
        gathered = Gathered(reached.records, reached.batches, size, batch.widest, batch.columns)
        self._marks.write(msgspec.json.encode(gathered) + b"\n")
        _to_disk(self._marks)
        self._know(gathered)

    def _know(self, gathered: Gathered) -> None:
        if not self.names:
            self.names = [column.name for column in gathered.columns]
            self._kinds = Kinds(self.names)
        self._kinds.know(gathered.columns)
        self._widest = max(self._widest, gathered.widest)
        self.mark = Mark(gathered.records, gathered.batches)

    def lines(self) -> Lines:
        return Lines(self._path, self._kinds.columns(), self._widest)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


# --- Locking -----------------------------------------------------------------------------------


@contextmanager
def gathering(place: Path, resume: bool) -> Iterator[Part]:
    """The lines collected there so far, for this attempt alone.

    If another attempt has them, or nothing is to be continued, a separate directory is used, which
    no later attempt reads.
    """
    _sweep(place.parent, time.time())
    marks = _locked(place) if resume else None
    is_kept = marks is not None
    if marks is None:
        place = place.with_name(PART.format(id=secrets.token_hex(9)))
        marks = _locked(place)
        assert marks is not None, "nobody else knows its name"
    with marks:
        part = Part(place, marks)
        try:
            yield part
        finally:
            if not is_kept or not part.mark.batches:
                part.remove()


def _locked(folder: Path) -> IO[bytes] | None:
    """The marks of that directory, locked until they are closed; None if another attempt has
    them.
    """
    path = folder / "marks"
    while True:
        # Its owner may remove it at any moment; then it is created again.
        with suppress(FileNotFoundError), ExitStack() as stack:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a+b"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                stack.pop_all()
                return file


def _sweep(folder: Path, now: float) -> None:
    """Remove the remains of transfers that were abandoned long ago."""
    for path in folder.glob(PART.format(id="*")):
        with suppress(FileNotFoundError):
            if now - (path / "marks").stat().st_mtime < ABANDONED_SECONDS:
                continue
        marks = _locked(path)
        if marks is not None:
            with marks:
                shutil.rmtree(path, ignore_errors=True)


# --- The target --------------------------------------------------------------------------------


class Finished(msgspec.Struct, frozen=True):
    """The note of a completed transfer: its size, and how to recognise the file."""

    records: int
    batches: int
    stamp: tuple[int, int]


_finished = msgspec.json.Decoder(Finished).decode


class ToFile(msgspec.Struct, frozen=True):
    """Collects lines; at the end DuckDB converts them to the file, which is then published."""

    end: InFile | InStore
    form: str
    path: Path | None
    """The path of the file; None for an object."""
    publish: Callable[[Path], None]
    """Puts the whole file there, atomically."""
    part: Part
    folder: Path
    halt: Halt
    notes: Notes

    def mark(self) -> Mark:
        body = self.notes.read("done")
        if body is not None:
            done = _finished(body)
            # The file may have been written on the disk of another machine.
            if self.path is None or _stamp(self.path) == done.stamp:
                self.part.remove()
                return Mark(done.records, done.batches, done=True)
        return self.part.mark

    def write(self, batch: Batch, reached: Mark) -> None:
        names = self.part.names or batch.names
        if sorted(batch.names) != sorted(names):
            strange = sorted(set(batch.names) ^ set(names))[0]
            raise Misfit(
                f'"{strange}" is a column of some records and not of others, but a file has the '
                "same columns for all. Name the columns you want with `mapping`."
            )
        if batch.names != names:
            raise Misfit("The columns of the records change their order; name them by `mapping`.")
        self.part.add(batch, reached)

    def finish(self, reached: Mark) -> None:
        whole = self._made()
        stamp = _stamp(whole)
        assert stamp is not None
        self.publish(whole)
        done = Finished(reached.records, reached.batches, stamp)
        self.notes.keep("done", msgspec.json.encode(done))
        self.part.remove()

    def _made(self) -> Path:
        """The whole file, with the extensions of its name, from which DuckDB derives the
        compression.
        """
        end = self.end
        name = end.key if isinstance(end, InStore) else end.path
        path = self.part.folder / f"whole{''.join(Path(name).suffixes[-2:])}"
        if not self.part.names and self.form == "parquet":
            raise Failed("schema", "There are no records, and a Parquet file needs columns.")
        if not self.part.names:
            path.write_text("[]\n" if self.form == "json" else "")
        else:
            with bounded(self.folder, self.halt) as connection:
                query = reading(self.part.lines(), self.form)
                header, delimiter = end.header, end.delimiter
                write(connection, query, path, self.form, header=header, delimiter=delimiter)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return path


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns
