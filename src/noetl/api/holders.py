"""Checks what a worker may report and read, by the leases it holds.

A lease token names a delivery, not the worker that received it. This module remembers the worker of
each delivery; after a restart, or on another server, it reads that from the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from noetl.api.rights import Principal
from noetl.control.clock import Clock
from noetl.errors import NotAllowed
from noetl.model.commands import Lease, Report
from noetl.model.events import decode
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.base import Store
from noetl.store.queue import Holder

REMEMBERED_MAX = 20_000
"""Includes leases that are over: a report may be sent again, and its worker is still known."""
FAMILY_DEPTH_MAX = 100
HEIRS_MAX = 100
"""How many executions of one worker are searched for one that reuses a result."""


class Holders:
    """Who holds what."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._given: OrderedDict[CommandId, Holder] = OrderedDict()

    def remember(self, leases: Iterable[Lease], worker_id: str) -> None:
        """These commands were leased to this worker."""
        for lease in leases:
            command = lease.command
            self._given[command.command_id] = Holder(command.execution_id, worker_id)
            if len(self._given) > REMEMBERED_MAX:
                self._given.popitem(last=False)

    async def holder(self, principal: Principal, report: Report) -> str | None:
        """The caller's worker that leased the command of this report; None if none did."""
        found = await self._holders([report.command_id])
        return _worker(found.get(report.command_id), principal, report)

    def known_holder(self, principal: Principal, report: Report) -> str | None:
        """The same, from memory alone."""
        return _worker(self._given.get(report.command_id), principal, report)

    async def own(
        self, principal: Principal, commands: Collection[CommandId]
    ) -> dict[CommandId, Holder]:
        """Those of the commands that a worker of this caller has leased."""
        return {
            command_id: given
            for command_id, given in (await self._holders(commands)).items()
            if _is_of(principal, given.worker_id)
        }

    async def _holders(self, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
        found = {one: self._given[one] for one in commands if one in self._given}
        if len(found) < len(commands):
            # Another server leased them, or this one before it restarted.
            found |= await self._store.queue.holders(set(commands) - found.keys())
        return found

    async def require_execution(
        self, principal: Principal, worker: str, execution_id: ExecutionId, *, family: bool = True
    ) -> None:
        """Raises NotAllowed unless this worker holds a lease of the execution, of an execution in
        its `family` that called it, or of a rerun or fork that reuses its results.
        """
        worker_id = principal.worker_name(worker)
        members = await self._family(execution_id) if family else [execution_id]
        for member in members:
            if await self._holds(worker_id, member):
                return
        if family:
            for heir in self._given_to(worker_id):
                if await self._holds(worker_id, heir) and await self._reuses(heir, members):
                    return
        raise NotAllowed(
            f"worker {worker or '(unnamed)'} holds no lease of execution {execution_id}, and a"
            " worker may read secrets and results only while it does."
        )

    def _given_to(self, worker_id: str) -> list[ExecutionId]:
        """The executions whose commands it leased last."""
        found: dict[ExecutionId, None] = {}
        for one in reversed(self._given.values()):
            if one.worker_id == worker_id:
                found[one.execution_id] = None
            if len(found) >= HEIRS_MAX:
                break
        return list(found)

    async def _holds(self, worker_id: str, execution_id: ExecutionId) -> bool:
        now = self._clock.now()
        return any(
            holder == worker_id and until is not None and until > now
            for _, holder, until in await self._store.queue.open_commands(execution_id)
        )

    async def _reuses(self, heir: ExecutionId, members: list[ExecutionId]) -> bool:
        """Whether it, or an execution that called it, reuses what one of these recorded."""
        for one in await self._family(heir):
            source: ExecutionId | None = one
            for _ in range(FAMILY_DEPTH_MAX):
                rows = await self._store.log.events(source, limit=1) if source is not None else []
                source = getattr(decode(rows[0].body), "rerun_of", None) if rows else None
                if source in members:
                    return True
                if source is None:
                    break
        return False

    async def _family(self, execution_id: ExecutionId) -> list[ExecutionId]:
        """The execution and its callers: the calling step reads a child's result."""
        found = [execution_id]
        while len(found) < FAMILY_DEPTH_MAX:
            row = await self._store.records.summary(found[-1])
            if row is None or row.parent_execution_id is None:
                break
            found.append(row.parent_execution_id)
        return found


def _worker(given: Holder | None, principal: Principal, report: Report) -> str | None:
    if given is None or given.execution_id != report.execution_id:
        return None
    return given.worker_id if _is_of(principal, given.worker_id) else None


def _is_of(principal: Principal, worker_id: str) -> bool:
    return principal.is_of_this_machine or worker_id.startswith(f"{principal.name}/")
