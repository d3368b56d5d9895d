"""Keeps the promises that have a time on them: timers that fire, leases that lapse."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from contextlib import suppress

from noetl.control.clock import Clock
from noetl.control.orchestrator import Orchestrator
from noetl.errors import StoreError
from noetl.model.commands import Command
from noetl.model.ids import ExecutionId
from noetl.store.base import Store

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Even if every wake-up is lost, timers fire no later than this."""
QUIET_LOOKS = 30
"""Where nothing is to be found it is looked for this many times more seldom."""
GRACE_SECONDS = 2.0
"""So long what another server looks after is left to it; then it may be gone."""
NEIGHBOUR_SECONDS = 0.05
"""How often to look while timers of another server are due: ours may come next."""
REST_MAX_SECONDS = 60.0
"""What came to nothing is tried again after a second, then after two, up to so many."""
RECENT_SECONDS = 120.0
"""Leases that a worker loses within so long may have been lost by the same death."""
BATCH = 200
EVERY = 1_000_000

Due = tuple[ExecutionId, str]
"""A timer, or a command whose lease has lapsed."""
Owns = Callable[[ExecutionId], bool]
"""Whether this process looks after an execution."""


def everything(execution_id: ExecutionId) -> bool:
    return True


async def fire_timers(
    orchestrator: Orchestrator, store: Store, clock: Clock, owns: Owns = everything
) -> None:
    """Fire what is due, sleep until the next, for ever."""
    resting = Resting()
    while True:
        try:
            await _fire_due(orchestrator, store, clock, owns, resting)
        except StoreError as error:
            logger.warning("timers cannot be looked at just now: %s", error)
            await clock.sleep(POLL_SECONDS)


class Resting:
    """Timers that were due, or leases that had lapsed, of which nothing came: perhaps the execution
    cannot be read. Each is tried again, but not at once.
    """

    def __init__(self) -> None:
        self._until: dict[Due, tuple[float, float]] = {}
        """When to try again, and how long that is after the last time."""

    def __len__(self) -> int:
        return len(self._until)

    def wakes(self, due: Due, now: float) -> bool:
        return due not in self._until or self._until[due][0] <= now

    def note(self, due: Due, now: float, *, done: bool) -> None:
        _, last = self._until.pop(due, (now, POLL_SECONDS / 2))
        if not done:
            rest = min(2 * last, REST_MAX_SECONDS)
            self._until[due] = now + rest, rest

    def keep(self, due: Collection[Due]) -> None:
        """Whatever else rests is not due any more."""
        for one in self._until.keys() - set(due):
            del self._until[one]


async def _fire_due(
    orchestrator: Orchestrator, store: Store, clock: Clock, owns: Owns, resting: Resting
) -> None:
    orchestrator.timer_changed.clear()
    due = await _due(orchestrator, store, clock, owns, resting)
    fired = await asyncio.gather(*(_fire(orchestrator, *which) for which in due))
    for which, has_fired in zip(due, fired, strict=True):
        resting.note(which, clock.now(), done=has_fired)
    if any(fired):
        return
    following = await _next(orchestrator, store)
    if following is not None and following <= clock.now():
        # It rests, or it is another server's to fire.
        following = clock.now() + (POLL_SECONDS if resting else NEIGHBOUR_SECONDS)
    # Where no other process sets timers, there is nothing to look up meanwhile.
    for _ in range(QUIET_LOOKS if store.exclusive else 1):
        changed = await _change(orchestrator, clock, following)
        if changed or (following is not None and clock.now() >= following):
            break


async def _fire(orchestrator: Orchestrator, execution_id: ExecutionId, timer_id: str) -> bool:
    """Whether something happened. One execution that cannot go on must not stop the others."""
    try:
        return await orchestrator.fire(execution_id, timer_id)
    except Exception:
        logger.exception("a timer could not fire", extra={"execution_id": execution_id})
        return False


async def _change(orchestrator: Orchestrator, clock: Clock, following: float | None) -> bool:
    """Wait for the next timer, but not for long: clocks are set. Whether timers have changed."""
    pause = POLL_SECONDS if following is None else max(0.0, following - clock.now())
    with suppress(TimeoutError):
        async with asyncio.timeout(min(pause, POLL_SECONDS)):
            return await orchestrator.timer_changed.wait()
    return False


async def _due(
    orchestrator: Orchestrator, store: Store, clock: Clock, owns: Owns, resting: Resting
) -> list[Due]:
    now = clock.now()
    # Timers that rest, and those of executions that do not go on here, stay due; they must not hide
    # the others.
    limit = BATCH + len(resting) if orchestrator.dispatch.chosen is None else EVERY
    found = await store.due_timers(now=now, limit=limit)
    resting.keep([(execution_id, timer_id) for execution_id, timer_id, _ in found])
    return [
        (execution_id, timer_id)
        for execution_id, timer_id, at in found
        if orchestrator.dispatch.is_chosen(execution_id)
        and resting.wakes((execution_id, timer_id), now)
        if owns(execution_id) or at <= now - GRACE_SECONDS
    ]


async def _next(orchestrator: Orchestrator, store: Store) -> float | None:
    if orchestrator.dispatch.chosen is None:
        return await store.next_timer()
    timers = await store.due_timers(now=math.inf, limit=EVERY)
    is_chosen = orchestrator.dispatch.is_chosen
    return next((at for execution_id, _, at in timers if is_chosen(execution_id)), None)


