"""What the API answers about consumers."""

from __future__ import annotations

from noetl.model.answers import Document


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
