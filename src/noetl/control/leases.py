"""Leases: a worker's right to run one command and to report on it. Their whole life is here.

*Opened.* The engine issues a command. It is stored in the transaction of the decision that issued
it, and waits in the queue of its pool and labels.

*Leased at birth.* If a worker waits at that moment, the command is stored already leased to it, and
handed over when the commit is through: no second write, no polling (`Dispatch.place`).

*Claimed.* Any other command stays open in the store and is claimed later, in turn (`Turns`). A slot
that reports, and gets nothing that follows, claims in the transaction of its report if the store
can do that (`Dispatch.claims`). Otherwise workers claim when they ask (`Leases.lease`). The first
lease of a step run starts it (`step.started`).

*Who goes first.* A slot that reports continues with what follows from its report, because that
costs nothing. Two rules bound this. If the slot's executions have commands waiting in line, and a
command was opened whose turn it is now, the slot claims that one while its report is decided, and
what follows joins the line (`Dispatch.makes_room`): a loop of a hundred thousand iterations delays
a newcomer by one report. And if commands have been open for a twentieth of a second, a few slots
look for them (`Dispatch.wait_in_front`).

*Renewed.* The worker renews its leases long before they run out (`Leases.renew`). The answer names
the commands that are over, and the worker stops them; `Dispatch.orders` names them at once.

*Over.* The worker's last report closes the command, in the transaction that stores what follows.
The answer may carry the next lease.

*Lapsed, or given back.* A lease that is not renewed runs out. A worker that ends gives its leases
back, and so does the server for a worker that asked and went away. The work then continues under a
**new command**, from what was recorded (`Leases.requeue_lapsed`, `take_over`). A command that is
lost again and again is a *suspect*: it goes to a worker that runs nothing else. In the end its step
run fails with the code `poison` (`_lapse` in `engine/advance.py`).

A server that is killed between the commit of a lease and its answer leaves a lease that no worker
knows of. It lapses like any other (30 s). It is not taken back when its worker asks again without
naming it: an answer that is still on its way looks just the same to the server, and the work would
be done twice.

*Cancelled.* A decision may end a step run while a worker has its command. The command is closed,
and its worker is told to stop (`Dispatch.close`).

**What fences a report.** A command is given to one worker, once: after a loss the work has another
command. A report shows the lease token, which is derived from the id of its command. One with a
wrong token, or for a command that is not open any more, is refused. It changes nothing; it is
recorded if the command was lost rather than over. Whether the command is open is decided on the
state that the commit compares with the store, so two servers cannot both accept a report.

**Executions stay with a server**, because the server that decided the last step has the state in
memory, and any other has to load it. So the workers of a server claim its commands first. Every
eighth claim takes what is next in the whole pool, and so does a worker whose server has nothing
open: no command depends on one server.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec

from noetl.control.clock import Clock, Deadline
from noetl.control.timers import (
    BATCH,
    EVERY,
    GRACE_SECONDS,
    POLL_SECONDS,
    Owns,
    Resting,
    everything,
)
from noetl.errors import LeaseLost, NoetlError, NotFound, StoreError
from noetl.model.commands import (
    SUSPECT_AFTER,
    Command,
    Lease,
    Orders,
    Report,
    apart,
    is_apart,
    place_of,
    serves,
)
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.model.inputs import Lapsed, Leased, Refused
from noetl.store.queue import Claim, Holder, NewCommand, Work

if TYPE_CHECKING:
    from noetl.control.commit_loop import Inbox
    from noetl.control.live import Live

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Seconds after which a worker that may take nothing now looks again."""
RECENT_SECONDS = 120.0
"""Leases that a worker loses within this many seconds may have been lost by the same death."""
REMEMBERED_MAX = 20_000
"""Families of executions whose last turn is remembered."""
STOPS_MAX = 10_000
WATCHED_SECONDS = 60.0
"""A worker with a suspect, a command that may kill it, is given nothing else for this long. If it
is lost later, nobody can tell whether this command alone ended it.
"""
DRAINED_SECONDS = 5.0
"""A worker that is to run dry for a suspect is replaced if it does not ask for this long."""
PASSED_OVER_SECONDS = 0.05
"""While other commands are open, slots continue with what follows for this long."""
YIELDING_SLOTS = 8
"""So many slots then take what is open instead. Not all of them: each claim has a cost."""
UNKNOWN = math.inf
"""The backlog of a queue that nobody has counted."""
WHOLE_POOL_EVERY = 8
"""One claim in so many takes what is next in the whole pool, whichever server opened it."""
ABSENT_SECONDS = 1.0
"""If no worker of a pool has asked for this long, what is opened there is announced to others."""


