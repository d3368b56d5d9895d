"""Where inputs come in: requests, reports, signals, timers, news of other servers.

Each method makes an input and puts it into the inbox of the commit loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from noetl.control.children import ChildLimits, Children
from noetl.control.clock import Clock, Deadline, heard
from noetl.control.commit_loop import CommitLoop, Inbox
from noetl.control.leases import WHOLE_POOL_EVERY, Dispatch, Leases, Waiter, lease_lost
from noetl.control.live import Memory
from noetl.control.programs import Programs
from noetl.control.watchers import Watchers
from noetl.errors import Finished
from noetl.model.commands import Answer, Report
from noetl.model.events import Actor, ApprovalReceived, ExecutionRequested, MessageReceived
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.model.inputs import (
    Cancelled,
    Paused,
    Reported,
    Resumed,
    Seed,
    Signalled,
    Start,
    TimerDue,
    VarsChanged,
)
from noetl.model.net import Limits
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState
from noetl.model.triggers import TriggerChange
from noetl.store.base import Store
from noetl.store.queue import Work
from noetl.templates import Views

logger = logging.getLogger(__name__)

MOMENTS_SWEPT = 1000
"""Unused rates are deleted each time this many moments were taken."""

TELL_AGAIN_SECONDS = 0.5
RECHECK_SECONDS = 0.05


class Orchestrator:
    """The control plane of one process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        views: Views,
        *,
        lease_seconds: float = 30.0,
        limits: Limits | None = None,
        child_limits: ChildLimits = ChildLimits(),  # noqa: B008  it never changes
        work: Work | None = None,
        is_shared: bool = True,
    ) -> None:
        """`work` is what its workers do, if that is not all there is in the store; `is_shared`:
        other processes may write to the same database."""
        self._store = store
        self._clock = clock
        self._moments_taken = 0
        self.programs = Programs(store.catalog, views, limits)
        # Where nobody else opens commands, none of them are others' than our own.
        self.dispatch = Dispatch(lease_seconds, WHOLE_POOL_EVERY if is_shared else 1)
        self.watchers = Watchers()
        self.memory = Memory(
            store.log, store.records, self.programs, self.watchers, is_shared=is_shared
        )
        self.inbox = Inbox()
        self.leases = Leases(work or store.queue, clock, self.dispatch, self.inbox)
        self.commits = CommitLoop(
            store.log,
            store.bodies,
            clock,
            self.programs,
            self.inbox,
            self.dispatch,
            self.leases,
            self.memory,
            self.watchers,
            Children(store.credentials, self.programs, child_limits),
        )
        self.timer_changed = self.commits.timer_changed
        self.on_begin: Callable[[ExecutionId], Awaitable[None]] | None = None
        """Called before an execution is started or continued here."""

    # --- What callers may ask ---

    async def start(
        self,
        execution_id: ExecutionId,
        request: ExecutionRequested,
        *,
        workload: dict[str, Any],
        seed: Seed | None = None,
        refused: TaskError | None = None,
        trigger: TriggerChange | None = None,
    ) -> None:
        """Start an execution. The same id again changes nothing.

        `seed` is what a rerun or a fork begins with; `refused` makes it fail at once, for that
        reason. With a `trigger` it is started together with that change, or not at all (Conflict).
        """
        if self.on_begin is not None:
            await self.on_begin(execution_id)
        await self.inbox.submit(
            Start(
                execution_id=execution_id,
                at=request.at,
                request=request,
                workload=workload,
                seed=seed,
                refused=refused,
                trigger=trigger,
            )
        )

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        """Take what a worker says. The answer carries its next commands, if it wants some."""
        given, waiter = self.reported(report, want, pool)
        entry, stored = self.inbox.take_in(given, waiter)
        await stored
        if entry.refusal is not None:
            raise entry.refusal
        return Answer(
            accepted=True,
            cancelled=entry.is_over,
            leases=tuple(waiter.given) if waiter is not None else (),
        )

    def reported(self, report: Report, want: int, pool: str) -> tuple[Reported, Waiter | None]:
        """A report as an input, and the slot that waits for the next command.

        Raises LeaseLost under a token that is not its command's.
        """
        if report.token != token_of(report.command_id):
            raise lease_lost(report)
        is_last = report.closes or report.ending is not None
        waiter = Waiter(report.worker, pool, want) if want and is_last else None
        now = self._clock.now()
        return Reported(execution_id=report.execution_id, at=now, report=report), waiter

    async def cancel(
        self,
        execution_id: ExecutionId,
        reason: str = "",
        *,
        cascade: bool = True,
        actor: Actor | None = None,
        key: str = "",
    ) -> None:
        await self.inbox.submit(
            Cancelled(
                execution_id=execution_id,
                at=self._clock.now(),
                reason=reason,
                cascade=cascade,
                actor=actor,
                key=key,
            )
        )

    async def pause(
        self, execution_id: ExecutionId, reason: str = "", *, actor: Actor | None = None
    ) -> None:
        now = self._clock.now()
        await self.inbox.submit(
            Paused(execution_id=execution_id, at=now, reason=reason, actor=actor)
        )

    async def held_back(self, execution_id: ExecutionId, *, patience: float) -> list[str]:
        """Return when every worker that has commands of a paused execution begins nothing more.

        The store says who holds a lease. A worker is told again and again until it has confirmed
        (`command.paused`), given the command back, or lost the lease. Those that have done none of
        this after `patience` seconds are named.
        """
        deadline = Deadline(self._clock, patience)
        looked = False
        with self.watchers.follow(execution_id) as tail:
            while True:
                tail.signal.clear()
                holders = await self._unconfirmed(execution_id)
                if not holders and (looked or not self.memory.is_shared):
                    return []
                # Another server may be claiming at this very moment: look once more.
                looked = not holders
                if deadline.left() <= 0:
                    return sorted(set(holders.values()))
                for command_id, worker_id in holders.items():
                    self.dispatch.order_everywhere(worker_id, "pause", command_id)
                await heard(tail.signal, RECHECK_SECONDS if looked else TELL_AGAIN_SECONDS)

    async def _unconfirmed(self, execution_id: ExecutionId) -> dict[CommandId, str]:
        """Commands whose workers may still begin something, with their workers."""
        state = await self.state(execution_id)
        if state.status != "PAUSED":
            return {}  # it has ended, or was resumed
        now = self._clock.now()
        return {
            command.command_id: worker_id
            for command, worker_id, until in await self._store.queue.open_commands(execution_id)
            if worker_id is not None and (until or 0) > now
            if (run_id := state.holders.get(command.command_id)) is not None
            if command.command_id not in state.runs[run_id].paused
        }

    async def resume(self, execution_id: ExecutionId, *, actor: Actor | None = None) -> None:
        """Go on with what was paused, or left by a process that ended."""
        if self.on_begin is not None:
            await self.on_begin(execution_id)
        now = self._clock.now()
        await self.inbox.submit(Resumed(execution_id=execution_id, at=now, actor=actor))
        # Commands that were open could not be claimed meanwhile.
        for queue in self.dispatch.waiting_queues().union(self.dispatch.backlog):
            self.dispatch.wake(queue)

    async def signal(
        self, execution_id: ExecutionId, signal: MessageReceived | ApprovalReceived
    ) -> bool:
        """The world said something; whether it had said so before. A refusal changes nothing."""
        entry = await self.inbox.submit(
            Signalled(execution_id=execution_id, at=signal.at, signal=signal)
        )
        if entry.refusal is not None:
            raise entry.refusal
        return not entry.changed

    async def change_vars(
        self,
        execution_id: ExecutionId,
        values: dict[str, Any],
        removed: tuple[str, ...] = (),
        *,
        actor: Actor | None = None,
    ) -> None:
        """Set these variables and remove those; steps that start from now on see it."""
        entry = await self.inbox.submit(
            VarsChanged(
                execution_id=execution_id,
                at=self._clock.now(),
                values=values,
                removed=removed,
                actor=actor,
            )
        )
        if not entry.changed:
            raise Finished(
                f"execution {execution_id} has ended; an ended execution does not change."
            )

    async def fire(self, execution_id: ExecutionId, timer_id: str) -> bool:
        """A timer's moment has come; whether the execution still waited for it."""
        entry = await self.inbox.submit(
            TimerDue(execution_id=execution_id, at=self._clock.now(), timer_id=timer_id)
        )
        return entry.changed

    async def state(self, execution_id: ExecutionId) -> ExecutionState:
        """The state as it is stored. Read it at once, do not keep it."""
        live = self.memory.find(execution_id)
        # Others may have moved it, or removed it after its end.
        if self.memory.is_shared and live is not None:
            head = (await self._store.log.heads([execution_id])).get(execution_id, 0)
            if live.state.is_finished:
                if not head:
                    self.memory.drop(execution_id)
                return await self.last_known(execution_id)
            self.moved_elsewhere(execution_id, head)
            live = self.memory.find(execution_id)
            if live is not None and live.state.seq < head:
                # It is under way here, on an old state: the commit will be refused.
                return (await self.memory.read(execution_id)).state
        return await self.last_known(execution_id)

    async def last_known(self, execution_id: ExecutionId) -> ExecutionState:
        """The state as this process last stored or read it; another server may have moved it on.

        While a batch is being written, memory is ahead of the store, and the commit may still be
        refused: nobody may hear of it before.
        """
        while True:
            live = await self.memory.get(execution_id)
            if live.stored >= live.state.seq:
                return live.state
            await self.commits.round_over()

    async def wait_for_end(self, execution_id: ExecutionId) -> ExecutionState:
        """Return when the execution has ended."""
        while True:
            live = self.memory.find(execution_id)
            # Under way here: its end will be told, wherever it comes from, once it is stored.
            if live is None or (live.state.is_finished and live.stored >= live.state.seq):
                state = await self.state(execution_id)
                if state.is_finished:
                    return state
            await self.watchers.end(execution_id)

    # --- What others do on the same database ---

    def moved_elsewhere(self, execution_id: ExecutionId, seq: int) -> bool:
        """Its log ends there now; whether that is news. Of what is under way the commit will tell,
        and most likely it is our own.
        """
        live = self.memory.find(execution_id)
        if self.commits.is_under_way(execution_id) or (live is not None and live.stored >= seq):
            return False
        self.memory.drop(execution_id)
        self.watchers.tell(execution_id, None, may_have_ended=True)
        return True

    async def next_moment(self, key: str, apart: float) -> float:
        """Take the next moment of a rate that workers share. Returns the seconds until then."""
        now = self._clock.now()
        self._moments_taken += 1
        if self._moments_taken % MOMENTS_SWEPT == 0:
            await self._store.limits.forget_moments(before=now)
        return await self._store.limits.take_moment(key, apart=apart, now=now) - now
