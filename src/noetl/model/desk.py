"""Answers about all executions together: what needs a person, queues, bulk actions, saved views."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from noetl.model.answers import CatalogItem, Document, ExecutionSummary, QuestionDocument

BulkAction = Literal["cancel", "pause", "resume", "rerun"]


class Form(Document, frozen=True, kw_only=True):
    """A form that waits for a person. `POST /api/executions/{id}/events` with the name
    `approval.received` and this step answers it."""

    execution_id: str
    path: str
    version: int | None
    step: str
    step_run_id: str
    since: str | None
    until: str | None
    form: list[QuestionDocument]
    role: str | UnsetType = UNSET
    """The role that may answer; by default everyone who may send events. Admins always may."""
    labels: dict[str, str]


class Inbox(Document, frozen=True, kw_only=True):
    """Forms that wait for people."""

    forms: list[Form]
    total: int
    """Executions in which a form waits; rows of earlier versions may not show it yet."""
    next_cursor: str | None


class Queue(Document, frozen=True, kw_only=True):
    """Commands of a pool."""

    pool: str
    waiting: int
    leased: int
    workers: int
    draining: int
    """Those of these workers that take no new commands."""
    slots: int
    """Slots of workers that take commands."""
    oldest_since: str | None
    oldest_seconds: float | None
    """How long the oldest command has waited."""
    oldest_execution_id: str | None
    kinds: dict[str, int]
    """Waiting commands, by the kinds of the tools that they call."""
    kinds_of: int
    """How many commands `kinds` counts: the oldest ones."""
    missing: list[str]
    """Labels that waiting commands require and that no single worker has, each as `name=value`."""


class QueueList(Document, frozen=True, kw_only=True):
    """Every pool."""

    queues: list[Queue]


class FailedLately(Document, frozen=True, kw_only=True):
    """Executions that failed within the last day, and that no other one called."""

    since: str | None
    count: int
    executions: list[ExecutionSummary]
    """Of each playbook the newest: one that fails every minute hides no other."""
    times: dict[str, int]
    """How often each playbook failed, by path, among the newest hundred."""


class RunningNow(Document, frozen=True, kw_only=True):
    """Executions that have not ended."""

    count: int
    paused: int
    executions: list[ExecutionSummary]
    """The newest of them."""


class MissedTime(Document, frozen=True, kw_only=True):
    """A time of a schedule: one that was missed, or the next one."""

    schedule: str
    time: str | None
    reason: str


class Overview(Document, frozen=True, kw_only=True):
    """What needs a person now, and what runs."""

    failed: FailedLately
    forms: Inbox
    stuck: list[Queue]
    """Pools with waiting commands that no worker takes."""
    missed: list[MissedTime]
    running: RunningNow
    next_times: list[MissedTime]


# --- Bulk --------------------------------------------------------------------------------------


class BulkFailure(Document, frozen=True, kw_only=True):
    """An execution for which the action failed."""

    execution_id: str
    code: str
    message: str


class BulkDone(Document, frozen=True, kw_only=True):
    """The outcome of an action on several executions."""

    action: BulkAction
    dry_run: bool
    matched: int
    """Executions that the query or the ids name."""
    eligible: int
    """Those of them in a status to which the action applies."""
    done: int
    failed: list[BulkFailure]
    started: list[str]
    """The new executions of a rerun."""


# --- Views -------------------------------------------------------------------------------------


class View(Document, frozen=True, kw_only=True):
    """A saved query."""

    name: str
    q: str
    columns: list[str]
    owner: str
    """The user who saved it last."""
    updated_at: str | None


class ViewList(Document, frozen=True, kw_only=True):
    """Views by name."""

    views: list[View]


# --- Versions ----------------------------------------------------------------------------------


class VersionItem(CatalogItem, frozen=True, kw_only=True):
    """A version of a playbook."""

    digest: str


class VersionList(Document, frozen=True, kw_only=True):
    """Versions of a playbook, newest first, with its callers and the playbooks it calls."""

    path: str
    versions: list[VersionItem]
    more: bool
    called_by: list[str]
    """Playbooks whose newest version calls it."""
    calls: list[str]
    """Playbooks that its newest version calls."""
    runs: list[ExecutionSummary]
    """Its last executions."""


class RunMark(Document, frozen=True, kw_only=True):
    """An execution, as far as a small mark shows it."""

    execution_id: str
    status: str
    waits: Literal["form", "event", "timer"] | None
    """What it waits for: something from outside, or the time of its next try."""
    start_time: str | None
    duration_seconds: float | None


class PlaybookRuns(Document, frozen=True, kw_only=True):
    """The last executions of a playbook, newest first."""

    path: str
    runs: list[RunMark]


class LatestRuns(Document, frozen=True, kw_only=True):
    """The playbooks that have run, by path."""

    playbooks: list[PlaybookRuns]


class VersionDiff(Document, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """How the texts of two versions differ."""

    path: str
    first: int
    last: int
    same: bool
    diff: str
    """A unified diff; empty if the texts are the same."""
    steps_added: list[str]
    steps_removed: list[str]
    steps_changed: list[str]