# --- Whose turn it is ---------------------------------------------------------------------------


class Turns:
    """Pools serve executions in turn, not commands by age.

    Every waiting command has a turn; of those with the same priority, the lowest turn goes first.
    The first command of an execution gets the turn that is being served, and each further command
    the turn after the one before. A thousand commands of one execution wait a thousand turns deep,
    and an execution that comes later is served after the first of them. Nobody waits for ever: no
    command gets a turn below the one that is being served, and an execution has one command per
    turn.

    Executions that were called count as part of their caller: a fan-out has one place in the line,
    whether it consists of iterations or of executions.

    This is the view of one process. It learns of other servers' turns from what its workers claim,
    from news, and from a look once a second; until then its commands are a little early.
    """

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        """The highest turn that was served."""
        self._last: dict[tuple[str, ExecutionId], int] = {}
        """The last turn that each family of executions has taken."""

    def take(self, queue: str, family: ExecutionId) -> int:
        """The turn of the next command of these executions."""
        served = self._served.get(queue, 0)
        turn = self._last[queue, family] = max(served, self._last.pop((queue, family), -1) + 1)
        if len(self._last) > REMEMBERED_MAX:
            self._forget()
        return turn

    def is_in_line(self, queue: str, family: ExecutionId) -> bool:
        """Whether commands of these executions wait for their turn, as far as is known here."""
        return self._last.get((queue, family), -1) > self._served.get(queue, 0)

    def serve(self, queue: str, turn: int) -> None:
        """A command with this turn is being served, here or elsewhere."""
        if turn > self._served.get(queue, 0):
            self._served[queue] = turn

    def served(self, queue: str) -> int:
        return self._served.get(queue, 0)

    def _forget(self) -> None:
        """Drop families that would start anew anyway; if that is too few, the oldest half."""
        self._last = {
            which: turn for which, turn in self._last.items() if turn >= self.served(which[0])
        }
        if len(self._last) > REMEMBERED_MAX // 2:
            self._last = dict(list(self._last.items())[len(self._last) // 2 :])


# --- Who waits, who holds what ------------------------------------------------------------------


class Waiter(msgspec.Struct, eq=False):
    """A worker that wants up to so many commands."""

    worker_id: str
    offer: str
    """Its pool, perhaps with the labels that it has."""
    want: int
    future: asyncio.Future[None] | None = None
    """Set when there is something to claim or to take; None for a slot that reports."""
    promised: list[Lease] = []
    """Leases that are being stored just now."""
    given: list[Lease] = []

    @property
    def is_idle(self) -> bool:
        """It waits, and is not being given anything."""
        return self.future is not None and not self.promised and not self.future.done()

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Claiming(NamedTuple):
    """A claim under way, and what was known of its queue before."""

    claim: Claim
    slots: Sequence[Waiter]
    """Those that report in the same transaction; none if a worker asks."""
    own_first: bool
    """It takes commands that were opened here first."""
    backlog: float
    """Commands that were open; of these, newcomers whose turn had come."""
    newcomers: int


Order = Literal["stop", "pause"]
"""Stop a command; or, under it, begin nothing more."""


class Untold:
    """What a worker should stop or pause and has not been told yet."""

    __slots__ = ("commands", "signal")

    def __init__(self) -> None:
        self.commands: dict[Order, set[CommandId]] = {"stop": set(), "pause": set()}
        self.signal = asyncio.Event()


class Dispatch:
    """Who waits for work in this process, and who holds what."""

    def __init__(self, lease_seconds: float, whole_pool_every: int) -> None:
        self.lease_seconds = lease_seconds
        self._whole_pool_every = whole_pool_every
        self.held: dict[CommandId, Holder] = {}
        """Leases that are out, as far as is known here: the worker to tell when one is over."""
        self.backlog: dict[str, float] = {}
        """An upper bound of the open commands per queue: whether to claim. UNKNOWN until a claim
        returns fewer than it asked for."""
        self.claimed_at: dict[str, float] = {}
        """When open commands of a queue were last claimed."""
        self._yielding: dict[str, int] = {}
        """Slots that have left what follows to others since then."""
        self.newcomers: dict[str, int] = {}
        """Commands per queue that were opened since the last claim, and whose turn had come."""
        self.turns = Turns()
        self._claims: Counter[str] = Counter()
        self._asked_at: dict[str, float] = {}
        """Offer or queue → when a worker last asked here for it."""
        self._waiting: defaultdict[str, deque[Waiter]] = defaultdict(deque)
        """Waiters by their offer: a pool, or a pool with labels."""
        self._offers: set[str] = set()
        """Offers with labels."""
        self._takers: dict[str, tuple[str, ...]] = {}
        """Queue → the offers that serve it."""
        self.away: set[str] = set()
        """Workers that should ask elsewhere, because this server is about to end."""
        self._promised: list[Waiter] = []
        """Waiters whose leases are being stored."""
        self._untold: dict[str, Untold] = {}
        self._watched: dict[str, tuple[CommandId, float]] = {}
        """Workers with a suspect, and since when."""
        self._drained: dict[str, tuple[str, float]] = {}
        """Queue → the worker that runs dry for a suspect, and when it last asked."""
        self.on_order: Callable[[str, Order, CommandId], None] | None = None
        """Tells other servers, because the worker may ask there."""

    # --- Workers that wait ---

    def wait(self, waiter: Waiter) -> None:
        if waiter.worker_id in self.away:
            waiter.wake()
            return
        self.know(waiter.offer)
        self._waiting[waiter.offer].append(waiter)

    def makes_room(self, waiter: Waiter, family: ExecutionId) -> str | None:
        """The queue from which this slot takes a newcomer instead of what follows; None: it
        continues. A slot whose executions have nothing in line would only change places.
        """
        for queue in self.queues_of(waiter.offer):
            if self.newcomers.get(queue, 0) and self.turns.is_in_line(queue, family):
                drained = self._drained.get(queue)
                if drained is None or drained[0] != waiter.worker_id:
                    return queue
        return None

    def wait_in_front(self, waiter: Waiter, now: float) -> None:
        """A slot that reports gets what follows, before workers that would have to be woken.

        But open commands have their turn, too: an execution that always has something to follow
        would otherwise keep all slots.
        """
        offer = waiter.offer
        self._asked_at[offer] = now
        # `queues_of`, without a call: most offers have no labels, and this is asked in every step.
        for queue in self.queues_of(offer) if place_of(offer)[1] else (offer,):
            if queue in self._drained and self._drained[queue][0] == waiter.worker_id:
                return
            if self.backlog.get(queue, 0) and now - self.claimed_at.get(queue, 0) > (
                PASSED_OVER_SECONDS
            ):
                yielding = self._yielding.get(queue, 0) + 1
                if yielding <= YIELDING_SLOTS:
                    self._yielding[queue] = yielding
                    return
        self._waiting[offer].appendleft(waiter)

    def know(self, offer: str) -> bool:
        """Note what a worker offers. Returns whether that is new."""
        if offer in self._offers or not place_of(offer)[1]:
            return False
        self._offers.add(offer)
        self._takers.clear()
        return True

    def queues_of(self, offer: str) -> tuple[str, ...]:
        """The known queues that a worker with this offer serves: those with the most labels first,
        because the fewest workers serve them.
        """
        pool, labels = place_of(offer)
        if not labels:
            return (offer,)
        known = (one for one in self.backlog if not is_apart(one) and serves(offer, one))
        return tuple(sorted({pool, *known}, key=lambda one: (-len(place_of(one)[1]), one)))

    def takers(self, queue: str) -> tuple[str, ...]:
        """The offers that serve a queue."""
        found = self._takers.get(queue)
        if found is None:
            offers = (place_of(queue)[0], *sorted(self._offers))
            found = self._takers[queue] = tuple(one for one in offers if serves(one, queue))
        return found

    def stop_waiting(self, waiter: Waiter) -> None:
        waiters = self._waiting.get(waiter.offer)
        if waiters and waiter in waiters:
            waiters.remove(waiter)

    def begin_claim(
        self, worker_id: str, queue: str, limit: int, now: float, slots: Sequence[Waiter] = ()
    ) -> Claiming:
        """A claim begins. Commands opened during it may be missed: they count from zero again."""
        self._claims[queue] += 1
        own_first = self._claims[queue] % self._whole_pool_every != 0
        backlog, newcomers = self.backlog.get(queue, UNKNOWN), self.newcomers.pop(queue, 0)
        self.backlog[queue] = self._yielding[queue] = 0
        self.claimed_at[queue] = self._asked_at[queue] = now
        claim = Claim(worker_id, queue, limit, now + self.lease_seconds)
        return Claiming(claim, slots, own_first, backlog, newcomers)

    def end_claim(self, claiming: Claiming) -> None:
        """The claim is stored: its slots get what it found. If it found as many commands as it
        asked for, the rest of the backlog is still open.
        """
        claim = claiming.claim
        leases = iter(claim.found)
        for waiter in claiming.slots:
            self.stop_waiting(waiter)
            waiter.given = [*islice(leases, waiter.want)]
        if len(claim.found) >= claim.limit:
            self._left(claim.pool, claiming.backlog - claim.limit)
            self.expect(claim.pool, claiming.newcomers - claim.limit)

    def break_off_claim(self, claiming: Claiming) -> None:
        """The claim failed, and nobody knows what it left."""
        self._left(claiming.claim.pool, UNKNOWN)

    def claims(self, waiters: Iterable[Waiter], now: float) -> list[Claiming]:
        """Claims for slots that report and are promised nothing: in the transaction of their
        reports, so that they need not ask.
        """
        idle: dict[tuple[str, str], list[Waiter]] = {}
        for waiter in waiters:
            worker_id, offer = waiter.worker_id, waiter.offer
            if waiter.promised or waiter.given or not self.backlog.get(offer, 0):
                continue
            # Suspects come first, and what asks for labels: `Leases.lease`.
            if place_of(offer)[1] or self.backlog.get(apart(offer), 1):
                continue
            if worker_id not in self.away:
                idle.setdefault((worker_id, offer), []).append(waiter)
        found = []
        # An offer without labels is also the queue that it serves.
        for (worker_id, queue), slots in idle.items():
            if not self.is_watched(worker_id, now):
                want = sum(waiter.want for waiter in slots)
                found.append(self.begin_claim(worker_id, queue, want, now, slots))
        return found

    def has_workers(self, queue: str, now: float) -> bool:
        """Whether workers that serve this queue ask here."""
        return any(
            now - self._asked_at.get(one, -ABSENT_SECONDS) < ABSENT_SECONDS
            for one in (queue, *self.takers(queue))
        )

    def place(self, command: Command, of: Live, now: float) -> NewCommand:
        """Lease a new command to a worker that waits, or leave it open until its turn comes."""
        # A suspect stays open: it is claimed by a worker that has nothing else.
        for offer in self.takers(command.pool) if command.deliveries < SUSPECT_AFTER else ():
            waiters = self._waiting.get(offer)
            while waiters:
                waiter = waiters[0]
                future = waiter.future
                if waiter.want <= len(waiter.promised) or (future is not None and future.done()):
                    waiters.popleft()
                    continue
                token = token_of(command.command_id)
                expires_at = now + self.lease_seconds
                lease = Lease(command=command, token=token, expires_at=expires_at)
                if not waiter.promised:
                    self._promised.append(waiter)
                waiter.promised.append(lease)
                # The next command is for the next waiter: work is shared out, not piled up.
                waiters.rotate(-1)
                return NewCommand(command, waiter.worker_id, expires_at)
        turn = self.turns.take(command.pool, of.family)
        return NewCommand(msgspec.structs.replace(command, turn=turn) if turn else command)

    def opened(self, queue: str, turn: int) -> None:
        """An open command is stored: a worker that began to wait meanwhile should claim it."""
        self.backlog[queue] = self.backlog.get(queue, UNKNOWN) + 1
        if turn <= self.turns.served(queue):
            self.expect(queue, 1)
        self._wake_one(queue)

    def _left(self, queue: str, count: float) -> None:
        """So many are still open after a claim: for other workers that wait."""
        if count > 0:
            self.backlog[queue] += count
            self._wake_one(queue)

    def _wake_one(self, queue: str) -> None:
        for waiter in self._idle(queue):
            waiter.wake()
            return

    def expect(self, queue: str, newcomers: int) -> None:
        """So many commands are open whose turn it is now."""
        if newcomers > 0:
            known = self.newcomers.get(queue, 0)
            self.newcomers[queue] = min(known + newcomers, YIELDING_SLOTS)

    def send_away(self, worker_id: str) -> None:
        """This worker is to ask elsewhere from now on. It still gets what it is being given."""
        self.away.add(worker_id)
        for waiters in self._waiting.values():
            for waiter in waiters:
                if waiter.worker_id == worker_id and waiter.is_idle:
                    waiter.wake()

    def waiting_queues(self) -> set[str]:
        """The known queues for which workers wait."""
        offers = [offer for offer, waiters in self._waiting.items() if waiters]
        found = {queue for offer in offers for queue in self.queues_of(offer)}
        return found | {apart(queue) for queue in found}

    def is_awaited(self, queue: str) -> bool:
        """Whether workers wait for what is opened there."""
        return any(self._waiting.get(offer) for offer in self.takers(queue))

    def wake(self, queue: str) -> None:
        """An unknown number of commands is open: all workers that wait should try to claim."""
        self.backlog[queue] = UNKNOWN
        for waiter in self._idle(queue):
            waiter.wake()

    def _idle(self, queue: str) -> Iterator[Waiter]:
        for offer in self.takers(queue):
            for waiter in self._waiting.get(offer, ()):
                if waiter.is_idle:
                    yield waiter

    def let_out(
        self, closed: dict[CommandId, tuple[ExecutionId, bool]], moved: set[ExecutionId]
    ) -> None:
        """The commit is through: commands are over, and their workers are told where that says
        `True`; waiters get what they were promised, unless it is over. Nothing of executions that
        were refused (`moved`).
        """
        for command_id, (execution_id, tell) in closed.items():
            if execution_id not in moved:
                self.close(command_id, tell=tell)
        for waiter in self._promised:
            leases = waiter.promised
            if moved or closed:
                leases = [
                    one
                    for one in leases
                    if one.command.execution_id not in moved
                    and one.command.command_id not in closed
                ]
            waiter.given = leases
            for lease in leases:
                self.hold(lease, waiter.worker_id)
        if self._promised:
            self.take_back()

    def take_back(self) -> None:
        """Promises are void: they were kept, or the commit failed."""
        for waiter in self._promised:
            waiter.promised = []
            waiters = self._waiting[waiter.offer]
            if waiter in waiters:
                waiters.remove(waiter)
            if waiter.future is not None:
                waiter.wake()
        self._promised.clear()

    # --- Suspects: commands that may kill their workers ---

    def is_watched(self, worker_id: str, now: float) -> bool:
        """Whether it got a suspect a short while ago; until that is over it gets nothing else."""
        _, since = self._watched.get(worker_id, ("", -WATCHED_SECONDS))
        return since > now - WATCHED_SECONDS

    def watch(self, worker_id: str, lease: Lease, now: float) -> None:
        """The worker was given a suspect."""
        self._watched[worker_id] = (lease.command.command_id, now)
        self._drained.pop(lease.command.pool.removesuffix(apart("")), None)

    def is_free(self, worker_id: str) -> bool:
        """Whether a worker holds nothing, as far as this process knows."""
        return all(holder.worker_id != worker_id for holder in self.held.values())

    def drains(self, worker_id: str, queue: str, now: float) -> bool:
        """Whether this busy worker is to take nothing more, because a command waits for a worker
        that holds nothing. One worker of a queue runs dry; the others continue.
        """
        chosen, asked = self._drained.get(queue, (worker_id, now))
        if not self.backlog.get(apart(queue), 0):
            self._drained.pop(queue, None)
            return False
        if chosen != worker_id and asked > now - DRAINED_SECONDS:
            return False
        self._drained[queue] = (worker_id, now)
        return True

    # --- Leases that are out ---

    def hold(self, lease: Lease, worker_id: str) -> None:
        command = lease.command
        self.held[command.command_id] = Holder(command.execution_id, worker_id)
        if command.turn:
            self.turns.serve(command.pool, command.turn)

    def close(self, command_id: CommandId, *, tell: bool) -> None:
        """The command is over; if a worker still has it, it must stop."""
        held = self.held.pop(command_id, None)
        if held is None:
            return
        if self._watched.get(held.worker_id, ("", 0.0))[0] == command_id:
            del self._watched[held.worker_id]
        if tell:
            self.order_everywhere(held.worker_id, "stop", command_id)

    def order_everywhere(self, worker_id: str, order: Order, command_id: CommandId) -> None:
        """Tell a worker, whichever server it asks."""
        self.order(worker_id, order, {command_id})
        if self.on_order is not None:
            self.on_order(worker_id, order, command_id)

    def order(self, worker_id: str, order: Order, commands: Iterable[CommandId]) -> None:
        """Tell a worker, as soon as it asks here."""
        untold = self._untold_for(worker_id)
        known = untold.commands[order]
        # A worker that never asks here hears of it when it renews its leases.
        known.update(islice(commands, max(0, STOPS_MAX - len(known))))
        untold.signal.set()

    async def orders(self, worker_id: str) -> Orders:
        """Return as soon as this worker should stop or pause something."""
        untold = self._untold_for(worker_id)
        await untold.signal.wait()
        untold.signal.clear()
        commands, untold.commands = untold.commands, {"stop": set(), "pause": set()}
        return Orders(**commands)

    def has_asked(self, worker_id: str) -> bool:
        """Whether this worker asks here what it should stop, or did lately."""
        return worker_id in self._untold

    def _untold_for(self, worker_id: str) -> Untold:
        untold = self._untold.pop(worker_id) if worker_id in self._untold else Untold()
        self._untold[worker_id] = untold
        if len(self._untold) > STOPS_MAX:
            self._untold.pop(next(iter(self._untold)))
        return untold


# --- Asked for, renewed, lapsed -----------------------------------------------------------------


class Losses:
    """Which workers lost which step runs lately. A worker that lost a single one may have died of
    it; of several, nobody knows which it was.
    """

    def __init__(self) -> None:
        self._runs: dict[str, tuple[float, set[str]]] = {}

    def note(self, worker: str, runs: set[str], now: float) -> bool:
        """A worker lost these runs, or still has them leased. Returns whether that is one run."""
        self._runs = {
            name: seen for name, seen in self._runs.items() if seen[0] > now - RECENT_SECONDS
        }
        _, known = self._runs.get(worker, (now, set()))
        self._runs[worker] = (now, known | runs)
        return len(self._runs[worker][1]) == 1


class Leases:
    """Leases asked for, renewed and lapsed."""

    def __init__(self, work: Work, clock: Clock, dispatch: Dispatch, inbox: Inbox) -> None:
        self._work = work
        self._clock = clock
        self._dispatch = dispatch
        self._inbox = inbox
        self.go_along = work.goes_along
        """Slots that report may claim in the transaction of their reports."""
        self.losses = Losses()

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        """Commands for this worker: what is open, or what is opened within `wait` seconds.

        `pool` is what it offers: a pool, perhaps with labels.
        """
        deadline = Deadline(self._clock, wait)
        if self._dispatch.know(pool):
            # Only the store knows which queues it serves beside its pool.
            for queue in await self._work.free_pools():
                self._dispatch.backlog.setdefault(queue, UNKNOWN)
        while True:
            found, may_take = await self._claim_open(worker_id, pool, want)
            if not found and may_take:
                found = await self._handed_over(worker_id, pool, want, deadline)
            is_away = may_take and worker_id in self._dispatch.away
            if found or is_away or deadline.left() <= 0:
                return found
            if not may_take:
                await self._clock.sleep(LOOK_SECONDS)

    async def _claim_open(self, worker_id: str, offer: str, want: int) -> tuple[list[Lease], bool]:
        """What is open for this worker, and whether it may be given anything now."""
        for queue in self._dispatch.queues_of(offer):
            found, may_take = await self._claim_alone(worker_id, queue)
            if found or not may_take:
                return found, may_take
        # Nobody wakes a worker that does not wait yet: claim also what is opened meanwhile.
        for queue in self._dispatch.queues_of(offer):
            while self._dispatch.backlog.get(queue, UNKNOWN) > 0:
                found = await self._claim(worker_id, queue, want)
                if found:
                    return found, True
        return [], True

    async def _handed_over(
        self, worker_id: str, offer: str, want: int, deadline: Deadline
    ) -> list[Lease]:
        """What is leased to a worker that waits. Nothing, too, if there is something to claim."""
        coming = asyncio.get_running_loop().create_future()
        waiter = Waiter(worker_id, offer, want, coming)
        self._dispatch.wait(waiter)
        try:
            await asyncio.wait([coming], timeout=deadline.left())
            if waiter.promised:
                await asyncio.wait([coming])
        except asyncio.CancelledError:
            self.give_back((*waiter.promised, *waiter.given), worker_id)
            raise
        finally:
            self._dispatch.stop_waiting(waiter)
        return waiter.given

    async def _claim_alone(self, worker_id: str, queue: str) -> tuple[list[Lease], bool]:
        """A suspect, if one waits and this worker holds nothing; and whether this worker may take
        other commands. A worker that dies of it then dies alone, and the cause is known.
        """
        now = self._clock.now()
        if self._dispatch.is_watched(worker_id, now):
            return [], False
        if self._dispatch.backlog.get(apart(queue), 1) == 0:
            return [], True
        if not self._dispatch.is_free(worker_id):
            # The backlog may be a guess. What is opened during the query counts from zero.
            self._dispatch.backlog[apart(queue)] = 0
            if apart(queue) in await self._work.free_pools():
                self._dispatch.backlog[apart(queue)] = UNKNOWN
            return [], not self._dispatch.drains(worker_id, queue, now)
        found = await self._claim(worker_id, apart(queue), 1)
        for lease in found:
            self._dispatch.watch(worker_id, lease, now)
        return found, True

    async def claim_for_reporter(self, waiter: Waiter, queue: str) -> list[Lease]:
        """For a slot that makes room. If the store does not answer, it continues."""
        try:
            return await self._claim(waiter.worker_id, queue, waiter.want)
        except StoreError as error:
            logger.warning("nothing could be claimed: %s", error)
            return []

    async def _claim(self, worker_id: str, queue: str, want: int) -> list[Lease]:
        now = self._clock.now()
        claiming = self._dispatch.begin_claim(worker_id, queue, want, now)
        try:
            claiming.claim.found = await self.taken(worker_id, self._claimed(claiming), now)
        except BaseException:
            self._dispatch.break_off_claim(claiming)
            raise
        self._dispatch.end_claim(claiming)
        return claiming.claim.found

    async def taken(
        self, worker_id: str, claim: Coroutine[Any, Any, list[Lease]], now: float
    ) -> list[Lease]:
        """What a worker claims. If it goes away meanwhile, others get that."""

        def give_back(claimed: asyncio.Future[list[Lease]]) -> None:
            if not claimed.cancelled() and claimed.exception() is None:
                self.give_back(claimed.result(), worker_id)

        claimed = asyncio.ensure_future(claim)
        try:
            found = await asyncio.shield(claimed)
        except BaseException:
            claimed.add_done_callback(give_back)
            raise
        self.note_claimed(found, worker_id, now)
        return found

    async def _claimed(self, claiming: Claiming) -> list[Lease]:
        claim, work = claiming.claim, self._work
        worker_id, pool, expires_at = claim.worker_id, claim.pool, claim.expires_at
        found: list[Lease] = []
        if claiming.own_first:
            found = await work.claim(
                worker_id, pool=pool, limit=claim.limit, expires_at=expires_at, own=True
            )
        if len(found) < claim.limit:
            left = claim.limit - len(found)
            try:
                found += await work.claim(worker_id, pool=pool, limit=left, expires_at=expires_at)
            except StoreError as error:
                if not found:
                    raise
                logger.warning("the whole pool could not be checked: %s", error)
        return found

    def note_claimed(self, leases: Iterable[Lease], worker_id: str, now: float) -> None:
        """A worker has taken these; that they are leased is stored already."""
        for lease in leases:
            self._dispatch.hold(lease, worker_id)
            leased = Leased(
                execution_id=lease.command.execution_id,
                at=now,
                command_id=lease.command.command_id,
                step_run_id=lease.command.step_run_id,
                worker=worker_id,
            )
            self._inbox.post(leased)

    def give_back(self, leases: Iterable[Lease], worker_id: str) -> None:
        """The worker that asked is gone, or will not hear of its new leases: they go to others."""
        now = self._clock.now()
        for lease in leases:
            self._inbox.post(_lapsed(lease.command, worker_id, now, given_back=True))

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        """Extend leases. Returns the commands that are no longer this worker's."""
        now = self._clock.now()
        shown = [command for command, token in tokens.items() if token == token_of(command)]
        held = await self._work.renew(shown, now=now, expires_at=now + self._dispatch.lease_seconds)
        return tokens.keys() - held

    async def refuse(self, report: Report) -> NoReturn:
        """The sender does not hold the lease: the report changes nothing, and is recorded."""
        given = Refused(execution_id=report.execution_id, at=self._clock.now(), report=report)
        with suppress(NotFound):
            await self._inbox.submit(given)
        raise lease_lost(report)

    async def requeue_lapsed(
        self, owns: Owns = everything, rests: int = 1, *, after: float = 0.0
    ) -> None:
        """Give the work of lapsed leases to other workers, until cancelled.

        It begins `after` seconds, so that a worker that could not renew while no server ran has
        time to come back. See `QUIET_LOOKS` for `rests`.
        """
        await self._clock.sleep(after)
        quiet, resting = 0, Resting()
        while True:
            await self._clock.sleep(POLL_SECONDS)
            quiet = max(0, quiet - 1)
            if quiet and not self._dispatch.held:
                continue
            try:
                await self._requeue_lapsed(owns, resting)
                if rests > 1 and not await self._work.lapsed(now=math.inf, limit=1):
                    quiet = rests
            except StoreError as error:
                logger.warning("leases could not be checked: %s", error)

    async def _requeue_lapsed(self, owns: Owns, resting: Resting) -> None:
        # Commands that rest stay lapsed, and must not hide the others.
        now = self._clock.now()
        found = await self._work.lapsed(now=now, limit=BATCH + len(resting))
        due = {(one.command.execution_id, one.command.command_id): one for one in found}
        lapsed = resting.awake(due, now)
        if not lapsed:
            return
        alone = await self._alone({worker for _, worker, _ in lapsed.values()}, now)
        for key, (command, worker, expired_at) in lapsed.items():
            if owns(command.execution_id) or expired_at <= now - GRACE_SECONDS:
                done = await self._requeue(command, worker, alone=worker in alone)
                resting.note(key, self._clock.now(), done=done)

    async def _alone(self, workers: set[str], now: float) -> set[str]:
        """The workers among these that held a single step run when they were lost."""
        leased: dict[str, set[str]] = {worker: set() for worker in workers}
        for one in await self._work.lapsed(now=math.inf, limit=EVERY):
            if one.worker_id in leased:
                leased[one.worker_id].add(one.command.step_run_id)
        return {worker for worker, runs in leased.items() if self.losses.note(worker, runs, now)}

    async def _requeue(
        self, command: Command, worker: str, *, given_back: bool = False, alone: bool = False
    ) -> bool:
        """Whether its work goes on under a new command. One that cannot must not stop others."""
        about = {"execution_id": command.execution_id}
        now = self._clock.now()
        try:
            await self._inbox.submit(
                _lapsed(command, worker, now, given_back=given_back, alone=alone)
            )
        except NoetlError as error:
            logger.warning("a lost command cannot go on: %s", error, extra=about)
            return False
        except Exception:
            logger.exception("a lost command cannot go on", extra=about)
            return False
        return True

    async def take_over(self, is_gone: Callable[[str], bool]) -> int:
        """These workers have ended: what they hold goes to others at once. Returns how many
        commands that were.
        """
        found = 0
        for command, worker, _ in await self._work.lapsed(now=math.inf, limit=EVERY):
            if is_gone(worker):
                found += await self._requeue(command, worker, given_back=True)
        return found


def _lapsed(
    command: Command, worker: str, now: float, *, given_back: bool = False, alone: bool = False
) -> Lapsed:
    return Lapsed(
        execution_id=command.execution_id,
        at=now,
        command_id=command.command_id,
        worker=worker,
        given_back=given_back,
        alone=alone,
    )


def lease_lost(report: Report) -> LeaseLost:
    return LeaseLost(
        f"the lease on command {report.command_id} lapsed, or the command is over."
        " Drop this result; the worker that has the lease will report."
    )
