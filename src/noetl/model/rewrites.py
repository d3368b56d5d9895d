"""What became of a text that was written anew."""

from __future__ import annotations

import msgspec


class Change(msgspec.Struct, frozen=True, order=True):
    """Something that is now written differently and means the same."""

    line: int
    """In the text that came in."""
    message: str


class Remark(msgspec.Struct, frozen=True, order=True):
    """Something that stayed as it was, and why."""

    line: int
    message: str


class Migration(msgspec.Struct, frozen=True):
    """What became of a text. Lines are those of the text that came in."""

    text: str
    changes: tuple[Change, ...]
    remarks: tuple[Remark, ...]
