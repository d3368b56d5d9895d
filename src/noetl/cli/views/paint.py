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
    from rich.text import Text

STYLES = {
    "": "",
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
    if is_rich(sys.stdout):
        show_coloured(rows, terminal())
    else:
        for line in plain(rows):
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


def show_coloured(rows: Iterable[Drawn], console: Console) -> None:
    """Print rows in colour, wrapped to the width of the terminal."""
    for line in wrapped(rows, console):
        console.print(line, soft_wrap=True)


def wrapped(rows: Iterable[Drawn], console: Console) -> Iterator[Text]:
    """The lines of rows, with their gutters kept; broken at spaces if there are any."""
    from rich.text import Text

    for row in rows:
        lead = row.lead
        gutter = max(len(row.lead), len(row.hang)) if row.spans else 0
        for line in painted(row.spans).wrap(console, max(console.width - gutter, WIDTH_MIN)):
            line.rstrip()  # trailing spaces may be beyond the edge
            yield Text.assemble((lead, STYLES["quiet"]), line)
            lead = row.hang


def painted(spans: Row) -> Text:
    """A row in its colours. They are among the first eight, which every colour terminal has."""
    from rich.text import Text

    return Text.assemble(*[(span.text, STYLES[span.role]) for span in spans])


def terminal() -> Console:
    """The terminal on stdout."""
    from rich.console import Console

    return Console(file=sys.stdout)
