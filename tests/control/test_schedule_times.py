"""When schedules are due: local time, summer time, jitter; and what is decided about each time."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from noetl.control.schedules import (
    MISSED_MAX,
    RECHECK_SECONDS,
    ScheduleState,
    Turn,
    decide,
    rendered,
)
from noetl.model import calendar
from noetl.model.triggers import PlaybookRef, Schedule, TriggerTime

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0


def schedule(**fields: Any) -> Schedule:
    given: dict[str, Any] = {"name": "s", "path": "t/s", "playbook": PlaybookRef(path="t/p")}
    return Schedule(**given | fields)


def times(given: Schedule, since: str, count: int) -> list[str]:
    zone = ZoneInfo(given.timezone)
    after = datetime.fromisoformat(since).timestamp()
    found = islice(calendar.times_after(given, zone, after), count)
    return [datetime.fromtimestamp(time, zone).isoformat() for time in found]


GAPS = {
    "Europe/Berlin": (
        "2026-03-28T12:00Z",
        ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
    ),
    "America/New_York": (
        "2026-03-07T12:00Z",
        ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"],
    ),
    "Asia/Tokyo": ("2026-03-28T12:00Z", ["2026-03-29T02:30:00+09:00", "2026-03-30T02:30:00+09:00"]),
}


@pytest.mark.parametrize("zone", GAPS)
def test_a_time_in_the_gap_of_summer_time_runs_once_right_after_it(zone: str):
    since, expected = GAPS[zone]

    assert times(schedule(cron=("30 2 * * *",), timezone=zone), since, 2) == expected


def test_a_gap_of_half_an_hour_is_a_gap_too():
    given = schedule(cron=("15 2 * * *",), timezone="Australia/Lord_Howe")

    assert times(given, "2026-10-03T00:00Z", 2) == [
        "2026-10-04T02:30:00+11:00",
        "2026-10-05T02:15:00+11:00",
    ]


OVERLAPS = {
    "Europe/Berlin": (
        "2026-10-24T12:00Z",
        ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
    ),
    "America/New_York": (
        "2026-10-31T12:00Z",
        ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"],
    ),
    "Australia/Lord_Howe": (
        "2026-04-04T12:00:00+11:00",
        ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
    ),
    "Asia/Tokyo": ("2026-10-24T12:00Z", ["2026-10-25T02:30:00+09:00", "2026-10-26T02:30:00+09:00"]),
}


@pytest.mark.parametrize("zone", OVERLAPS)
def test_a_time_that_comes_twice_runs_once(zone: str):
    since, expected = OVERLAPS[zone]
    hour, minute = expected[0][11:16].split(":")
    given = schedule(cron=(f"{int(minute)} {int(hour)} * * *",), timezone=zone)

    assert times(given, since, 2) == expected


def test_whoever_begins_to_look_in_the_second_of_two_hours_does_not_run_it_again():
    given = schedule(cron=("30 2 * * *",), timezone="Europe/Berlin")

    assert times(given, "2026-10-25T02:15:00+01:00", 1) == ["2026-10-26T02:30:00+01:00"]


def test_every_quarter_of_an_hour_stays_that_through_changes_of_the_clock():
    given = schedule(cron=("*/15 * * * *",), timezone="Europe/Berlin")
    after = datetime.fromisoformat("2026-10-24T23:00Z").timestamp()
    found = list(islice(calendar.times_after(given, ZoneInfo("Europe/Berlin"), after), 16))

    assert {b - a for a, b in pairwise(found)} == {900.0}


def test_several_expressions_are_one_row_of_times_and_none_comes_twice():
    given = schedule(cron=("0 6 * * *", "0 18 * * *", "0 6 * * 1"))

    assert times(given, "2026-06-01T00:00Z", 3) == [
        "2026-06-01T06:00:00+00:00",
        "2026-06-01T18:00:00+00:00",
        "2026-06-02T06:00:00+00:00",
    ]


def test_every_counts_from_1970_on_with_an_offset():
    given = schedule(every=900.0, offset=120.0)

    assert times(given, "2026-06-01T12:03:00Z", 2) == [
        "2026-06-01T12:17:00+00:00",
        "2026-06-01T12:32:00+00:00",
    ]


def test_start_and_end_belong_to_it():
    given = schedule(every=HOUR, start=NOON, end=NOON + 2 * HOUR)
    found = list(calendar.times_after(given, UTC, NOON - 10 * HOUR))

    assert found == [NOON, NOON + HOUR, NOON + 2 * HOUR]


def test_jitter_is_the_same_for_whoever_asks_and_never_passes_the_next_time():
    given = schedule(every=60.0, jitter=300.0)
    due = [calendar.due_at(given, UTC, NOON + 60 * n) for n in range(50)]

    assert due == [calendar.due_at(given, UTC, NOON + 60 * n) for n in range(50)]
    assert due == sorted(due)
    assert all(0 <= at - (NOON + 60 * n) < 60 for n, at in enumerate(due))
    assert len({round(at % 60) for at in due}) > 20


# --- What is decided ---------------------------------------------------------------------------


def turn(
    given: Schedule,
    now: float,
    *,
    running: tuple[str, ...] = (),
    ended: dict[str, str] | None = None,
    buffered: tuple[float, ...] = (),
    since: float = NOON,
    **state: Any,
) -> Turn:
    waits = [TriggerTime(path="t/s", time=time, outcome="buffered") for time in buffered]
    before = ScheduleState(
        version=1, digest="d", since=since, running=running, waiting=bool(buffered), **state
    )
    return decide(given, UTC, before, now=now, ended=ended or {}, buffered=waits)


def outcomes(found: Turn) -> list[tuple[float, str]]:
    return [((one.time - NOON) / HOUR, one.outcome) for one in found.times]


def test_what_is_not_due_is_left_alone_until_it_is():
    found = turn(schedule(every=HOUR), NOON + 10)

    assert (found.start, found.times, found.next_at) == (None, (), NOON + HOUR)


def test_what_is_due_is_started_and_the_next_time_is_known():
    found = turn(schedule(every=HOUR), NOON + HOUR + 1)

    assert found.start is not None
    assert (found.start.time, found.state.since) == (NOON + HOUR, NOON + HOUR)
    assert found.next_at == NOON + 2 * HOUR


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [(1.0, "skipped"), (2.0, "skipped")]),
        ("buffer_one", [(1.0, "buffered"), (2.0, "skipped")]),
        ("buffer_all", [(1.0, "buffered"), (2.0, "buffered")]),
    ],
)
def test_what_becomes_of_times_while_an_execution_runs(overlap: str, expected: list[Any]):
    given = schedule(every=HOUR, overlap=overlap, catchup_window=10 * HOUR)
    found = turn(given, NOON + 2 * HOUR + 1, running=("x",))

    assert found.start is None
    assert outcomes(found) == expected
    assert found.state.since == NOON + 2 * HOUR
    assert found.state.waiting is (overlap != "skip")


def test_allow_all_starts_beside_what_runs():
    found = turn(schedule(every=HOUR, overlap="allow_all"), NOON + HOUR, running=("x",))

    assert found.start is not None
    assert found.state.running == ("x",)


def test_cancel_other_stops_what_runs_and_starts_the_last_time_that_is_due():
    given = schedule(every=HOUR, overlap="cancel_other", catchup_window=10 * HOUR)
    stopping = turn(given, NOON + 3 * HOUR, running=("x", "y"))
    stopped: dict[str, str] = {"x": "CANCELLED", "y": "COMPLETED"}
    after = turn(given, NOON + 3 * HOUR, running=("x", "y"), ended=stopped)

    assert (stopping.cancel, stopping.start) == (("x", "y"), None)
    assert after.start is not None
    assert after.start.time == NOON + 3 * HOUR
    assert outcomes(after) == [(1.0, "skipped"), (2.0, "skipped")]
    assert after.times[0].reason == "a later time was due as well"
    assert after.state.running == ()


def test_cancel_other_does_not_start_what_waits_to_cancel_it_at_once():
    given = schedule(every=HOUR, overlap="cancel_other")
    waits = (NOON - 2 * HOUR, NOON - HOUR)
    stopping = turn(given, NOON + HOUR, running=("x",), buffered=waits)
    after = turn(given, NOON + HOUR, running=("x",), ended={"x": "CANCELLED"}, buffered=waits)
    later = turn(given, NOON + HOUR, since=NOON + HOUR, buffered=waits)

    assert (stopping.cancel, stopping.start) == (("x",), None)
    assert after.start is not None
    assert (after.start.time, after.state.waiting) == (NOON + HOUR, True)
    assert later.start is not None
    assert later.start.time == waits[0]


def test_what_waits_is_started_before_what_is_due():
    given = schedule(every=HOUR, overlap="buffer_all")
    found = turn(
        given, NOON + 3 * HOUR, buffered=(NOON + HOUR, NOON + 2 * HOUR), since=NOON + 2 * HOUR
    )

    assert found.start is not None
    assert found.start.time == NOON + HOUR
    assert found.state.since == NOON + 2 * HOUR


def test_after_an_outage_what_is_young_enough_is_started_and_the_rest_is_missed():
    given = schedule(every=HOUR, catchup_window=2.5 * HOUR, overlap="allow_all")
    found = turn(given, NOON + 5 * HOUR + 60)

    assert outcomes(found) == [(1.0, "missed"), (2.0, "missed")]
    assert found.start is not None
    assert found.start.time == NOON + 3 * HOUR
    assert found.next_at == NOON + 4 * HOUR  # at once


def test_a_window_of_nothing_still_takes_a_time_that_is_a_moment_late():
    assert turn(schedule(every=HOUR, catchup_window=0.0), NOON + HOUR + 5).start is not None
    assert turn(schedule(every=HOUR, catchup_window=0.0), NOON + HOUR + 15).start is None


def test_a_year_of_missed_seconds_is_one_row():
    given = schedule(every=1.0, catchup_window=60.0)
    now = NOON + 365 * 24 * HOUR
    found = turn(given, now)

    assert len(found.times) == 1
    assert "neither this time nor any before" in found.times[0].reason
    assert found.state.since == now - 60
    assert MISSED_MAX == 1000
    several = turn(given, NOON + 60 + MISSED_MAX)
    assert [one.outcome for one in several.times] == ["missed"] * (MISSED_MAX - 1)
    assert len(turn(given, NOON + 60 + MISSED_MAX + 2).times) == 1


def test_a_time_that_is_late_by_its_jitter_is_not_missed():
    given = schedule(every=12 * HOUR, jitter=12 * HOUR, catchup_window=60.0)
    due = calendar.due_at(given, UTC, NOON + 12 * HOUR)
    found = turn(given, due + 30)

    assert due > NOON + 12 * HOUR + 90
    assert found.start is not None
    assert outcomes(turn(given, due + 61)) == [(12.0, "missed")]


def test_of_many_missed_times_those_that_jitter_may_still_save_are_decided_one_by_one():
    given = schedule(every=1.0, catchup_window=60.0, jitter=0.5)

    assert turn(given, NOON + HOUR).state.since == NOON + HOUR - 60.5


def test_while_times_wait_the_end_is_looked_for_also_if_nobody_tells_of_it():
    waiting = turn(schedule(every=HOUR, overlap="buffer_all"), NOON + HOUR, running=("x",))

    assert outcomes(waiting) == [(1.0, "buffered")]
    assert waiting.next_at == NOON + HOUR + RECHECK_SECONDS


@pytest.mark.parametrize(("overlap", "seconds"), [("allow_all", 0.0), ("skip", RECHECK_SECONDS)])
def test_times_that_are_filled_in_start_at_once_if_they_may(overlap: str, seconds: float):
    given = schedule(every=24 * HOUR, overlap=overlap)
    found = turn(given, NOON + 60, buffered=(NOON - HOUR, NOON), running=())

    assert found.start is not None
    assert found.next_at == NOON + 60 + seconds


def test_a_failure_pauses_the_schedule_if_it_is_to():
    careful = schedule(every=HOUR, pause_on_failure=True)
    paused = turn(careful, NOON + HOUR, running=("x",), ended={"x": "FAILED"})
    other = turn(schedule(every=HOUR), NOON + HOUR, running=("x",), ended={"x": "FAILED"})

    for how in ("COMPLETED", "CANCELLED", "gone"):
        fine = turn(careful, NOON + HOUR, running=("x",), ended={"x": how})
        assert fine.start is not None, how
    assert (paused.state.status, paused.next_at, paused.start) == ("paused", None, None)
    assert "execution x failed" in paused.state.reason
    assert other.start is not None


@pytest.mark.parametrize("status", ["paused", "deleted"])
def test_what_is_paused_or_deleted_starts_nothing(status: str):
    careful = schedule(every=HOUR, pause_on_failure=True)
    ended = {"x": "FAILED"}
    found = turn(
        careful, NOON + 9 * HOUR, running=("x",), ended=ended, status=status, buffered=(NOON,)
    )

    assert (found.start, found.times, found.next_at) == (None, (), None)
    assert (found.state.status, found.state.reason) == (status, "")


def test_the_workload_knows_its_time():
    given = schedule(
        cron=("30 2 * * *",),
        timezone="Europe/Berlin",
        workload={
            "day": "{{ schedule.time[:10] }}",
            "since": "{{ schedule.previous }}",
            "plain": [1, {"utc": "{{ schedule.utc }}"}],
            "now": "{{ now() | string }}",
        },
    )
    zone = ZoneInfo("Europe/Berlin")
    at = datetime(2026, 3, 29, 3, tzinfo=zone).timestamp()
    what = TriggerTime(path="t/s", time=at, outcome="started")

    assert rendered(given, zone, what, 1) == {
        "day": "2026-03-29",
        "since": "2026-03-28T02:30:00+01:00",
        "plain": [1, {"utc": "2026-03-29T01:00:00.000Z"}],
        "now": "2026-03-29 01:00:00+00:00",
    }


def test_a_turn_is_a_value_of_what_it_was_given():
    given = schedule(every=HOUR, overlap="buffer_all", jitter=60.0)
    several = [turn(given, NOON + 3 * HOUR, running=("x",)) for _ in range(2)]

    assert several[0] == several[1]
    assert msgspec.json.encode(several[0].state) == msgspec.json.encode(several[1].state)
