"""The result of rewriting a text."""

from __future__ import annotations

import msgspec


class Remark(msgspec.Struct, frozen=True, order=True):
    """What was changed at a line of the original text, or why it stayed."""

    line: int
    message: str


class Rewritten(msgspec.Struct, frozen=True):
    """A text that was formatted or migrated. Line numbers refer to the original."""

    text: str
    changes: tuple[Remark, ...] = ()
    """What is now written differently and means the same."""
    remarks: tuple[Remark, ...] = ()
    """What stayed as it was, and why."""
