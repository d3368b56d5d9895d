"""Clocks that are set while a server runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from noetl.control.clock import Deadline, SharedClock, WallClock
from noetl.control.timers import REST_MAX_SECONDS, Resting

HOUR = 3600.0
LATE_SECONDS = 0.4


class SetClock:
    """A clock that stands where a test puts it."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def times_of(*moments: float) -> Iterator[float]:
    yield from moments


def test_the_time_of_day_follows_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch):
    told = times_of(100.0, 99.5, 100.0 + HOUR, 101.0, 102.0)
    monkeypatch.setattr(time, "time", lambda: next(told))
    clock = WallClock()

    assert [clock.now() for _ in range(3)] == [99.5, 100.0 + HOUR, 101.0]


def test_the_time_of_day_does_not_go_back_a_little(monkeypatch: pytest.MonkeyPatch):
    told = times_of(100.0, 100.5, 100.2, 100.7)
    monkeypatch.setattr(time, "time", lambda: next(told))
    clock = WallClock()

    assert [clock.now() for _ in range(3)] == [100.5, 100.5, 100.7]


def test_a_shared_clock_that_was_set_back_is_followed():
    async def story() -> list[float]:
        ahead = HOUR

        async def ask() -> float:
            return time.time() + ahead

        clock = SharedClock(ask)
        found = []
        for ahead in (HOUR, 0.0, -0.5):  # noqa: B007 - `ask` reads it
            await clock.follow()
            found.append(clock.now() - time.time())
        return found

    first, second, third = asyncio.run(story())

    assert first > HOUR - 60
    assert abs(second) < 60
    assert -0.5 < third <= second


@pytest.mark.parametrize("late", ["asked", "answered"])
def test_an_answer_that_takes_long_does_not_put_a_shared_clock_wrong(late: str):
    """A database that answers again after ten seconds said nothing about the first five."""

    async def story() -> float:
        async def ask() -> float:
            now = time.time()
            await asyncio.sleep(LATE_SECONDS)
            return time.time() if late == "asked" else now

        clock = SharedClock(ask)
        await clock.follow()
        return clock.now() - time.time()

    assert abs(asyncio.run(story())) < LATE_SECONDS / 4


def test_a_deadline_is_not_further_away_when_the_clock_is_set_back():
    clock = SetClock()
    deadline = Deadline(clock, 15.0)

    clock.at += 5
    assert deadline.left() == 10.0
    clock.at -= HOUR
    assert deadline.left() == 10.0
    clock.at += 10
    assert deadline.left() == 0.0


def test_what_rests_is_tried_again_although_the_clock_was_set_back():
    resting = Resting()
    now = 1_000_000.0
    for _ in range(10):
        resting.note("timer", now, done=False)

    assert resting.awake({"timer": 1}, now + 0.1) == {}
    assert resting.awake({"timer": 1}, now - HOUR) == {"timer": 1}
    assert resting.awake({"timer": 1}, now + REST_MAX_SECONDS) == {"timer": 1}
