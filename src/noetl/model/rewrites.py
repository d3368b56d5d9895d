"""The result of rewriting a text."""

from __future__ import annotations

import msgspec


class Change(msgspec.Struct, frozen=True, order=True):
    """Something that is now written differently and means the same."""

    line: int
    """The line in the original text."""
    message: str


class Remark(msgspec.Struct, frozen=True, order=True):
    """Something that stayed as it was, and why."""

    line: int
    message: str


class Migration(msgspec.Struct, frozen=True):
    """The result of migrating a text. Line numbers refer to the original."""

    text: str
    changes: tuple[Change, ...]
    remarks: tuple[Remark, ...]
