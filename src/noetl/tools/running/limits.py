"""How long a call may take: what the task's config says and what its spec says, the shorter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.model.duration import seconds
from noetl.tools.base import Timeouts


def part(written: Any, name: str) -> float | None:
    """Seconds of one part (`connect`, `read`, `total`) of a timeout; a bare one is the total."""
    if isinstance(written, Timeouts):
        return _seconds(getattr(written, name))
    if isinstance(written, Mapping):
        return _seconds(written.get(name))
    return _seconds(written) if name == "total" else None


def shortest(*written: Any, name: str = "total") -> float | None:
    """The shortest of these timeouts that is there at all."""
    found = [limit for limit in (part(one, name) for one in written) if limit is not None]
    return min(found, default=None)


def _seconds(written: Any) -> float | None:
    return None if written is None else seconds(written)
