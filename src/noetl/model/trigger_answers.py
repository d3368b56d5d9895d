"""The answers of the API about triggers: schedules, hooks, consumers and notifications."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from noetl.model.answers import Document


class TriggerItem(Document, frozen=True, kw_only=True):
    """A document that starts playbooks by itself until it is paused."""

    path: str
    version: int
    status: str
    """`active` or `paused`."""
    reason: str
    """Why it is paused."""
    description: str


class TriggerDeleted(Document, frozen=True, kw_only=True):
    """It starts nothing any more. Its versions and executions remain."""

    path: str


# --- Schedules -----------------------------------------------------------------------------------


class ScheduleTime(Document, frozen=True, kw_only=True):
    """The outcome of a time."""

    time: str | None
    outcome: str
    """`started`, `skipped`, `missed`, or `buffered`: it waits for its turn."""
    origin: str
    """`schedule`, or the request that started it: `run`, `backfill`."""
    reason: str
    execution_id: str | None
    decided_at: str | None


class ScheduleItem(TriggerItem, frozen=True, kw_only=True):
    """A schedule and its state."""

    playbook: str
    playbook_version: int | None
    cron: list[str]
    every: float | None
    """Seconds."""
    offset: float
    timezone: str
    overlap: str
    next_time: str | None
    """None if there is none, or it is paused."""
    running: list[str]
    """Executions that it started and that are not known to have ended."""
    last: ScheduleTime | None
    """The outcome of its newest time; None if it has not come to one."""


class ScheduleList(Document, frozen=True, kw_only=True):
    """Schedules by path."""

    schedules: list[ScheduleItem]
    next_after: str | None
    """Where the next page begins; None on the last."""


class ScheduleDocument(ScheduleItem, frozen=True, kw_only=True):
    """A schedule with its next times, and the outcome of the last ones."""

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
    """An execution started by hand through its schedule."""

    execution_id: str
    path: str


class Backfilled(Document, frozen=True, kw_only=True):
    """Times that are started now, and those that were started before."""

    times: list[str]
    known: list[ScheduleTime]
    dry_run: bool


# --- Hooks ---------------------------------------------------------------------------------------


class DeliveryAnswer(Document, frozen=True, kw_only=True):
    """The outcome of a delivery."""

    status: str
    """`started`, `repeated` (it was delivered before), `debounced`, `signalled`, `unmatched` (no
    execution waits for it), or `ignored` (`when` does not hold)."""
    execution_id: str | None = None
    execution_ids: list[str] | UnsetType = UNSET
    """The executions that were signalled, if several."""
    due: str | UnsetType = UNSET
    """When a debounced delivery starts, if no other arrives."""
    result: Any | UnsetType = UNSET
    """With `wait`: the result of the execution."""
    execution_status: str | UnsetType = UNSET
    """With `wait`: its final status."""


class HookItem(Document, frozen=True, kw_only=True):
    """A hook, without any secret."""

    path: str
    url: str
    """The path to call, below the server's URL."""
    version: int
    description: str
    verify: str
    credentials: list[str]
    missing_credentials: list[str]
    """Without these no delivery is accepted."""
    playbook: str | None
    signal: str | None
    wait: float
    debounced: bool


class HookDelivery(Document, frozen=True, kw_only=True):
    """The outcome of a delivery."""

    time: str | None
    outcome: str
    """The answer to its sender (`started`, `repeated`, `ignored`, …); `refused`: it was not
    genuine; `failed`: it could not be accepted.
    """
    reason: str
    """The number of deliveries refused together, or why one failed."""
    execution_id: str | None


class HookDocument(HookItem, frozen=True, kw_only=True):
    """A hook with the outcome of its last deliveries."""

    deliveries: list[HookDelivery]
    """Newest first."""


class HookList(Document, frozen=True, kw_only=True):
    """Hooks by path."""

    hooks: list[HookItem]
    next_after: str | None


# --- Consumers -----------------------------------------------------------------------------------


class ConsumedMessage(Document, frozen=True, kw_only=True):
    """The outcome of a message."""

    id: str
    time: str | None
    outcome: str
    """`started`, `refused` (it can never be accepted) or `ignored` (`when` does not hold)."""
    reason: str
    execution_id: str | None


class ConsumerItem(TriggerItem, frozen=True, kw_only=True):
    """A consumer and its state."""

    source: str
    """`nats`, `postgres` or `files`, with the name of the stream, table or folder."""
    playbook: str | None
    signal: str | None
    max_running: int
    holder: str
    """The server that reads it; empty if none does at the moment."""
    problem: str
    """Why nothing can be read or started at the moment; empty if there is no problem."""


class ConsumerList(Document, frozen=True, kw_only=True):
    """Consumers by path."""

    consumers: list[ConsumerItem]
    next_after: str | None
    """Where the next page begins; None on the last."""


class ConsumerDocument(ConsumerItem, frozen=True, kw_only=True):
    """A consumer with the outcome of its last messages."""

    running: list[str]
    """Executions that it started and that have not ended."""
    messages: list[ConsumedMessage]
    """Newest first."""


# --- Notifications -------------------------------------------------------------------------------


class NotificationItem(TriggerItem, frozen=True, kw_only=True):
    """A rule: which events to report, and by which playbook."""

    on: list[str]
    paths: list[str]
    """Patterns of the playbooks it applies to; empty: all."""
    labels: dict[str, str]
    late: float
    """Seconds."""
    window: float
    """Seconds in which at most one message is sent for each path and error kind."""
    playbook: str
    problem: str
    """Why the last message could not be made or started; empty if there is no problem."""


class NotificationList(Document, frozen=True, kw_only=True):
    """Notifications by path."""

    notifications: list[NotificationItem]
    next_after: str | None
    """Where the next page begins; None on the last."""
