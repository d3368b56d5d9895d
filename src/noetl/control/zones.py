"""The time zones of this machine, for code that may read neither files nor clocks."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

ZONES_MAX = 1000


class SystemZones:
    """See `noetl.model.calendar.Zones`."""

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def find(self, name: str) -> tzinfo | None:
        return zone_of(name)

    def names(self) -> list[str]:
        return sorted(zoneinfo.available_timezones())


@lru_cache(ZONES_MAX)
def zone_of(name: str) -> tzinfo | None:
    """A zone by its name in the IANA database; None if it has none of that name."""
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None
