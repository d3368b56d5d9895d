"""Who holds which command, who waits for one, and what is left over.

A command that is decided while a worker waits is leased to it at birth: it is inserted already
leased, and handed over when the commit is through. What no worker waits for stays open in the
store and is claimed later, in turn (`turns`).

Executions stay with a server: whoever has decided the last step has the state in memory, and for
every other server the next one costs a load. So the workers of a server claim first what that
server has opened. A part of the claims takes what is next in the whole pool, whoever opened it, and
so does whoever finds nothing of the server's own: no command depends on one server.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from noetl.control.turns import Turns
from noetl.model.commands import Command, Lease, Orders, apart, pool_of
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.store.base import Holder, NewCommand

STOPS_MAX = 10_000
WATCHED_SECONDS = 60.0
"""So long a worker with a command that may kill it is given nothing else; a worker that was lost
later than that was not ended by this command alone, as far as anybody can tell.
"""
DRAINED_SECONDS = 5.0
"""A worker that should run dry for such a command, and does not ask for so long, need not."""
PASSED_OVER_SECONDS = 0.05
"""So long slots go on with what follows from their reports, while other commands are open."""
YIELDING_SLOTS = 8
"""So many slots then take what is open instead. Each costs a claim, so not all of them do."""
WHOLE_POOL_EVERY = 8
"""One claim of so many is for what is next in the whole pool, whichever server opened it."""
ABSENT_SECONDS = 1.0
"""After so long without a word from a worker of a pool, what is opened there is for others."""


class Waiter:
    """A worker that wants up to so many commands."""

    __slots__ = ("future", "given", "pool", "promised", "want", "worker_id")

    def __init__(
        self, worker_id: str, pool: str, want: int, future: asyncio.Future[None] | None = None
    ) -> None:
        self.worker_id = worker_id
        self.pool = pool
        self.want = want
        self.future = future
        """Somebody waits for this, and would go and claim something; None: it reports just now."""
        self.promised: list[Lease] = []
        """Leases that are being stored just now."""
        self.given: list[Lease] = []

    @property
    def is_idle(self) -> bool:
        """Somebody waits, and is not being given something just now."""
        return self.future is not None and not self.promised and not self.future.done()

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Untold:
    """What a worker should stop or pause and has not been told yet."""

    __slots__ = ("pause", "signal", "stop")

    def __init__(self) -> None:
        self.stop: set[CommandId] = set()
        self.pause: set[CommandId] = set()
        self.signal = asyncio.Event()


class Dispatch:
    """The state of handing out work, in this process."""

    def __init__(self, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.held: dict[CommandId, Holder] = {}
        """Leases that are out, as far as this process knows: whom to tell when one is over."""
        self.backlog: dict[str, int] = {}
        """Open commands per pool that nobody waited for: a hint when to claim."""
        self.claimed_at: dict[str, float] = {}
        """When open commands of a pool were last looked for."""
        self._yielding: dict[str, int] = {}
        """Slots that have passed over what follows, since then."""
        self.turns = Turns()
        self._claims: Counter[str] = Counter()
        self._asked_at: dict[str, float] = {}
        """When a worker of ours was last here for a pool."""
        self._waiting: dict[str, deque[Waiter]] = {}
        self.chosen: set[ExecutionId] | None = None
        """The executions that go on in this process, with their children; None: all."""
        self.away: set[str] = set()
        """Workers that should ask elsewhere, because this server is about to end."""
        self._promised: list[Waiter] = []
        """Waiters with leases that are being stored just now."""
        self._untold: dict[str, Untold] = {}
        self._watched: dict[str, tuple[CommandId, float]] = {}
        """Workers with a command that may kill them, and since when they have it."""
        self._drained: dict[str, tuple[str, float]] = {}
        """By pool, the worker that runs dry for such a command, and when it last asked."""
        self.on_stop: Callable[[str, CommandId], None] | None = None
        self.on_pause: Callable[[str, CommandId], None] | None = None
        """Who else should know what a worker of ours should stop: it may ask elsewhere."""

    # --- Workers that wait ---

    def wait(self, waiter: Waiter) -> None:
        if waiter.worker_id in self.away:
            waiter.wake()
            return
        self._waiting.setdefault(waiter.pool, deque()).append(waiter)

    def wait_in_front(self, waiter: Waiter, now: float) -> None:
        """A slot that reports goes on with what follows: nobody needs to be woken for it.

        But what waits in the store has its turn, too: an execution that always has something to
        follow would keep all slots for itself.
        """
        self._asked_at[waiter.pool] = now
        if self._drained.get(waiter.pool, ("", 0.0))[0] == waiter.worker_id:
            return
        if self.backlog.get(waiter.pool, 0) and now - self.claimed_at.get(waiter.pool, 0) > (
            PASSED_OVER_SECONDS
        ):
            yielding = self._yielding.get(waiter.pool, 0) + 1
            if yielding <= YIELDING_SLOTS:
                self._yielding[waiter.pool] = yielding
                return
        self._waiting.setdefault(waiter.pool, deque()).appendleft(waiter)

    def stop_waiting(self, waiter: Waiter) -> None:
        queue = self._waiting.get(waiter.pool)
        if queue is not None and waiter in queue:
            queue.remove(waiter)

    def begin_claim(self, pool: str, now: float) -> bool:
        """Open commands are looked for; whether those that were opened here come first."""
        # What is opened from here on may not be in what is found.
        self.backlog[pool] = 0
        self.claimed_at[pool] = self._asked_at[pool] = now
        self._yielding[pool] = 0
        self._claims[pool] += 1
        return self._claims[pool] % WHOLE_POOL_EVERY != 0

    def has_workers(self, pool: str, now: float) -> bool:
        """Whether workers of this pool ask here for work."""
        return now - self._asked_at.get(pool, -ABSENT_SECONDS) < ABSENT_SECONDS

    def place(self, command: Command, family: ExecutionId, now: float) -> NewCommand:
        """Lease a new command to whoever waits for it, or leave it open until its turn comes."""
        queue = self._waiting.get(command.pool)
        while queue:
            waiter = queue[0]
            future = waiter.future
            if waiter.want <= len(waiter.promised) or (future is not None and future.done()):
                queue.popleft()
                continue
            token = token_of(command.command_id)
            expires_at = now + self.lease_seconds
            lease = Lease(command=command, token=token, expires_at=expires_at)
            if not waiter.promised:
                self._promised.append(waiter)
            waiter.promised.append(lease)
            # The next one is for whoever waits next: work is shared out, not piled up.
            queue.rotate(-1)
            return NewCommand(command, waiter.worker_id, expires_at)
        turn = self.turns.take(command.pool, family)
        return NewCommand(msgspec.structs.replace(command, turn=turn) if turn else command)

    def opened(self, pool: str) -> None:
        """An open command is stored: whoever has begun to wait meanwhile should claim it."""
        self.backlog[pool] = self.backlog.get(pool, 0) + 1
        for waiter in self._idle(pool_of(pool)):
            waiter.wake()
            return

    def send_away(self, worker_id: str) -> None:
        """This worker waits no longer, for good; what it is just being given it still gets."""
        self.away.add(worker_id)
        for pool in self._waiting:
            for waiter in self._idle(pool):
                if waiter.worker_id == worker_id:
                    waiter.wake()

    def waiting_pools(self) -> set[str]:
        """Pools with workers that wait."""
        found = {pool for pool, queue in self._waiting.items() if queue}
        return found | {apart(pool) for pool in found}

    def wake(self, pool: str) -> None:
        """Commands of unknown number are open: whoever waits should try to claim some."""
        self.backlog[pool] = max(1, self.backlog.get(pool, 0))
        for waiter in self._idle(pool_of(pool)):
            waiter.wake()

    def _idle(self, pool: str) -> Iterator[Waiter]:
        for waiter in self._waiting.get(pool, ()):
            if waiter.is_idle:
                yield waiter

    def deliver(self, moved: set[ExecutionId]) -> None:
        """The commit is through: workers get what they were promised, unless it was not kept."""
        for waiter in self._promised:
            waiter.given = [
                lease for lease in waiter.promised if lease.command.execution_id not in moved
            ]
            for lease in waiter.given:
                self.hold(lease, waiter.worker_id)
        self._release()

    def take_back(self) -> None:
        """The commit failed: nobody was given anything."""
        self._release()

    def _release(self) -> None:
        for waiter in self._promised:
            waiter.promised.clear()
            self.stop_waiting(waiter)
            waiter.wake()
        self._promised.clear()

    # --- Commands that may kill their workers ---

    def is_watched(self, worker_id: str, now: float) -> bool:
        """Whether it has such a command, and not for long: until then it gets nothing else."""
        _, since = self._watched.get(worker_id, ("", -WATCHED_SECONDS))
        return since > now - WATCHED_SECONDS

    def watch(self, worker_id: str, lease: Lease, now: float) -> None:
        """It was given such a command."""
        self._watched[worker_id] = (lease.command.command_id, now)
        self._drained.pop(pool_of(lease.command.pool), None)

    def is_free(self, worker_id: str) -> bool:
        """Whether a worker has nothing, as far as this process knows."""
        return all(holder.worker_id != worker_id for holder in self.held.values())

    def drains(self, worker_id: str, pool: str, now: float) -> bool:
        """Whether this worker, which has something to do, takes nothing more, because a command
        waits for one that has nothing. One worker of a pool does, the others go on.
        """
        chosen, asked = self._drained.get(pool, (worker_id, now))
        if not self.backlog.get(apart(pool), 0):
            self._drained.pop(pool, None)
            return False
        if chosen != worker_id and asked > now - DRAINED_SECONDS:
            return False
        self._drained[pool] = (worker_id, now)
        return True

    # --- Executions that go on here ---

    def choose(self, execution_id: ExecutionId) -> None:
        """It goes on here, whatever else does."""
        if self.chosen is not None:
            self.chosen.add(execution_id)

    def is_chosen(self, execution_id: ExecutionId) -> bool:
        return self.chosen is None or execution_id in self.chosen

    # --- Leases that are out ---

    def hold(self, lease: Lease, worker_id: str) -> None:
        command = lease.command
        self.held[command.command_id] = Holder(command.execution_id, worker_id)
        self.turns.serve(command.pool, command.turn)

    def close(self, command_id: CommandId, *, tell: bool) -> None:
        """The command is over; if a worker still has it, it must stop."""
        held = self.held.pop(command_id, None)
        if held is not None and self._watched.get(held.worker_id, ("", 0.0))[0] == command_id:
            del self._watched[held.worker_id]
        if held is not None and tell:
            self.stop(held.worker_id, {command_id})
            if self.on_stop is not None:
                self.on_stop(held.worker_id, command_id)

    def stop(self, worker_id: str, commands: Iterable[CommandId]) -> None:
        """These are over: this worker should stop them, as soon as it asks."""
        untold = self._untold_for(worker_id)
        # Whoever never asks here hears of it when it renews its leases.
        untold.stop.update(islice(commands, max(0, STOPS_MAX - len(untold.stop))))
        untold.signal.set()

    def pause(self, worker_id: str, commands: Iterable[CommandId]) -> None:
        """This worker should begin nothing more under these, as soon as it asks."""
        untold = self._untold_for(worker_id)
        untold.pause.update(islice(commands, max(0, STOPS_MAX - len(untold.pause))))
        untold.signal.set()

    async def orders(self, worker_id: str) -> Orders:
        """Wait for commands that this worker should stop or pause."""
        untold = self._untold_for(worker_id)
        await untold.signal.wait()
        untold.signal.clear()
        found = Orders(stop=untold.stop, pause=untold.pause)
        untold.stop, untold.pause = set(), set()
        return found

    def has_asked(self, worker_id: str) -> bool:
        """Whether this worker asks here what it should stop, or did lately."""
        return worker_id in self._untold

    def _untold_for(self, worker_id: str) -> Untold:
        untold = self._untold.pop(worker_id) if worker_id in self._untold else Untold()
        self._untold[worker_id] = untold
        if len(self._untold) > STOPS_MAX:
            self._untold.pop(next(iter(self._untold)))
        return untold
