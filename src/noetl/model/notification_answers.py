"""What the API answers about notifications."""

from __future__ import annotations

from noetl.model.answers import Document


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
