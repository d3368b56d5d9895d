"""Times as people write them: durations (30, 2.5, 500ms, 30s, 5m, 1h30m, 2d), rates (10/s, 5/1h)
and moments (2026-01-31, 2026-01-31T12:00, 2026-01-31T12:00:00+01:00).
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, tzinfo

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
DURATION_PATTERN = r"^\s*([0-9]+(\.[0-9]+)?(ms|s|m|h|d)\s*)+$|^\s*[0-9]+(\.[0-9]+)?\s*$"
RATE_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*/\s*([0-9]+(\.[0-9]+)?)?(ms|s|m|h|d)\s*$"


def seconds(written: float | str) -> float | None:
    """The length in seconds, or None if this is not a duration."""
    if not isinstance(written, str):
        return written if math.isfinite(written) and written >= 0 else None
    text = "".join(written.split())
    if re.fullmatch(r"[0-9]{1,15}(\.[0-9]+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return math.fsum(float(number) * _UNITS[unit] for number, unit in parts)


def interval(rate: str) -> float | None:
    """The seconds between two calls at a rate such as 10/s or 100/5m; None if it is not a rate.

    Zero is not a rate: the first call would never come.
    """
    if not re.match(RATE_PATTERN, rate):
        return None
    count, _, period = "".join(rate.split()).partition("/")
    length = seconds(period if period[0].isdigit() else f"1{period}")
    return length / float(count) if length and float(count) > 0 else None


def timestamp(written: str, zone: tzinfo = UTC) -> float | None:
    """The seconds since 1970 of a moment in RFC 3339, or None if this is not one.

    Without an offset it is local time of the zone; a day is its midnight.
    """
    try:
        moment = datetime.fromisoformat(written)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        return None
