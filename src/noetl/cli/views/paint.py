"""Rows of text with roles, and how they are printed: with colours and line breaks on a terminal,
as plain text elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TextIO

from noetl.cli.output import print_line

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    "title": "bold",
    "step": "bold",
    "target": "bold",
    "name": "",
    "kind": "cyan",
    "word": "blue",
    "guard": "yellow",
    "good": "green",
    "back": "magenta",
    "warning": "red",
    "error": "bold red",
    "quiet": "dim",
    "prose": "italic dim",
}
WIDTH_MIN = 20
"""The minimum width of the text beside a gutter; in a narrower window lines overflow."""


class Span(NamedTuple):
    """A piece of a row, with the role that determines its colour."""

    text: str
    role: str = ""


Row = tuple[Span, ...]


class Drawn(NamedTuple):
    """A row with its gutter, and the gutter of its continuation lines."""

    lead: str
    hang: str
    spans: Row = ()


def show(rows: Iterable[Drawn]) -> None:
    """Print rows on stdout, in colour on a terminal."""
    for line in coloured(rows, terminal()) if is_rich(sys.stdout) else plain(rows):
        print_line(line)


def is_rich(stream: TextIO) -> bool:
    """Whether the stream can show colours and drawing characters."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def plain(rows: Iterable[Drawn]) -> Iterator[str]:
    """Rows as plain text, without cuts and breaks."""
    for row in rows:
        text = row.lead + "".join(span.text for span in row.spans)
        yield text.replace("…", "...").rstrip()


def coloured(rows: Iterable[Drawn], console: Console) -> Iterator[str]:
    """Rows in colour, wrapped to the width of the terminal with their gutters kept."""
    paint = Brush(console)
    for row in rows:
        lead = row.lead
        gutter = max(len(row.lead), len(row.hang)) if row.spans else 0
        for spans in _broken(row.spans, max(console.width - gutter, WIDTH_MIN)):
            yield paint(lead, "quiet") + "".join(paint(*span) for span in spans)
            lead = row.hang


class Brush:
    """Colours a piece of text by its role, as far as the terminal can."""

    def __init__(self, console: Console) -> None:
        from rich.color import ColorSystem
        from rich.style import Style

        self._styles = {role: Style.parse(text) for role, text in STYLES.items()}
        # Our colours are among the first eight, which every colour terminal has.
        self._system = ColorSystem.STANDARD if console.color_system is not None else None

    def __call__(self, text: str, role: str = "") -> str:
        if not role or not text.strip():
            return text
        return self._styles[role].render(text, color_system=self._system)


def terminal() -> Console:
    """The terminal on stdout."""
    from rich.console import Console

    return Console(file=sys.stdout)


def _broken(spans: Row, width: int) -> Iterator[Row]:
    """The row in pieces that fit, broken at spaces if there are any."""
    from rich.cells import cell_len

    if sum(cell_len(span.text) for span in spans) <= width:
        yield spans
        return
    line: list[Span] = []
    room = width
    for span in spans:
        for word in _words(span.text):
            rest = word
            if line and cell_len(rest.rstrip()) > room:
                yield _trimmed(line)
                line, room = [], width
            while cell_len(rest.rstrip()) > room:
                head, rest = _cut(rest, width)
                yield (Span(head, span.role),)
            if rest.strip() or line:
                line.append(Span(rest, span.role))
                room -= cell_len(rest)
    if line:
        yield _trimmed(line)


def _trimmed(line: list[Span]) -> Row:
    """Without trailing spaces, which may be beyond the edge."""
    while line and not line[-1].text.strip():
        line.pop()
    if not line:
        return ()
    return (*line[:-1], Span(line[-1].text.rstrip(), line[-1].role))


def _words(text: str) -> Iterator[str]:
    """The words, each with the spaces after it."""
    word = ""
    for character in text:
        if word.endswith(" ") and character != " ":
            yield word
            word = ""
        word += character
    if word:
        yield word


def _cut(text: str, width: int) -> tuple[str, str]:
    from rich.cells import cell_len

    end = width
    while cell_len(text[:end]) > width:
        end -= 1
    return text[:end], text[end:]