async def requeue_lapsed(
    orchestrator: Orchestrator,
    store: Store,
    clock: Clock,
    owns: Owns = everything,
    *,
    after: float = 0.0,
    suspects: bool = True,
) -> None:
    """Give the work of lost leases to somebody else, for ever.

    Not before `after` seconds: whoever could not renew a lease while no server was there is given
    time to come back with what it has done. `suspects`: a command that was all its worker ran may
    be what killed it; not where workers are known to die by themselves.
    """
    await clock.sleep(after)
    quiet = 0
    losses, resting = Losses() if suspects else None, Resting()
    while True:
        await clock.sleep(POLL_SECONDS)
        quiet = max(0, quiet - 1)
        if quiet and not orchestrator.dispatch.held:
            continue
        try:
            await _requeue_lapsed(orchestrator, store, clock, owns, losses, resting)
            if store.exclusive and not await _is_work_out(orchestrator, store):
                quiet = QUIET_LOOKS
        except StoreError as error:
            logger.warning("leases cannot be looked at just now: %s", error)


async def _is_work_out(orchestrator: Orchestrator, store: Store) -> bool:
    """Whether somebody has a lease, known to this process or not."""
    leased = await store.lapsed(now=math.inf, limit=EVERY)
    return any(orchestrator.dispatch.is_chosen(one.command.execution_id) for one in leased)


class Losses:
    """Which workers lost which runs of late: one that lost a single run was ended by it, perhaps;
    of several nobody knows which it was.
    """

    def __init__(self) -> None:
        self._runs: dict[str, tuple[float, set[str]]] = {}

    def note(self, worker: str, runs: set[str], now: float) -> bool:
        """These were lost by, or are still leased to, a worker; whether it has but one run."""
        self._runs = {
            name: seen for name, seen in self._runs.items() if seen[0] > now - RECENT_SECONDS
        }
        _, known = self._runs.get(worker, (now, set()))
        self._runs[worker] = (now, known | runs)
        return len(self._runs[worker][1]) == 1


async def _requeue_lapsed(
    orchestrator: Orchestrator,
    store: Store,
    clock: Clock,
    owns: Owns,
    losses: Losses | None,
    resting: Resting,
) -> None:
    # What rests stays lapsed, and must not hide the others.
    limit = BATCH + len(resting) if orchestrator.dispatch.chosen is None else EVERY
    now = clock.now()
    found = await store.lapsed(now=now, limit=limit)
    resting.keep([_due_of(one.command) for one in found])
    lapsed = [one for one in found if resting.wakes(_due_of(one.command), now)]
    if not lapsed:
        return
    alone = await _alone(store, losses, {worker for _, worker, _ in lapsed}, now)
    for command, worker, expired_at in lapsed:
        is_ours = owns(command.execution_id) or expired_at <= now - GRACE_SECONDS
        if is_ours and orchestrator.dispatch.is_chosen(command.execution_id):
            done = await _lapse(orchestrator, command, worker, alone=worker in alone)
            resting.note(_due_of(command), clock.now(), done=done)


def _due_of(command: Command) -> Due:
    return command.execution_id, command.command_id


async def _alone(store: Store, losses: Losses | None, workers: set[str], now: float) -> set[str]:
    """Those of the workers that ran nothing but one run when they were lost."""
    if losses is None:
        return set()
    leased: dict[str, set[str]] = {}
    for one in await store.lapsed(now=math.inf, limit=EVERY):
        leased.setdefault(one.worker_id, set()).add(one.command.step_run_id)
    return {worker for worker in workers if losses.note(worker, leased.get(worker, set()), now)}


async def _lapse(
    orchestrator: Orchestrator,
    command: Command,
    worker: str,
    *,
    given_back: bool = False,
    alone: bool = False,
) -> bool:
    """Whether its work goes on. One that cannot must not stop the others."""
    try:
        await orchestrator.lapse(
            command.execution_id, command.command_id, worker, given_back=given_back, alone=alone
        )
    except Exception:
        logger.exception(
            "a lost command cannot go on", extra={"execution_id": command.execution_id}
        )
        return False
    return True


async def take_over(orchestrator: Orchestrator, store: Store, worker: str) -> int:
    """This worker has ended: what it was given and has not reported on goes to others at once.

    Returns how many commands that were.
    """
    found = 0
    for one in await store.lapsed(now=math.inf, limit=EVERY):
        if one.worker_id == worker:
            found += await _lapse(orchestrator, one.command, worker, given_back=True)
    return found


async def recover(orchestrator: Orchestrator, store: Store, *, prefix: str = "") -> int:
    """This process is the only one: whoever held a lease before it started is gone.

    Or, with a prefix, those workers whose names begin so.

    Returns how many commands go on under a new lease.
    """
    found = 0
    for command, worker, _ in await store.open_commands():
        is_gone = worker is not None and worker.startswith(prefix)
        if worker is not None and is_gone and orchestrator.dispatch.is_chosen(command.execution_id):
            found += await _lapse(orchestrator, command, worker, given_back=True)
    return found


async def family(store: Store, chosen: set[ExecutionId]) -> set[ExecutionId]:
    """These executions and all that was started by them and has not ended."""
    found = set(chosen)
    unfinished = [await store.summary(execution_id) for execution_id in await store.unfinished()]
    grown = True
    while grown:
        children = {
            row.execution_id
            for row in unfinished
            if row is not None and row.parent_execution_id in found
        }
        grown = not children <= found
        found |= children
    return found


async def adopt(orchestrator: Orchestrator, store: Store, execution_id: ExecutionId) -> None:
    """An execution that was left behind goes on in this process, beside those it was started for.

    Nobody else can be working on it: this process is the only one.
    """
    for member in await family(store, {execution_id}):
        if orchestrator.dispatch.is_chosen(member):
            continue
        orchestrator.dispatch.choose(member)
        orchestrator.timer_changed.set()
        for command, worker, _ in await store.open_commands(member):
            if worker is None:
                orchestrator.dispatch.opened(command.pool)
            elif store.exclusive:
                await _lapse(orchestrator, command, worker, given_back=True)
