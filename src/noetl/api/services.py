"""The services that routes call: the parts of the control plane, and access control.

Each part is created and imported on first use: a command that lists executions loads neither the
compiler nor the engine. What is special about this process comes from `wiring`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from noetl.api.access import Access
    from noetl.api.evaluation import Evaluator
    from noetl.api.holders import Holders
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
    from noetl.control.own_work import OwnWork
    from noetl.control.peers import Membership
    from noetl.control.records import Records
    from noetl.control.retention import Retention
    from noetl.control.schedules import Schedules
    from noetl.control.timeline import Timelines
    from noetl.control.tokens import Tokens
    from noetl.control.trigger_documents import TriggerDocuments, TriggerServices
    from noetl.control.triggers import Triggers
    from noetl.control.versions import Versions
    from noetl.dsl import Compiled
    from noetl.secrets.operator_key import OperatorKey
    from noetl.settings import Settings
    from noetl.store.base import Runtime, Store
    from noetl.store.nats import Nats
    from noetl.templates import Views
    from noetl.tools.resources import ToolResources


class Makers(NamedTuple):
    """Factories that `wiring` provides; each is called when its part is needed."""

    compiled: Callable[..., Compiled]
    """Compiles text to a playbook."""
    views: Callable[[], Views]
    """How templates read the results of each tool kind."""
    own_kinds: bool
    """Whether the embedding program brought tool kinds of its own."""
    tools: Callable[[], ToolResources]
    """The parts of the tools that a server itself uses."""
    keys: Callable[[Store, Clock], Keys]
    operator_key: Callable[[], OperatorKey]
    process: str
    """The name of this process among those that share a database."""
    wall: Clock
    """The clock for what is due at a time of day."""
    is_shared: bool
    """Whether other processes may write to the database."""
    own: OwnWork | None
    """The work of this process, if it does not do all there is."""


class Services:
    """The parts of a system around one store. Nothing runs by itself: `wiring` starts it."""

    def __init__(
        self,
        settings: Settings,
        stack: AsyncExitStack,
        store: Store,
        clock: Clock,
        makers: Makers,
        me: Runtime | None = None,
    ) -> None:
        """`stack` closes what has to be closed; `me` is this server among its peers."""
        self._settings = settings
        self._stack = stack
        self._makers = makers
        self.own = makers.own
        self.process = makers.process
        self._me = me
        self.store = store
        self.clock = clock
        self._wall = makers.wall
        self.nats: Nats | None = None
        """NATS beside the database, if configured."""
        self.draining = asyncio.Event()
        """Set when the server begins to end: long polls are answered at once."""

    # --- Executions -------------------------------------------------------------------------------

    @cached_property
    def orchestrator(self) -> Orchestrator:
        from noetl.control.children import ChildLimits
        from noetl.control.orchestrator import Orchestrator

        settings = self._settings
        return Orchestrator(
            self.store,
            self.clock,
            self._makers.views(),
            limits=settings.limits,
            child_limits=ChildLimits(settings.max_depth, settings.max_children),
            work=self.own,
            is_shared=self._makers.is_shared,
        )

    @cached_property
    def membership(self) -> Membership:
        from noetl.control.peers import Membership

        return Membership(self.store.runtimes, self.clock, self._me)

    @cached_property
    def executions(self) -> Executions:
        from noetl.control.executions import Executions

        return Executions(
            self.orchestrator,
            self.store,
            self.clock,
            lambda net: self.keys.missing(net),
            self.membership.owns,
        )

    @cached_property
    def control(self) -> LocalControl:
        from noetl.control.local import LocalControl

        return LocalControl(
            self.orchestrator,
            self.store.bodies,
            self.store.credentials,
            self.keys.credential,
            self.tokens,
        )

    @cached_property
    def bulk(self) -> Bulk:
        from noetl.control.bulk import Bulk

        return Bulk(self.store.records, self.executions)

    @cached_property
    def holders(self) -> Holders:
        from noetl.api.holders import Holders

        store = self.store
        return Holders(store.queue, store.log, store.records, self.clock)

    # --- What is recorded of them -----------------------------------------------------------------

    @cached_property
    def records(self) -> Records:
        from noetl.control.records import Records

        return Records(self.store.log, self.store.records, self.store.catalog)

    @cached_property
    def moments(self) -> Moments:
        from noetl.control.history import Moments

        return Moments(self.store.log)

    @cached_property
    def timelines(self) -> Timelines:
        from noetl.control.timeline import Timelines

        return Timelines(self.store.log, self.store.records)

    @cached_property
    def desk(self) -> Desk:
        from noetl.control.desk import Desk

        store = self.store
        return Desk(store.queue, store.records, store.triggers, store.runtimes, self.orchestrator)

    @cached_property
    def retention(self) -> Retention:
        from noetl.control.retention import Retention
        from noetl.model.retention import keep_rules
        from noetl.store.archive import archive_at

        archive = self._settings.archive_url
        return Retention(
            self.store,
            self.clock,
            keep_rules(self._settings.keep),
            lambda execution_id: self.orchestrator.memory.drop(execution_id),
            archive_at(archive) if archive else None,
        )

    @cached_property
    def streams(self) -> Streams:
        from noetl.api.stream import Streams

        store, watchers = self.store, self.orchestrator.watchers
        return Streams(store.log, store.records, watchers, self.metrics, self.draining)

    @cached_property
    def topics(self) -> Topics:
        from noetl.api.topics import Topics

        watchers = self.orchestrator.watchers
        return Topics(self.store.records, self.streams, watchers, self.desk, self.clock)

    # --- Documents --------------------------------------------------------------------------------

    @cached_property
    def catalog(self) -> Catalog:
        from noetl.control.catalog import Catalog

        return Catalog(self.store.catalog, self._makers.compiled, self.clock)

    @cached_property
    def versions(self) -> Versions:
        from noetl.control.versions import Versions

        return Versions(self.store.catalog, self.store.records)

    @cached_property
    def triggers(self) -> Triggers:
        from noetl.control.triggers import LOOK_SECONDS, Triggers

        return Triggers(
            self.store.triggers,
            self._wall,
            self.membership.owns,
            LOOK_SECONDS if self._makers.is_shared else math.inf,
            {
                "Schedule": lambda row: self.schedules.settle(row),
                "Hook": lambda row: self.hooks.settle(row),
                "Consumer": lambda row: self.consumers.settle(row),
                "Notification": lambda row: self.notifications.settle(row),
                "Notice": lambda row: self.notifications.settle(row),
            },
        )

    @property
    def _trigger_services(self) -> TriggerServices:
        from noetl.control.trigger_documents import TriggerServices

        return TriggerServices(
            self.store.triggers, self.catalog, self.executions, self._wall, self.triggers
        )

    @cached_property
    def schedules(self) -> Schedules:
        from noetl.control.schedules import Schedules

        return Schedules(
            self._trigger_services,
            self.store.records,
            lambda *missed: self.notifications.of_missed(*missed),
            self.metrics.time_decided,
        )

    @cached_property
    def hooks(self) -> Hooks:
        from noetl.control.hooks import Hooks

        return Hooks(self._trigger_services, self.store.records, self.store.messages, self.keys)

    @cached_property
    def consumers(self) -> Consumers:
        from noetl.control.consumers import Consumers

        return Consumers(
            self._trigger_services,
            self.store.messages,
            self.keys,
            resources=lambda: self._server_tools,
            me=f"server-{self._makers.process}" if self._me is None else self._me.name,
            count=self.metrics.messages.inc,
        )

    @cached_property
    def notifications(self) -> Notifications:
        from noetl.control.notifications import Notifications

        store, count = self.store, self.metrics.notices.inc
        parts = store.log, store.records, store.retention
        return Notifications(self._trigger_services, *parts, count)

    @cached_property
    def _server_tools(self) -> ToolResources:
        """The parts of the tools that a server itself uses."""
        made = self._makers.tools()
        self._stack.push_async_callback(made.close)
        return made

    @cached_property
    def evaluator(self) -> Evaluator:
        from noetl.api.evaluation import Evaluator

        made = Evaluator(
            self._settings.limits, self._makers.compiled if self._makers.own_kinds else None
        )
        self._stack.push_async_callback(made.close)
        return made

    @cached_property
    def simulator(self) -> Simulator:
        from noetl.api.simulation import Simulator

        return Simulator()

    @property
    def trigger_documents(self) -> dict[str, TriggerDocuments[Any, Any]]:
        """Trigger documents by kind."""
        kinds = (self.schedules, self.hooks, self.consumers, self.notifications)
        return {one.kind: one for one in kinds}

    # --- Who may come in, and secrets -------------------------------------------------------------

    @cached_property
    def keys(self) -> Keys:
        return self._makers.keys(self.store, self.clock)

    @cached_property
    def tokens(self) -> Tokens:
        from noetl.control.tokens import Tokens

        return Tokens(self.store.credentials, self.store.access, self.keys, self.clock)

    @cached_property
    def sessions(self) -> Sessions:
        from noetl.api.sessions import Sessions

        copies = None if self.nats is None else self.nats.sessions
        return Sessions(self.store.sessions, self.clock, copies)

    @cached_property
    def access(self) -> Access:
        from noetl.api.access import Access

        return Access(self.store.access, self.sessions, self.clock)

    async def rotate_keys(self) -> int:
        """Encrypt every credential with the new key. Returns how many were not yet.

        With a key file the new key is generated here. With NOETL_SECRET_KEY it is the first of
        several.
        """
        await self.keys.prepare()
        key = self._makers.operator_key()
        moved = await self.keys.rotate(key.renewed)
        key.forget_old()
        return moved

    # --- Figures ----------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> Metrics:
        from noetl.api.metrics import Decisions, Metrics

        commits = self.orchestrator.commits
        made = Metrics(
            lambda: Decisions(
                started=commits.started, found=commits.states_found, read=commits.states_read
            ),
            self.nats_figures,
        )
        commits.on_ended.append(made.finished)
        return made

    @cached_property
    def nats_figures(self) -> AskNats | None:
        from noetl.api.metrics import NatsFigures

        nats = self.nats
        if nats is None:
            return None
        return lambda: NatsFigures(
            is_connected=nats.connection.is_connected,
            connects=nats.connection.connects,
            failures=nats.connection.failures,
            copies_found=nats.bodies.found,
            copies_missed=nats.bodies.missed,
        )
