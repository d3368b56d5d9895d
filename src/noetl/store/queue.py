"""Commands that wait for workers, their leases, and timers.

A commit inserts and closes commands (`noetl.store.log`); in between, they are found, leased and
listed here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any, NamedTuple, Protocol

import msgspec

from noetl.model.commands import Command, Lease
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.checksums import damaged_command, verified_command
from noetl.store.database import Database


class NewCommand(NamedTuple):
    """A command to insert, possibly already leased ("leased at birth")."""

    command: Command
    worker_id: str | None = None
    expires_at: float | None = None


class Holder(NamedTuple):
    """The worker that holds an open command."""

    execution_id: ExecutionId
    worker_id: str


class OpenCommand(NamedTuple):
    """A command that is not closed; if it is leased, with its worker and until when."""

    command: Command
    worker_id: str | None
    expires_at: float | None


class Claim(msgspec.Struct):
    """Free commands that a worker takes, perhaps along with a commit."""

    worker_id: str
    pool: str
    limit: int
    expires_at: float
    found: list[Lease] = []
    """Set by a commit."""


class LapsedLease(NamedTuple):
    """A command whose lease has lapsed, and its worker."""

    command: Command
    worker_id: str
    expired_at: float


class Free(NamedTuple):
    """A command that can be leased."""

    execution_id: ExecutionId
    command_id: CommandId
    turn: int


class Work(Protocol):
    """The work to do: commands to lease, leases that lapse, timers that are due.

    A process does all the work of its database, or its own part (`noetl.control.own_work`).
    """

    goes_along: bool
    """All that is free may be claimed in the transaction of a commit (`Log.commit`)."""

    async def claim(
        self, worker_id: str, *, pool: str, limit: int, expires_at: float, own: bool = False
    ) -> list[Lease]:
        """Lease up to `limit` free commands of a pool: highest priority first, then lowest turn,
        then oldest. With `own` only those that this process has opened, and none of them while one
        of a higher priority waits.

        Free: never leased. A command is leased once, under the token `token_of` it. When its lease
        lapses it stays in place until a commit closes it: its work continues under another command.
        """

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        """Extend these leases. Returns those that still hold (not closed, not lapsed)."""

    async def lapsed(self, *, now: float, limit: int = 100) -> list[LapsedLease]:
        """Commands whose lease has lapsed, oldest first. Changes nothing."""

    async def free_pools(self) -> dict[str, int]:
        """Pools with commands that wait for a worker, and the turn of the next one."""

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        """Timers that are due, earliest first. They stay until a commit clears them."""

    async def next_timer(self) -> float | None:
        """When the earliest timer fires."""


class Queue(Work):
    """All the work of a database: to lease it, and to show it."""

    own_claim = "claim_own"
    """The statement that claims what this process has opened."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, worker_id: str, *, pool: str, limit: int, expires_at: float, own: bool = False
    ) -> list[Lease]:
        query = self.own_claim if own else "claim"
        return await self._lease(query, Claim(worker_id, pool, limit, expires_at))

    async def claim_of(
        self,
        worker_id: str,
        commands: Collection[CommandId],
        *,
        pool: str,
        limit: int,
        expires_at: float,
    ) -> list[Lease]:
        """Like `claim`, for these commands only."""
        claim = Claim(worker_id, pool, limit, expires_at)
        return await self._lease("claim_of", claim, commands=list(commands))

    @abstractmethod
    async def _lease(self, query: str, claim: Claim, **chosen: Any) -> list[Lease]:
        """Lease commands that a statement chooses. One whose bytes have changed is set aside, so
        that it blocks nobody.
        """

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        found = await self._database.returned(
            "renew_leases", commands=list(commands), now=now, expires_at=expires_at
        )
        return {one for (one,) in found}

    async def lapsed(self, *, now: float, limit: int = 100) -> list[LapsedLease]:
        """Those of damaged commands are left out."""
        rows = await self._database.tuples("lapsed", now=now, limit=limit)
        found = [(verified_command(body, checksum), *rest) for body, checksum, *rest in rows]
        return [LapsedLease(command, *rest) for command, *rest in found if command is not None]

    async def free_pools(self) -> dict[str, int]:
        return dict(await self._database.tuples("free_pools"))

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        return await self._database.tuples("due_timers", now=now, limit=limit)

    async def next_timer(self) -> float | None:
        [fires_at] = await self._database.column("next_timer")
        return None if fires_at is None else float(fires_at)

    async def free(self, pool: str, *, limit: int) -> list[Free]:
        """The first commands of a pool that `claim` would lease, in its order."""
        return [Free(*row) for row in await self._database.tuples("free", pool=pool, limit=limit)]

    async def holders(self, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
        """The holder of each of these that is leased, whether the lease has lapsed or not."""
        found = await self._database.tuples("holders", commands=list(commands))
        return {command_id: Holder(*rest) for command_id, *rest in found}

    async def sizes(self) -> dict[str, tuple[int, int]]:
        """For each pool with commands: how many wait for a worker, and how many are leased."""
        rows = await self._database.tuples("queue_sizes")
        return {pool: (free, leased) for pool, free, leased in rows}

    async def open_commands(self, execution_id: ExecutionId | None = None) -> list[OpenCommand]:
        """Open commands: of one execution, where a damaged one is an error, or of all, where it is
        left out.
        """
        query = "open_commands" if execution_id is None else "open_commands_of"
        rows = await self._database.tuples(query, execution_id=execution_id)
        found = []
        for command_id, body, checksum, is_corrupted, worker_id, expires_at, *_ in rows:
            command = None if is_corrupted else verified_command(body, checksum)
            if command is not None:
                found.append(OpenCommand(command, worker_id, expires_at))
            elif execution_id is not None:
                raise damaged_command(command_id, execution_id)
        return found

    async def waiting_commands(self, *, limit: int) -> list[Command]:
        """Commands that no worker has, oldest first; without damaged ones."""
        rows = await self._database.tuples("waiting_commands", limit=limit)
        found = [verified_command(body, checksum) for body, checksum in rows]
        return [command for command in found if command is not None]

    async def timers(self, execution_id: ExecutionId) -> dict[str, float]:
        """The timers of an execution, and when each fires."""
        return dict(await self._database.tuples("timers_of", execution_id=execution_id))
