"""What the API answers about triggers: schedules, hooks, consumers and notifications."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from noetl.model.answers import Document

# --- Schedules -----------------------------------------------------------------------------------


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


# --- Hooks ---------------------------------------------------------------------------------------


class DeliveryAnswer(Document, frozen=True, kw_only=True):
    """What became of a delivery."""

    status: str
    """`started`, `repeated` (it was delivered before), `debounced`, `signalled`, `unmatched` (no
    execution waits for it), or `ignored` (`when` does not hold)."""
    execution_id: str | None = None
    execution_ids: list[str] | UnsetType = UNSET
    """Of several that were signalled."""
    due: str | UnsetType = UNSET
    """When a debounced one is started, if no other comes."""
    result: Any | UnsetType = UNSET
    """With `wait`: what the execution came to."""
    execution_status: str | UnsetType = UNSET
    """With `wait`: how it ended."""


class HookItem(Document, frozen=True, kw_only=True):
    """A hook, without any secret."""

    path: str
    url: str
    """Where it is called, below the address of the server."""
    version: int
    description: str
    verify: str
    credentials: list[str]
    missing_credentials: list[str]
    """Without these no delivery is taken."""
    playbook: str | None
    signal: str | None
    wait: float
    debounced: bool


class HookDelivery(Document, frozen=True, kw_only=True):
    """What became of a delivery."""

    time: str | None
    outcome: str
    """As its sender was answered (`started`, `repeated`, `ignored`, …); `refused`: it was not
    genuine; `failed`: it could not be taken."""
    reason: str
    """Of several that were refused together, how many; why one failed."""
    execution_id: str | None


class HookDocument(HookItem, frozen=True, kw_only=True):
    """A hook with what became of the last deliveries to it."""

    deliveries: list[HookDelivery]
    """Newest first."""


class HookList(Document, frozen=True, kw_only=True):
    """Hooks by path."""

    hooks: list[HookItem]
    next_after: str | None


class HookDeleted(Document, frozen=True, kw_only=True):
    """It takes nothing any more."""

    path: str


# --- Consumers -----------------------------------------------------------------------------------


class ConsumedMessage(Document, frozen=True, kw_only=True):
    """What became of a message."""

    id: str
    time: str | None
    outcome: str
    """`started`, `refused` (it can never be taken) or `ignored` (`when` does not hold)."""
    reason: str
    execution_id: str | None


class ConsumerItem(Document, frozen=True, kw_only=True):
    """A consumer as it is at work."""

    path: str
    version: int
    status: str
    """`active` or `paused`."""
    reason: str
    """Why it is paused."""
    description: str
    source: str
    """`nats`, `postgres` or `files`, and what of it."""
    playbook: str | None
    signal: str | None
    max_running: int
    holder: str
    """The server that reads; empty: none does just now."""
    problem: str
    """Why nothing can be read or started just now; empty: nothing is wrong."""


class ConsumerList(Document, frozen=True, kw_only=True):
    """Consumers by path."""

    consumers: list[ConsumerItem]
    next_after: str | None
    """Where the next page begins; None: there is none."""


class ConsumerDocument(ConsumerItem, frozen=True, kw_only=True):
    """A consumer with what became of its last messages."""

    running: list[str]
    """Executions that it started and that have not ended."""
    messages: list[ConsumedMessage]
    """Newest first."""


class ConsumerDeleted(Document, frozen=True, kw_only=True):
    """It takes nothing any more."""

    path: str


# --- Notifications -------------------------------------------------------------------------------


class NotificationItem(Document, frozen=True, kw_only=True):
    """A rule that says what is told, and by which playbook."""

    path: str
    version: int
    status: str
    """`active` or `paused`."""
    reason: str
    """Why it is paused."""
    description: str
    on: list[str]
    paths: list[str]
    """Patterns of the playbooks that it is about; none: all."""
    labels: dict[str, str]
    late: float
    """Seconds."""
    window: float
    """Seconds in which one message is sent for each path and kind of error."""
    playbook: str
    problem: str
    """Why the last message could not be made or started; empty: nothing is wrong."""


class NotificationList(Document, frozen=True, kw_only=True):
    """Notifications by path."""

    notifications: list[NotificationItem]
    next_after: str | None
    """Where the next page begins; None: there is none."""


class NotificationDeleted(Document, frozen=True, kw_only=True):
    """It tells nothing any more."""

    path: str
