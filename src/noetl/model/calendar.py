"""When a schedule is due: its times, one after the other, in the local time of its zone.

Times are seconds since 1970. A time is what the schedule says; it is due a little later if there is
a `jitter`, which is the same for everybody who asks.

Cron expressions have the habits of Debian's cron at changes of summer time (`cronsim`): a time that
the clock skips runs once, right after the gap; one that comes twice runs the first time only.
Expressions whose minute or hour begins with `*` follow the clock as it is, so that "every 15
minutes" stays every 15 minutes.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple, Protocol

from cronsim import CronSim, CronSimError

from noetl.model.triggers import Schedule

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EVERY_MIN = 1.0
GAP_YEARS = 2
"""How many years of daylight saving changes are searched for times in gaps."""


class Zones(Protocol):
    """The time zones of this machine, for pure code, which may not read files."""

    @property
    def now(self) -> datetime:
        """The present moment."""

    def find(self, name: str) -> tzinfo | None:
        """The zone of an IANA name; None if there is none."""

    def names(self) -> list[str]:
        """The names of all zones, for suggestions."""


class OnlyUtc:
    """UTC only, where no zones are given."""

    now = datetime(1970, 1, 1, tzinfo=UTC)

    def find(self, name: str) -> tzinfo | None:
        return UTC if name == "UTC" else None

    def names(self) -> list[str]:
        return ["UTC"]


def cron_problem(expression: str) -> str | None:
    """What is wrong with an expression; None if it is valid and has a time at all."""
    if expression.startswith("@") and expression not in NAMED:
        return f"there is no {expression}; known are {', '.join(NAMED)}"
    try:
        next(CronSim(NAMED.get(expression, expression), datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        return str(error)[:1].lower() + str(error)[1:]
    except StopIteration:
        return "no day is like that"
    return None


def times_after(schedule: Schedule, zone: tzinfo, after: float) -> Iterator[float]:
    """The times after that moment, in order, without duplicates."""
    if schedule.start is not None:
        # The start itself may be a time.
        after = max(after, schedule.start - 1e-3)
    ways = [_cron_times(expression, zone, after) for expression in schedule.cron]
    if schedule.every is not None:
        ways.append(_even_times(schedule.every, schedule.offset, after))
    last = after
    for time in heapq.merge(*ways):
        if schedule.end is not None and time > schedule.end:
            return
        if time > last:
            yield time
            last = time


def next_after(schedule: Schedule, zone: tzinfo, after: float) -> float | None:
    return next(times_after(schedule, zone, after), None)


def previous_before(schedule: Schedule, zone: tzinfo, time: float) -> float | None:
    """The last time before that one, as if the schedule had always existed."""
    found = [_cron_before(expression, zone, time) for expression in schedule.cron]
    if schedule.every is not None:
        found.append(
            (math.ceil((time - schedule.offset) / schedule.every) - 1) * schedule.every
            + schedule.offset
        )
    return max((one for one in found if one is not None), default=None)


def due_at(schedule: Schedule, zone: tzinfo, time: float) -> float:
    """The moment at which a time is started: later by its share of the jitter, which depends on
    path and time only, and always before the next time.
    """
    if not schedule.jitter:
        return time
    following = next_after(schedule, zone, time)
    room = schedule.jitter if following is None else min(schedule.jitter, following - time)
    drawn = hashlib.sha256(f"{schedule.path}\n{time!r}".encode()).digest()
    return time + room * int.from_bytes(drawn[:6]) / 2**48


def _cron_times(expression: str, zone: tzinfo, after: float) -> Iterator[float]:
    cron = CronSim(NAMED.get(expression, expression), datetime.fromtimestamp(after, zone))
    for moment in cron:
        time = moment.timestamp()
        # In an hour that comes twice, cronsim goes by the first one.
        if time > after:
            yield time


def _cron_before(expression: str, zone: tzinfo, time: float) -> float | None:
    moment = datetime.fromtimestamp(time, zone)
    for found in CronSim(NAMED.get(expression, expression), moment, reverse=True):
        if found.timestamp() < time:
            return found.timestamp()
    return None


def _even_times(every: float, offset: float, after: float) -> Iterator[float]:
    number = math.floor((after - offset) / every) + 1
    while True:
        time = number * every + offset
        if time > after:
            yield time
        number += 1


class Gap(NamedTuple):
    """A time that the clock skips, and when it runs instead."""

    skipped: datetime
    instead: datetime


def first_in_gap(expression: str, zone: tzinfo, since: datetime) -> Gap | None:
    """The first time of an expression after that moment that the clock in the zone skips."""
    written = NAMED.get(expression, expression)
    fields = written.split()
    if len(fields) != 5 or fields[0].startswith("*") or fields[1].startswith("*"):
        return None  # it follows the clock
    for begins, ends in _gaps(zone, since):
        found = next(CronSim(written, begins - timedelta(seconds=1)), None)
        if found is not None and found < ends:
            return Gap(found, ends)
    return None


def _gaps(zone: tzinfo, since: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Local times that the clock skips: from, to."""
    day = since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for _ in range(366 * GAP_YEARS):
        after = day + timedelta(days=1)
        if _offset(after, zone) > _offset(day, zone):
            low, high = day, after
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) / 2
                if _offset(middle, zone) > _offset(day, zone):
                    high = middle
                else:
                    low = middle
            change = high.replace(microsecond=0)
            yield tuple(
                (change + _offset(moment, zone)).replace(tzinfo=None) for moment in (day, after)
            )  # type: ignore[misc]
        day = after


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()
