"""The services that routes call: the parts of the control plane, and access control.

Each part is created and imported on first use: a command that lists executions loads neither the
compiler nor the engine. What settings choose comes from `configured`, what is special about this
process from `wiring`.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from noetl import configured
from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.api.access import Access
    from noetl.api.evaluation import Evaluator
    from noetl.api.holders import Holders
    from noetl.api.metrics import Metrics
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
    from noetl.secrets.vault import Vault
    from noetl.settings import Settings
    from noetl.store.base import Store
    from noetl.store.nats import Nats
    from noetl.tools.base import Tool
    from noetl.tools.resources import ToolResources


class Services:
    """The parts of a system around one store. Nothing runs by itself: `wiring` starts it."""

    def __init__(
        self,
        settings: Settings,
        stack: AsyncExitStack,
        store: Store,
        clock: Clock,
        wall: Clock,
        *,
        is_shared: bool,
        serves: bool = False,
        tools: Sequence[Tool] = (),
        own: OwnWork | None = None,
    ) -> None:
        """`stack` closes what has to be closed. `wall` is the clock for what is due at a time of
        day. Other processes may write to a store that `is_shared`; with those that also `serve`
        this one divides what there is to look after. `tools` are kinds of the embedding program;
        `own` is the work of this process, if it does not do all there is.
        """
        self.settings = settings
        self._stack = stack
        self._wall = wall
        self._is_shared = is_shared
        self.serves = serves
        self.tools = tools
        self.own = own
        self.process = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        """The name of this process among those that share a database."""
        self.store = store
        self.clock = clock
        self.nats: Nats | None = None
        """NATS beside the database, if configured."""
        self.draining = asyncio.Event()
        """Set when the server begins to end: long polls are answered at once."""

    # --- Executions -------------------------------------------------------------------------------

    @cached_property
    def orchestrator(self) -> Orchestrator:
        from noetl.control.children import ChildLimits
        from noetl.control.orchestrator import Orchestrator
        from noetl.templates import Views
        from noetl.tools.registry import tool_of

        settings = self.settings
        return Orchestrator(
            self.store,
            self.clock,
            Views(partial(tool_of, added=self.tools)),
            limits=settings.limits,
            child_limits=ChildLimits(settings.max_depth, settings.max_children),
            work=self.own,
            is_shared=self._is_shared,
        )

    @cached_property
    def membership(self) -> Membership:
        from noetl.control.peers import Membership
        from noetl.store.base import Runtime

        now = self.clock.now()
        me = Runtime(
            name=f"server-{self.process}",
            kind="server",
            started_at=now,
            seen_at=now,
            host=socket.gethostname(),
            version=__version__,
        )
        return Membership(self.store.runtimes, self.clock, me if self.serves else None)

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

        return Holders(self.store, self.clock)

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

        archive = self.settings.archive_url
        return Retention(
            self.store,
            self.clock,
            keep_rules(self.settings.keep),
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

        compile_text = configured.compiler(self.settings, self.tools)
        return Catalog(self.store.catalog, compile_text, self.clock)

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
            LOOK_SECONDS if self._is_shared else math.inf,
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
            me=f"server-{self.process}",
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
        made = configured.tool_resources(self.settings, 1)
        self._stack.push_async_callback(made.close)
        return made

    @cached_property
    def evaluator(self) -> Evaluator:
        from noetl.api.evaluation import Evaluator

        here = configured.compiler(self.settings, self.tools) if self.tools else None
        made = Evaluator(self.settings.limits, here)
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
        from noetl.control.keys import Keys

        def open_vault(salt: str, may_create: bool) -> Vault:
            # Most executions use no stored credential: encryption is loaded with the first.
            return configured.operator_key(self.settings).vault(salt, may_create=may_create)

        store = self.store
        sources = configured.secret_sources(self.settings)
        return Keys(store.credentials, store.installation, open_vault, self.clock, sources)

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
        key = configured.operator_key(self.settings)
        moved = await self.keys.rotate(key.renewed)
        key.forget_old()
        return moved

    # --- Figures ----------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> Metrics:
        from noetl.api.metrics import Metrics

        commits = self.orchestrator.commits
        made = Metrics(commits, self.nats)
        commits.on_ended.append(made.finished)
        return made
