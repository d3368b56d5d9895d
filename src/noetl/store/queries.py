"""Statements by name, out of files, so that no SQL is written among the Python."""

from __future__ import annotations

import re

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)


def read_queries(text: str) -> dict[str, str]:
    """Name → statement. A name is a line `-- name --`."""
    _, *parts = _NAME.split(text)
    names = parts[::2]
    assert len(names) == len(set(names)), "two queries have the same name"
    return {name: body.strip() for name, body in zip(names, parts[1::2], strict=True)}
