"""What may not be printed: structs and tuples would show all their fields."""

from __future__ import annotations

import msgspec


def without_values(self: object) -> str:
    """Write `__repr__ = without_values` in a class: only its name reaches logs and tracebacks.

    A NamedTuple needs a method that calls it.
    """
    return f"{type(self).__name__}(…)"


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that a service gives out for a while (OAuth 2), as workers and servers pass it on."""

    text: str
    expires_at: float
    """Seconds since 1970; until then it is good."""

    __repr__ = without_values
