"""Tokens that services give out for a while (OAuth 2), as workers and servers pass them on."""

from __future__ import annotations

import msgspec


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """What to show, and until when it is good."""

    text: str
    expires_at: float
    """Seconds since 1970."""
