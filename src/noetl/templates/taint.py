"""Secrets that stay secret: every value computed from a secret is wrapped until it is used.

`Tainted` may stand at any depth of the data that a template reads, and whatever an expression
computes from it is `Tainted` again. The tool that needs the real value calls `reveal`; everything
else (events, logs, errors, screens) calls `mask`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

MASK = "***"


class Tainted:
    """A value that must not be seen. It has no text, no order and no equality of its own."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value: object = uncovered(value) if isinstance(value, Tainted) else value

    def __repr__(self) -> str:
        return MASK

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tainted value is not pickled or copied: reveal or mask it first")


def uncovered(value: Tainted) -> object:
    """The value inside, which may hold further tainted values."""
    return value._value


def reveal(structure: object) -> object:
    """The structure with real values in place of tainted ones, for the tool that uses them."""
    if isinstance(structure, Tainted):
        return reveal(structure._value)
    return _changed(structure, reveal)


def mask(structure: object) -> object:
    """The structure with `***` in place of each tainted value, for everyone else."""
    if isinstance(structure, Tainted):
        return MASK
    return _changed(structure, mask)


def _changed(structure: object, change: Callable[[object], object]) -> object:
    """The structure with its parts changed; the same object if nothing in it changes."""
    if isinstance(structure, dict):
        changed = {key: change(part) for key, part in structure.items()}
        if all(structure[key] is part for key, part in changed.items()):
            return structure
        return changed
    if isinstance(structure, list | tuple):
        parts = [change(part) for part in structure]
        if all(old is new for old, new in zip(structure, parts, strict=True)):
            return structure
        return parts
    return structure
