"""Everything that happens to executions goes through here, in batches.

Jobs gather while the last batch is being written. A batch decides for all of them, stores what was
decided in one transaction, and only then lets anything out: answers, commands, the ends of
children. Whoever crashes in between has decided nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NoReturn

from noetl.control import bodies
from noetl.control.audience import Audience
from noetl.control.children import child_job
from noetl.control.clock import Clock
from noetl.control.dispatch import Dispatch, Waiter
from noetl.control.jobs import (
    Batch,
    Hearing,
    Job,
    fail,
    following,
    lapse_job,
    lease_lost,
    leased_job,
    refused_job,
    report_job,
    signal_job,
)
from noetl.control.live import Live
from noetl.control.memory import Memory
from noetl.control.programs import Programs
from noetl.engine import advance
from noetl.engine.turn import (
    CancelChild,
    Close,
    Decision,
    Effect,
    EndLoop,
    Issue,
    Keep,
    StartChild,
    TellParent,
)
from noetl.errors import NoetlError, NotFound, StoreError
from noetl.model.commands import Answer, Lease, Report
from noetl.model.events import ExecutionRequested
from noetl.model.ids import CommandId, ExecutionId, token_of
from noetl.model.net import Limits
from noetl.model.outcome import TaskError
from noetl.model.signals import ApprovalReceived, MessageReceived
from noetl.model.state import ExecutionState
from noetl.store.base import Store, Write

logger = logging.getLogger(__name__)

BATCH_MAX = 256
COMMIT_ATTEMPTS_MAX = 5


class Orchestrator:
    """The control plane of one process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        lease_seconds: float = 30.0,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self.programs = Programs(store, limits)
        self.dispatch = Dispatch(lease_seconds)
        self._memory = Memory(store, self.programs)
        self._jobs: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self.audience = Audience()
        self.timer_changed = asyncio.Event()
        self.on_stored: Callable[[list[Write]], None] | None = None
        """Who wants to know what was written."""
        self._under_way: Collection[ExecutionId] = ()
        """What is being decided and stored just now."""
        self.chosen: set[ExecutionId] | None = None
        """The executions that go on in this process, with their children; None: all."""

    # --- What callers may ask ---

    async def start(
        self,
        execution_id: ExecutionId,
        request: ExecutionRequested,
        *,
        workload: dict[str, Any],
        before: ExecutionState | None = None,
        entry: str | None = None,
        refused: TaskError | None = None,
    ) -> None:
        """Start an execution. The same id again changes nothing.

        `before` is the state a rerun begins with; `refused` makes it fail at once, for that reason.
        """
        program = await self.programs.by_digest(request.digest)

        def create() -> Live:
            live = Live(execution_id, program, ExecutionState())
            live.key = request.key
            return live

        def decide(live: Live) -> Decision:
            return advance.start(
                live.program,
                live.state,
                execution_id,
                request,
                workload=workload,
                before=before,
                entry=entry,
                refused=refused,
            )

        await self._submit(Job(execution_id, decide, create=create))

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        """Take what a worker says. The answer carries its next commands, if it wants some."""
        is_last = report.closes or report.ending is not None
        waiter = Waiter(report.worker, pool, want, listens=False) if want and is_last else None
        job = report_job(report, self._clock.now(), waiter)
        if report.token == token_of(report.command_id):
            await self._submit(job)
        else:
            job.has_voice = False
        if not job.has_voice:
            raise lease_lost(report)
        return Answer(accepted=True, leases=tuple(waiter.given) if waiter is not None else ())

    async def refuse(self, report: Report) -> NoReturn:
        """Whoever says this does not hold the lease. It changes nothing, and is recorded."""
        with suppress(NotFound):
            await self._submit(refused_job(report, self._clock.now()))
        raise lease_lost(report)

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        """Commands for this worker: what is open now, or what comes within `wait` seconds."""
        deadline = self._clock.now() + wait
        while True:
            if self.dispatch.backlog.get(pool, 1) > 0:
                found = await self._claim(worker_id, pool, want)
                if found:
                    return found
            waiter = Waiter(worker_id, pool, want)
            self.dispatch.wait(waiter)
            remaining = deadline - self._clock.now()
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(waiter.future), remaining)
                if waiter.promised:
                    await asyncio.shield(waiter.future)
            except asyncio.CancelledError:
                # Whoever waited is gone, and what it was just being given goes to others.
                now = self._clock.now()
                for lease in (*waiter.promised, *waiter.given):
                    one = (lease.command.execution_id, lease.command.command_id)
                    self._put(lapse_job(*one, worker_id, now, given_back=True))
                raise
            finally:
                self.dispatch.stop_waiting(waiter)
            if waiter.given or worker_id in self.dispatch.away or self._clock.now() >= deadline:
                return waiter.given

    async def _claim(self, worker_id: str, pool: str, want: int) -> list[Lease]:
        now = self._clock.now()
        # From here on: what is opened while we look may not be in what we find.
        self.dispatch.backlog[pool] = 0
        try:
            leases = await self._store.claim(
                worker_id,
                pool=pool,
                limit=want,
                expires_at=now + self.dispatch.lease_seconds,
                executions=self.chosen,
            )
        except BaseException:
            self.dispatch.opened(pool)
            raise
        if len(leases) >= want:
            # There may be more, for others who wait.
            self.dispatch.opened(pool)
        self.note_claimed(leases, worker_id, now)
        return leases

    def note_claimed(self, leases: list[Lease], worker_id: str, now: float) -> None:
        for lease in leases:
            self.dispatch.hold(lease, worker_id)
            # Nobody waits for this: that it is leased is stored already.
            self._put(leased_job(lease, worker_id, now))

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        """Extend leases; the commands that are no longer this worker's."""
        now = self._clock.now()
        shown = [command for command, token in tokens.items() if token == token_of(command)]
        held = await self._store.renew(shown, now=now, expires_at=now + self.dispatch.lease_seconds)
        return tokens.keys() - held

    async def cancel(
        self, execution_id: ExecutionId, reason: str = "", *, cascade: bool = True
    ) -> None:
        def decide(live: Live, now: float) -> Decision:
            state = live.state
            return advance.cancel(live.program, state, execution_id, now, reason, cascade=cascade)

        await self.happen(execution_id, decide)

    async def pause(self, execution_id: ExecutionId, reason: str = "") -> None:
        await self.happen(
            execution_id,
            lambda live, now: advance.pause(live.program, live.state, execution_id, now, reason),
        )

    async def resume(self, execution_id: ExecutionId) -> None:
        await self.happen(
            execution_id,
            lambda live, now: advance.resume(live.program, live.state, execution_id, now),
        )

    async def signal(
        self, execution_id: ExecutionId, signal: MessageReceived | ApprovalReceived
    ) -> bool:
        """The world said something; whether it had said so before. A refusal changes nothing."""
        hearing = Hearing()
        await self._submit(signal_job(execution_id, signal, hearing))
        if hearing.refusal is not None:
            raise hearing.refusal
        return hearing.was_known

    async def fire(self, execution_id: ExecutionId, timer_id: str) -> None:
        """A timer's moment has come."""
        await self.happen(
            execution_id,
            lambda live, now: advance.fired(live.program, live.state, execution_id, now, timer_id),
        )

    async def lapse(
        self,
        execution_id: ExecutionId,
        command_id: CommandId,
        worker: str,
        *,
        given_back: bool = False,
    ) -> None:
        """A lease ran out, or was given back: its work goes on under a new command."""
        now = self._clock.now()
        await self._submit(lapse_job(execution_id, command_id, worker, now, given_back=given_back))

    async def happen(
        self, execution_id: ExecutionId, decide: Callable[[Live, float], Decision]
    ) -> None:
        now = self._clock.now()
        await self._submit(Job(execution_id, lambda live: decide(live, now)))

    def choose(self, execution_id: ExecutionId) -> None:
        """It goes on here, whatever else does."""
        if self.chosen is not None:
            self.chosen.add(execution_id)

    def is_chosen(self, execution_id: ExecutionId) -> bool:
        return self.chosen is None or execution_id in self.chosen

    async def state(self, execution_id: ExecutionId) -> ExecutionState:
        """The state as it stands. Read it, do not keep it."""
        live = self._memory.find(execution_id)
        # Others may have moved it, unless it has ended: that is final.
        if not self._store.exclusive and live is not None and not live.state.is_finished:
            heads = await self._store.heads([execution_id])
            self.moved_elsewhere(execution_id, heads.get(execution_id, 0))
        return await self.last_known(execution_id)

    async def last_known(self, execution_id: ExecutionId) -> ExecutionState:
        """The same, but for what others may have done on the same database meanwhile."""
        return (await self._memory.get(execution_id)).state

    async def wait_for_end(self, execution_id: ExecutionId) -> ExecutionState:
        """Come back when the execution has ended."""
        while True:
            live = self._memory.find(execution_id)
            # Under way here: its end will be told, wherever it comes from, once it is stored.
            if live is None or (live.state.is_finished and live.stored >= live.state.seq):
                state = await self.state(execution_id)
                if state.is_finished:
                    return state
            await self.audience.end(execution_id)

    # --- The loop ---

    async def run(self) -> None:
        """Decide and store, batch after batch, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._jobs:
                taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), BATCH_MAX))]
                await self._round(taken)
                self._under_way = ()

    async def _submit(self, job: Job) -> None:
        self._put(job)
        await job.future

    def _put(self, job: Job) -> None:
        self._jobs.append(job)
        self._arrived.set()

    async def _round(self, jobs: list[Job]) -> None:
        """One batch. Jobs whose execution moved under us are decided again."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            batch = Batch()
            batch.todo.extend(jobs)
            self._under_way = batch.writes
            try:
                while batch.todo:
                    await self._decide(batch, batch.todo.popleft())
            except Exception as error:  # noqa: BLE001  whose it is gets it
                await self._without_the_broken(batch, jobs, error)
                return
            moved = await self._commit(batch)
            if moved is None:
                return
            jobs = [job for job in batch.jobs if job.execution_id in moved and not job.is_own]
            if not jobs:
                return
            for job in jobs:
                job.has_moved = True
        for job in jobs:
            fail(job, StoreError(f"execution {job.execution_id} keeps moving; try again."))

    async def _without_the_broken(self, batch: Batch, jobs: list[Job], error: Exception) -> None:
        """A decision failed: nothing of its batch counts. Each job again, on its own."""
        self._undo(batch)
        if len(jobs) > 1:
            for job in jobs:
                await self._round([job])
            return
        logger.error(
            "a decision failed", exc_info=error, extra={"execution_id": jobs[0].execution_id}
        )
        fail(jobs[0], error)

    def _undo(self, batch: Batch) -> None:
        """What we hold in memory was never stored: forget it, and read it back when needed."""
        for execution_id in batch.writes:
            self._memory.drop(execution_id)
        self.dispatch.take_back()
        for job in batch.jobs:
            if job.waiter is not None:
                self.dispatch.stop_waiting(job.waiter)

    async def _decide(self, batch: Batch, job: Job) -> None:
        try:
            live = await self._live_for(job)
        except NoetlError as error:
            fail(job, error)
            return
        write = batch.writes.get(job.execution_id)
        if write is None:
            write = batch.writes[job.execution_id] = Write(
                execution_id=job.execution_id, seq_before=live.stored
            )
        job.has_voice = job.speaks_for is None or job.speaks_for in live.state.holders
        if job.waiter is not None and job.has_voice:
            self.dispatch.wait_in_front(job.waiter)
        batch.jobs.append(job)
        await bodies.fetch(self._store, live, job.coming, job.names, write)
        decision = job.decide(live)
        live.add(write, decision)
        if job.closes is not None and job.has_voice:
            write.closed.append(job.closes)
            batch.closed[job.closes] = (job.execution_id, False)
        await self._perform(batch, live, write, decision.effects)

    async def _live_for(self, job: Job) -> Live:
        is_known = job.create is None or self._memory.find(job.execution_id) is not None
        # At first it is taken for new without looking: if it is not, the commit says so.
        if not is_known and job.has_moved:
            is_known = await self._store.load(job.execution_id) is not None
        if job.create is not None and not is_known:
            live = job.create()
            if job.has_moved:
                await self._memory.refuse_taken_key(live)
            self._memory.put(live)
        return await self._memory.get(job.execution_id)

    async def _perform(
        self, batch: Batch, live: Live, write: Write, effects: tuple[Effect, ...]
    ) -> None:
        """Turn effects into parts of the same transaction, or into jobs of the same batch."""
        now = self._clock.now()
        for effect in effects:
            match effect:
                case Issue(command=command):
                    placed = self.dispatch.place(command, now)
                    write.commands.append(placed)
                    if placed.worker_id is not None:
                        started = advance.leased(
                            live.program,
                            live.state,
                            live.execution_id,
                            now,
                            command.step_run_id,
                            placed.worker_id,
                        )
                        live.add(write, started)
                case Close(command_id=command_id):
                    if command_id not in batch.closed:
                        write.closed.append(command_id)
                        batch.closed[command_id] = (live.execution_id, True)
                case Keep(key=key, body=body):
                    write.results.append((key, body))
                case StartChild():
                    self.choose(effect.child)
                    batch.follow(live.execution_id, await child_job(self.programs, effect, now))
                case EndLoop() | TellParent() | CancelChild():
                    batch.follow(live.execution_id, following(live.execution_id, effect, now))

    async def _commit(self, batch: Batch) -> set[ExecutionId] | None:
        """Store the batch. None: it could not be stored, and everybody has been told."""
        writes = []
        for execution_id, write in batch.writes.items():
            live = self._memory.find(execution_id)
            if live is not None and (write.events or write.closed or write.commands):
                live.close(write)
                writes.append(write)
        try:
            moved = await self._store.commit(writes, tied=batch.tied) if writes else []
        except StoreError as error:
            self._undo(batch)
            for job in batch.jobs:
                fail(job, error)
            return None
        for execution_id in moved:
            self._memory.drop(execution_id)
        self._settle(batch, set(moved))
        if self.on_stored is not None:
            self.on_stored([write for write in writes if write.execution_id not in moved])
        return set(moved) if moved else None

    def _settle(self, batch: Batch, moved: set[ExecutionId]) -> None:
        """It is stored: let it out."""
        timers = False
        for execution_id, write in batch.writes.items():
            live = self._memory.find(execution_id)
            if execution_id in moved or live is None:
                continue
            live.stored = write.seq_after
            timers = timers or bool(write.timers)
            self.audience.tell(execution_id, may_have_ended=live.state.is_finished)
            if live.state.is_finished:
                bodies.let_go(live)
            self._memory.note(live)
        for command_id, (execution_id, tell) in batch.closed.items():
            if execution_id not in moved:
                self.dispatch.close(command_id, tell=tell)
        self.dispatch.deliver(moved)
        for job in batch.jobs:
            if job.waiter is not None:
                self.dispatch.stop_waiting(job.waiter)
        for write in batch.writes.values():
            for placed in write.commands:
                if placed.worker_id is None and write.execution_id not in moved:
                    self.dispatch.opened(placed.command.pool)
        if timers:
            self.timer_changed.set()
        for job in batch.jobs:
            if job.execution_id not in moved and not job.future.done():
                job.future.set_result(None)
        self._memory.forget()

    # --- What others do on the same database ---

    def moved_elsewhere(self, execution_id: ExecutionId, seq: int) -> bool:
        """Its log ends there now; whether that is news. Of what is under way the commit will tell,
        and most likely it is our own.
        """
        live = self._memory.find(execution_id)
        if execution_id in self._under_way or (live is not None and live.stored >= seq):
            return False
        self._memory.drop(execution_id)
        self.audience.tell(execution_id, may_have_ended=True)
        return True

    def is_behind(self, execution_id: ExecutionId, seq: int) -> bool:
        """Whether what is in memory is older than that."""
        live = self._memory.find(execution_id)
        return live is not None and live.stored < seq
