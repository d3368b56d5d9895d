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
    """Who may answer, if not everybody who may send events; admins may, too."""
    labels: dict[str, str]


class Inbox(Document, frozen=True, kw_only=True):
    """Forms that wait for people."""

    forms: list[Form]
    total: int
    """Executions in which a form waits; some may not be told yet by rows of earlier versions."""
    next_cursor: str | None


class Queue(Document, frozen=True, kw_only=True):
    """Commands of a pool."""

    pool: str
    waiting: int
    leased: int
    workers: int
    draining: int
    """Of these workers, those that take nothing new."""
    slots: int
    """Of workers that take work."""
    oldest_since: str | None
    oldest_seconds: float | None
    """How long the command waits that has waited longest."""
    oldest_execution_id: str | None
    kinds: dict[str, int]
    """Commands that wait, by the kinds of the tools that they call."""
    kinds_of: int
    """How many commands `kinds` counts: the oldest ones."""
    missing: list[str]
    """Labels that commands here wait for and that no worker has together, each as `name=value`."""


class QueueList(Document, frozen=True, kw_only=True):
    """Every pool."""

    queues: list[Queue]


class FailedLately(Document, frozen=True, kw_only=True):
    """Executions that failed within the last day."""

    since: str | None
    count: int
    executions: list[ExecutionSummary]
    """The newest of them."""


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
    """Pools in which commands wait and no worker takes them."""
    missed: list[MissedTime]
    running: RunningNow
    next_times: list[MissedTime]


# --- Bulk --------------------------------------------------------------------------------------


class BulkFailure(Document, frozen=True, kw_only=True):
    """An execution that the action did not succeed for."""

    execution_id: str
    code: str
    message: str


class BulkDone(Document, frozen=True, kw_only=True):
    """What became of an action on several executions."""

    action: BulkAction
    dry_run: bool
    matched: int
    """Executions that the query or the ids name."""
    eligible: int
    """Of these, those in a status in which the action makes sense."""
    done: int
    failed: list[BulkFailure]
    started: list[str]
    """Of reruns: the new executions."""


# --- Views -------------------------------------------------------------------------------------


class View(Document, frozen=True, kw_only=True):
    """A query that was saved under a name."""

    name: str
    q: str
    columns: list[str]
    owner: str
    """Who saved it last."""
    updated_at: str | None


class ViewList(Document, frozen=True, kw_only=True):
    """Views by name."""

    views: list[View]


# --- Versions ----------------------------------------------------------------------------------


class VersionItem(CatalogItem, frozen=True, kw_only=True):
    """A version of a playbook."""

    digest: str


class VersionList(Document, frozen=True, kw_only=True):
    """Versions of a playbook, newest first, and where it stands among others."""

    path: str
    versions: list[VersionItem]
    more: bool
    called_by: list[str]
    """Playbooks whose newest version calls it."""
    calls: list[str]
    """Playbooks that its newest version calls."""
    runs: list[ExecutionSummary]
    """Its last executions."""


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
