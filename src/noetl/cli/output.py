"""Writing to stdout and stderr: documents byte for byte, lines without control characters."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click
import msgspec

T = TypeVar("T")

# C0 and C1 controls, and characters that reorder text: data must not control a terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text on one line, with control characters escaped."""
    return _UNPRINTABLE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    character = match[0]
    return " " if character in "\n\t" else ascii(character)[1:-1]


def one_line(text: str) -> str:
    """The text with runs of white space collapsed."""
    return printable(" ".join(text.split()))


def cut(text: str, length: int) -> str:
    """The text, with an ellipsis for what is beyond the length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def as_text(value: Any) -> str:
    """A text as it is, any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def local_time(moment: str | None, zone: str = "") -> str:
    """A moment of an answer as people read it: local time with its offset, by the clock of a zone
    or of the reader. Programs read UTC (`--json`).
    """
    if moment is None:
        return "-"
    from noetl.control.zones import zone_of

    read = datetime.fromisoformat(moment)
    return read.astimezone(zone_of(zone) if zone else None).isoformat(timespec="seconds")


def say(message: str) -> None:
    """Print a remark for people, on stderr."""
    text = "\n".join(printable(line) for line in f"noetl: {message}".split("\n"))
    # Not with click, which would write past a live view; the next frame would erase it.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def print_line(line: str) -> None:
    """Print a line of data, on stdout."""
    click.echo(line)


def print_text(text: str) -> None:
    """Print a document on stdout, exactly these characters as UTF-8, regardless of the terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    print_text(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def print_list(
    name: str,
    found: list[T],
    row: Callable[[T], tuple[str | None, ...]],
    none: str,
    *,
    as_json: bool,
) -> None:
    """Print a list: one JSON document, or a line per row with the first cells aligned. `none` is
    printed if the list is empty.
    """
    if as_json:
        print_json({name: found})
        return
    rows = [[cell or "" for cell in row(one)] for one in found]
    width = max((len(cells[0]) for cells in rows), default=0)
    for first, *rest in rows:
        print_line(printable("  ".join([f"{first:<{width}}", *rest]).rstrip()))
    if not rows:
        say(none)


def counted(number: int, noun: str) -> str:
    """`1 file`, `2,000 files`, `no files`."""
    shown = f"{number:,}" if number else "no"
    return f"{shown} {noun}{'' if number == 1 else 's'}"
