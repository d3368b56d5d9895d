"""The work of a visitor: of a process that works off its own executions and leaves others alone.

A server does all the work of its database. `noetl run` and its like do not: they work off what is
started or continued in them, with all that it calls. What else was left in the database stays as it
is until somebody asks for it.

That is said here and nowhere else. A visitor is handed an `OwnWork` where a server is handed the
queue and the limits of its store, and there is nothing in it but its own. The code that leases
commands, fires timers, notices lost leases and starts what waits does not know the difference, and
a server pays nothing for it.

An execution is the visitor's own if it was taken, or if the one that called it is. Who called it is
in the store and never changes, so children need not be told of, whichever process starts them.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from noetl.control.timers import EVERY
from noetl.model.commands import Lease
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.limits import Limits
from noetl.store.queue import Free, LapsedLease, Queue
from noetl.store.records import Records

PAGE = 100


class OwnWork:
    """What of the work in a database is a visitor's own; see `Work` and `Admissions`."""

    goes_along = False  # The store does not know what is our own.

    def __init__(self, queue: Queue, limits: Limits, records: Records) -> None:
        self._queue = queue
        self._limits = limits
        self._records = records
        self._known: dict[ExecutionId, bool] = {}
        """Executions that were asked about or taken, and whether they are our own. Replaced
        whenever executions are taken, so that a look-up under way starts over."""

    def take(self, execution_ids: Collection[ExecutionId]) -> None:
        """These executions continue here, with all that they call."""
        ours = [one for one, is_own in self._known.items() if is_own]
        self._known = dict.fromkeys([*ours, *execution_ids], True)

    async def _has(self, execution_id: ExecutionId) -> bool:
        while True:
            known = self._known
            way: list[ExecutionId] = []
            one: ExecutionId | None = execution_id
            while one is not None and one not in known:
                way.append(one)
                row = await self._records.summary(one)
                one = row.parent_execution_id if row is not None else None
            is_own = one is not None and known[one]
            known.update(dict.fromkeys(way, is_own))
            if known is self._known:
                return is_own

    # --- Commands and leases ---

    async def claim(
        self, worker_id: str, *, pool: str, limit: int, expires_at: float, own: bool = False
    ) -> list[Lease]:
        if own:
            return []  # what this process has opened is found among all that is its own
        commands = [one.command_id for one in await self._free(pool, limit)]
        if not commands:
            return []
        return await self._queue.claim_of(
            worker_id, commands, pool=pool, limit=limit, expires_at=expires_at
        )

    async def _free(self, pool: str, limit: int) -> list[Free]:
        """The first of our own; others may stand before them."""
        page = limit + PAGE
        while True:
            found = await self._queue.free(pool, limit=page)
            ours = [one for one in found if await self._has(one.execution_id)][:limit]
            if len(ours) == limit or len(found) < page:
                return ours
            page *= 2

    async def free_pools(self) -> dict[str, int]:
        found = {pool: await self._free(pool, 1) for pool in await self._queue.free_pools()}
        return {pool: first[0].turn for pool, first in found.items() if first}

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        return await self._queue.renew(commands, now=now, expires_at=expires_at)

    async def lapsed(self, *, now: float, limit: int = 100) -> list[LapsedLease]:
        found = await self._queue.lapsed(now=now, limit=EVERY)
        return [one for one in found if await self._has(one.command.execution_id)][:limit]

    # --- Timers ---

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        found = await self._queue.due_timers(now=now, limit=EVERY)
        return [one for one in found if await self._has(one[0])][:limit]

    async def next_timer(self) -> float | None:
        for execution_id, _, fires_at in await self._queue.due_timers(now=math.inf, limit=EVERY):
            if await self._has(execution_id):
                return fires_at
        return None

    # --- Executions that wait for their turn ---

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        found = await self._limits.admissible(limit=EVERY)
        return [one for one in found if await self._has(one)][:limit]

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        """Executions that make room for one of our own, whoever started them."""
        found = await self._limits.displaced(limit=EVERY)
        return [pair for pair in found if await self._has(pair[1])][:limit]
