"""What the routes work with: the services of the control plane, and who may use them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from noetl.api.access import Access
from noetl.api.evaluation import Evaluator
from noetl.api.leases import Leases
from noetl.api.metrics import AskNats, Metrics
from noetl.api.sessions import Sessions
from noetl.api.simulation import Simulator
from noetl.api.stream import Streams
from noetl.api.topics import Topics
from noetl.control.bulk import Bulk
from noetl.control.catalog import Catalog
from noetl.control.clock import Clock
from noetl.control.consumers import Consumers
from noetl.control.desk import Desk
from noetl.control.executions import Executions
from noetl.control.history import Moments
from noetl.control.hooks import Hooks
from noetl.control.keys import Keys
from noetl.control.local import LocalControl
from noetl.control.notifications import Notifications
from noetl.control.orchestrator import Orchestrator
from noetl.control.records import Records
from noetl.control.retention import Retention
from noetl.control.schedules import Schedules
from noetl.control.timeline import Timelines
from noetl.control.tokens import Tokens
from noetl.control.trigger_documents import TriggerDocuments
from noetl.control.versions import Versions
from noetl.store.base import Store


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a route may call."""

    executions: Executions
    records: Records
    retention: Retention
    catalog: Catalog
    schedules: Schedules
    hooks: Hooks
    consumers: Consumers
    notifications: Notifications
    keys: Keys
    tokens: Tokens
    store: Store
    orchestrator: Orchestrator
    control: LocalControl
    clock: Clock
    access: Access
    sessions: Sessions
    leases: Leases
    evaluator: Evaluator
    simulator: Simulator
    metrics: Metrics
    streams: Streams
    topics: Topics
    moments: Moments
    timelines: Timelines
    desk: Desk
    bulk: Bulk
    versions: Versions
    nats: AskNats | None
    """How NATS does; None where none is configured."""
    rotate_keys: Callable[[], Awaitable[int]]
    """Put every credential under a new key; how many were not yet."""
    draining: asyncio.Event
    """Set when the server is about to end: whoever waits for news is answered at once."""

    @property
    def triggers(self) -> dict[str, TriggerDocuments[Any, Any]]:
        """Documents that start executions, by their kind."""
        kinds = (self.schedules, self.hooks, self.consumers, self.notifications)
        return {one.kind: one for one in kinds}
