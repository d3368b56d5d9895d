"""Who holds which command, who waits for one, and what is left over.

A command that is decided while a worker waits is leased to it at birth: it is inserted already
leased, and handed over when the commit is through. What no worker waits for stays open in the
store and is claimed later.
"""

from __future__ import annotations

import asyncio
from collections import deque

from noetl.model.commands import Command, Lease
from noetl.model.ids import CommandId, derive
from noetl.store.base import NewCommand


class Waiter:
    """A worker that wants up to so many commands."""

    __slots__ = ("future", "given", "pool", "want", "worker_id")

    def __init__(self, worker_id: str, pool: str, want: int) -> None:
        self.worker_id = worker_id
        self.pool = pool
        self.want = want
        self.given: list[Lease] = []
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Held:
    """A lease that is out."""

    __slots__ = ("lease", "reports", "worker_id")

    def __init__(self, lease: Lease, worker_id: str) -> None:
        self.lease = lease
        self.worker_id = worker_id
        self.reports = 0
        """Number of the last report taken under it."""


class Dispatch:
    """The state of handing out work, in this process."""

    def __init__(self, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.held: dict[CommandId, Held] = {}
        self.backlog: dict[str, int] = {}
        """Open commands per pool that nobody waited for: a hint when to claim."""
        self._waiting: dict[str, deque[Waiter]] = {}
        self._promised: list[Waiter] = []
        """Waiters with leases that are being stored just now."""
        self._cancelled: dict[str, set[CommandId]] = {}
        self._cancel_signals: dict[str, asyncio.Event] = {}

    # --- Workers that wait ---

    def wait(self, waiter: Waiter) -> None:
        self._waiting.setdefault(waiter.pool, deque()).append(waiter)

    def stop_waiting(self, waiter: Waiter) -> None:
        queue = self._waiting.get(waiter.pool)
        if queue is not None and waiter in queue:
            queue.remove(waiter)

    def place(self, command: Command, now: float) -> NewCommand:
        """Lease a new command to whoever waits for it, or leave it open."""
        queue = self._waiting.get(command.pool)
        while queue:
            waiter = queue[0]
            if waiter.want <= len(waiter.given) or waiter.future.done():
                queue.popleft()
                continue
            token = derive(command.command_id, command.deliveries)
            expires_at = now + self.lease_seconds
            lease = Lease(command=command, token=token, expires_at=expires_at)
            if not waiter.given:
                self._promised.append(waiter)
            waiter.given.append(lease)
            return NewCommand(command, waiter.worker_id, token, expires_at)
        return NewCommand(command)

    def opened(self, pool: str) -> None:
        """An open command is stored: whoever has begun to wait meanwhile should claim it."""
        self.backlog[pool] = self.backlog.get(pool, 0) + 1
        queue = self._waiting.get(pool)
        while queue:
            waiter = queue.popleft()
            if not waiter.future.done():
                waiter.future.set_result(None)
                return

    def deliver(self) -> None:
        """The commit is through: workers get what they were promised."""
        for waiter in self._promised:
            for lease in waiter.given:
                self.hold(lease, waiter.worker_id)
            self.stop_waiting(waiter)
            if not waiter.future.done():
                waiter.future.set_result(None)
        self._promised.clear()

    def take_back(self) -> None:
        """The commit failed: nobody was given anything."""
        for waiter in self._promised:
            waiter.given.clear()
        self._promised.clear()

    # --- Leases that are out ---

    def hold(self, lease: Lease, worker_id: str) -> None:
        self.held[lease.command.command_id] = Held(lease, worker_id)

    def holding(self, command_id: CommandId, token: str) -> Held | None:
        held = self.held.get(command_id)
        return held if held is not None and held.lease.token == token else None

    def close(self, command_id: CommandId, *, tell: bool) -> None:
        """The command is over; if a worker still has it, it must stop."""
        held = self.held.pop(command_id, None)
        if held is not None and tell:
            self._cancelled.setdefault(held.worker_id, set()).add(command_id)
            self._signal(held.worker_id).set()

    def _signal(self, worker_id: str) -> asyncio.Event:
        return self._cancel_signals.setdefault(worker_id, asyncio.Event())

    async def cancelled(self, worker_id: str) -> set[CommandId]:
        """Wait for commands that this worker should stop."""
        signal = self._signal(worker_id)
        await signal.wait()
        signal.clear()
        return self._cancelled.pop(worker_id, set())
