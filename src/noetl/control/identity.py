"""Ids that are drawn, not derived: those of things that people start."""

from __future__ import annotations

import secrets
from itertools import count

from noetl.model.ids import EPOCH_MS

_numbers = count()


def new_id(now: float) -> str:
    """A 63-bit number in decimal: ordered by time, and unique.

    Of 22 bits below the millisecond the upper twelve count, so that a process never draws one
    twice, and the lower ten are chance, so that two processes hardly ever draw the same.
    """
    milliseconds = max(0, int(now * 1000) - EPOCH_MS) & ((1 << 41) - 1)
    number = next(_numbers) & 0xFFF
    return str(milliseconds << 22 | number << 10 | secrets.randbits(10))


def new_seal() -> str:
    """The mark of the references of an execution: it cannot be guessed."""
    return secrets.token_hex(16)
