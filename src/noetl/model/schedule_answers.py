"""What the API answers about schedules."""

from __future__ import annotations

from typing import Any

from noetl.model.answers import Document


class ScheduleTime(Document, frozen=True, kw_only=True):
    """What became of a time."""

    time: str | None
    outcome: str
    """`started`, `skipped`, `missed`, or `buffered`: it waits for its turn."""
    origin: str
    """`schedule`, or what somebody asked for: `run`, `backfill`."""
    reason: str
    execution_id: str | None
    decided_at: str | None


class ScheduleItem(Document, frozen=True, kw_only=True):
    """A schedule as it is at work."""

    path: str
    version: int
    status: str
    """`active` or `paused`."""
    reason: str
    """Why it is paused."""
    description: str
    playbook: str
    playbook_version: int | None
    cron: list[str]
    every: float | None
    """Seconds."""
    offset: float
    timezone: str
    overlap: str
    next_time: str | None
    """None: there is none, or it is paused."""
    running: list[str]
    """Executions that it started and that are not known to have ended."""


class ScheduleList(Document, frozen=True, kw_only=True):
    """Schedules by path."""

    schedules: list[ScheduleItem]
    next_after: str | None
    """Where the next page begins; None: there is none."""


class ScheduleDocument(ScheduleItem, frozen=True, kw_only=True):
    """A schedule with its next times, and what became of the last ones."""

    workload: dict[str, Any]
    start: str | None
    end: str | None
    jitter: float
    catchup_window: float
    pause_on_failure: bool
    next_times: list[str]
    """In the local time of its zone."""
    times: list[ScheduleTime]
    """Newest first."""


class ScheduleStarted(Document, frozen=True, kw_only=True):
    """An execution that a schedule was made to start."""

    execution_id: str
    path: str


class Backfilled(Document, frozen=True, kw_only=True):
    """Times that are started now, and those that were before."""

    times: list[str]
    known: list[ScheduleTime]
    dry_run: bool


class ScheduleDeleted(Document, frozen=True, kw_only=True):
    """It starts nothing any more."""

    path: str
