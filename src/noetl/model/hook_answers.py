"""What the API answers about hooks, and to those who call them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from noetl.model.answers import Document


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
