"""An excerpt of the text around a problem, with a mark under the place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len

from noetl.cli.output import printable
from noetl.cli.views.description import Span
from noetl.cli.views.drawing import Drawn

TAB = 4
_WORD = re.compile(r"[\w.-]+|.", re.DOTALL)


def excerpt(lines: list[str], line: int, column: int, width: int) -> Iterator[Drawn]:
    """The line of a problem and a caret under its column; empty if there is no such line."""
    if not 1 <= line <= len(lines):
        return
    number = str(line)
    gutter = f"{'':{len(number)}} │ "
    written = lines[line - 1]
    at = min(column - 1, len(written))
    word = _WORD.match(written, at)
    before, marked = _shown(written[:at]), _shown(word[0]) if word else ""
    after = _shown(written[at + len(word[0]) :]) if word else ""
    room = max(width - len(gutter), 20)
    before, marked, after = _window(before, marked, after, room)
    yield Drawn(f"{number} │ ", gutter, (Span(before), Span(marked, "error"), Span(after)))
    carets = "^" * max(cell_len(marked), 1)
    yield Drawn(gutter, gutter, (Span(" " * cell_len(before)), Span(carets, "error")))


def _shown(text: str) -> str:
    return printable(text.replace("\t", " " * TAB))


def _window(before: str, marked: str, after: str, room: int) -> tuple[str, str, str]:
    """Cut a long line so that the marked place stays visible."""
    while cell_len(marked) > room:
        marked = marked[:-1]
    space = room - max(cell_len(marked), 1)
    if cell_len(before) > max(space * 2 // 3, space - cell_len(after)):
        keep = max(space * 2 // 3 - 1, 0)
        while cell_len(before) > keep:
            before = before[1:]
        before = f"…{before}" if space else ""
    space -= cell_len(before)
    if cell_len(after) > space:
        while after and cell_len(after) > space - 1:
            after = after[:-1]
        after = f"{after}…" if space > 0 else ""
    return before, marked, after
