"""Ids that are drawn, not derived: those of things that people start."""

from __future__ import annotations

import secrets

from noetl.model.ids import EPOCH_MS


def new_id(now: float) -> str:
    """A 63-bit number in decimal: ordered by time, and nobody else's."""
    milliseconds = max(0, int(now * 1000) - EPOCH_MS) & ((1 << 41) - 1)
    return str(milliseconds << 22 | secrets.randbits(22))


def new_seal() -> str:
    """What marks the references of an execution: nobody can guess it."""
    return secrets.token_hex(16)
