"""What a worker may say and see depends on the leases it holds; here that is looked up.

A lease's token says which delivery it is, not to whom it went. Who was given it is remembered
here, and after a restart, or on another server, read from the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from noetl.control.clock import Clock
from noetl.errors import LeaseLost, NotAllowed
from noetl.model.commands import Lease, Report
from noetl.model.ids import CommandId, ExecutionId
from noetl.server.rights import Principal
from noetl.store.base import Store

REMEMBERED_MAX = 20_000
"""Also leases that are over: a report may come again, and whose it was is still known."""
FAMILY_DEPTH_MAX = 100


class Given(NamedTuple):
    """A lease that went out."""

    worker_id: str
    execution_id: ExecutionId
    command_id: CommandId


class Leases:
    """Who holds what."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._given: OrderedDict[str, Given] = OrderedDict()

    def remember(self, leases: Iterable[Lease], worker_id: str) -> None:
        """These were handed to this worker."""
        for lease in leases:
            command = lease.command
            self._given[lease.token] = Given(worker_id, command.execution_id, command.command_id)
            if len(self._given) > REMEMBERED_MAX:
                self._given.popitem(last=False)

    async def require_report(self, principal: Principal, report: Report) -> str:
        """The worker that may report this; raises LeaseLost for a lease of somebody else's."""
        given = self._given.get(report.token)
        if given is None:
            given = await self._stored(report.execution_id, report.command_id)
        if given is None and principal.kind == "open":
            return report.worker  # the orchestrator refuses it, and records that
        wanted = (report.execution_id, report.command_id)
        if given is None or given[1:] != wanted or not _is_of(principal, given.worker_id):
            raise LeaseLost(
                f"the lease on command {report.command_id} is not held by whoever reports."
                " Drop this result; the worker that holds it will report."
            )
        return given.worker_id

    async def _stored(self, execution_id: ExecutionId, command_id: CommandId) -> Given | None:
        for command, worker, _ in await self._store.open_commands(execution_id):
            if command.command_id == command_id and worker is not None:
                return Given(worker, execution_id, command_id)
        return None

    async def own(self, principal: Principal, tokens: dict[CommandId, str]) -> dict[CommandId, str]:
        """Those of the leases that were given to a worker of whoever asks."""
        holders = {
            command_id: given.worker_id
            for command_id, token in tokens.items()
            if (given := self._given.get(token)) is not None and given.command_id == command_id
        }
        if len(holders) < len(tokens):
            # This server did not hand them out, or not since it was started.
            for command, worker, _ in await self._store.open_commands():
                if worker is not None:
                    holders.setdefault(command.command_id, worker)
        return {
            command_id: token
            for command_id, token in tokens.items()
            if _is_of(principal, holders.get(command_id, ""))
        }

    async def require_execution(
        self, principal: Principal, worker: str, execution_id: ExecutionId
    ) -> None:
        """Raises NotAllowed unless this worker holds a lease of the execution or its family."""
        worker_id = principal.worker_name(worker)
        now = self._clock.now()
        for member in await self._family(execution_id):
            for _, holder, until in await self._store.open_commands(member):
                if holder == worker_id and until is not None and until > now:
                    return
        raise NotAllowed(
            f"worker {worker or '(unnamed)'} holds no lease of execution {execution_id}, and a"
            " worker may read secrets and results only while it does."
        )

    async def _family(self, execution_id: ExecutionId) -> list[ExecutionId]:
        """The execution, and those above it: a child's result is read by the step that called."""
        found = [execution_id]
        while len(found) < FAMILY_DEPTH_MAX:
            row = await self._store.summary(found[-1])
            if row is None or row.parent_execution_id is None:
                break
            found.append(row.parent_execution_id)
        return found


def _is_of(principal: Principal, worker_id: str) -> bool:
    return principal.kind == "open" or worker_id.startswith(f"{principal.name}/")
