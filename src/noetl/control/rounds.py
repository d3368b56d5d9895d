"""Everything that happens to executions is decided and stored here, in batches.

Jobs gather while the last batch is being written. A batch decides for all of them, stores what was
decided in one transaction, and only then lets anything out: answers, commands, the ends of
children. Whoever crashes in between has decided nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from noetl.control import bodies
from noetl.control.audience import Audience
from noetl.control.children import Family, child_job
from noetl.control.clock import Clock
from noetl.control.dispatch import Dispatch
from noetl.control.jobs import Batch, Job, fail, following
from noetl.control.live import Live
from noetl.control.memory import Memory
from noetl.control.programs import Programs
from noetl.engine import advance
from noetl.engine.turn import (
    CancelChild,
    Close,
    Effect,
    EndLoop,
    Issue,
    Keep,
    StartChild,
    TellParent,
)
from noetl.errors import Corrupted, NoetlError, StoreError
from noetl.model.ids import ExecutionId
from noetl.model.net import Limits
from noetl.model.state import ExecutionState
from noetl.store.base import Store, Write

logger = logging.getLogger(__name__)

BATCH_MAX = 256
COMMIT_ATTEMPTS_MAX = 5
ERROR_LOGGED = 1000
"""Characters of an error in a line of the log."""
DECIDED_AT_A_TIME = 10
"""After so many decisions, whoever else is in this process has a turn."""


class Rounds:
    """Batch after batch: what is done with what comes in through the orchestrator."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        lease_seconds: float = 30.0,
        limits: Limits | None = None,
        family: Family = Family(),  # noqa: B008  it never changes
    ) -> None:
        self._store = store
        self._clock = clock
        self.programs = Programs(store, limits)
        self._family = family
        self.dispatch = Dispatch(lease_seconds)
        self._memory = Memory(store, self.programs)
        self._jobs: list[Job] = []
        self._arrival: asyncio.Future[None] | None = None
        """Done when there is a job for whoever waits for one."""
        self.audience = Audience()
        self.timer_changed = asyncio.Event()
        self.on_stored: Callable[[list[Write]], None] | None = None
        """Who wants to know what was written."""
        self.on_ended: Callable[[ExecutionState], None] | None = None
        """Who wants to know how executions ended."""
        self._under_way: Collection[ExecutionId] = ()
        """What is being decided and stored just now."""
        self._round_began: float | None = None
        """When the batch that is under way was begun, by the clock of the event loop."""
        self.states_found = 0
        """Decisions on a state that was in memory."""
        self.states_read = 0
        """Decisions for which it had to be read from the store."""
        self.chosen: set[ExecutionId] | None = None
        """The executions that go on in this process, with their children; None: all."""

    async def run(self) -> None:
        """Decide and store, batch after batch, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            while self._jobs:
                taken = self._jobs[:BATCH_MAX]
                del self._jobs[:BATCH_MAX]
                self._round_began = loop.time()
                await self._round(taken)
                self._under_way, self._round_began = (), None
            self._arrival = loop.create_future()
            await self._arrival

    def unstored_seconds(self) -> float:
        """For how long the oldest decision has been waiting to be stored; 0 if none waits."""
        if self._round_began is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._round_began

    def _submit(self, job: Job) -> asyncio.Future[None]:
        """Done when it is stored."""
        self._put(job)
        return job.future

    def _put(self, job: Job) -> None:
        self._jobs.append(job)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def _round(self, jobs: list[Job]) -> None:
        """One batch. Jobs whose execution moved under us are decided again."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            batch = Batch(jobs)
            self._under_way = batch.writes
            try:
                await self._decide_all(batch)
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

    async def _decide_all(self, batch: Batch) -> None:
        for number, job in enumerate(batch.todo, 1):
            await self._decide(batch, job)
            if number % DECIDED_AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def _decide(self, batch: Batch, job: Job) -> None:
        live = self._memory.find(job.execution_id)
        if live is not None:
            self.states_found += 1
        else:
            try:
                live = await self._made_or_read(job)
            except NoetlError as error:
                if (
                    job.is_own
                    and isinstance(error, StoreError)
                    and not isinstance(error, Corrupted)
                ):
                    # What caused it must not be stored without it: a parent that cannot be read
                    # just now would never hear of the end of its child.
                    raise
                fail(job, error)
                return
        write = batch.writes.get(job.execution_id)
        if write is None:
            write = batch.writes[job.execution_id] = Write(
                execution_id=job.execution_id, seq_before=live.stored
            )
        job.has_voice = job.speaks_for is None or job.speaks_for in live.state.holders
        # Decided again, it may have been given something the first time.
        if job.waiter is not None and job.has_voice and not job.waiter.given:
            self.dispatch.wait_in_front(job.waiter, self._clock.now())
        batch.jobs.append(job)
        if bodies.are_referred_to(live, job.coming, job.names):
            await bodies.fetch(self._store, live, job.coming, job.names, write)
        decision = job.decide(live)
        job.changed = bool(decision.events)
        live.add(write, decision)
        if job.clears is not None and not job.changed:
            write.timers_cleared.append(job.clears)
        if job.closes is not None and job.has_voice:
            write.closed.append(job.closes)
            batch.closed[job.closes] = (job.execution_id, False)
        if decision.effects:
            await self._perform(batch, live, write, decision.effects)

    async def _made_or_read(self, job: Job) -> Live:
        """An execution that is not in memory."""
        # At first it is taken for new without looking: if it is not, the commit says so.
        if job.create is None or (
            job.has_moved and await self._store.load(job.execution_id) is not None
        ):
            self.states_read += 1
            return await self._memory.get(job.execution_id)
        live = job.create()
        if job.has_moved:
            await self._memory.refuse_taken_key(live)
        self._memory.put(live)
        return live

    async def _perform(
        self, batch: Batch, live: Live, write: Write, effects: tuple[Effect, ...]
    ) -> None:
        """Turn effects into parts of the same transaction, or into jobs of the same batch."""
        now = self._clock.now()
        for effect in effects:
            match effect:
                case Issue(command=command):
                    placed = self.dispatch.place(command, live.family, now)
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
                    job = await child_job(self.programs, self._family, effect, now, live.state.seal)
                    batch.follow(live.execution_id, job)
                case EndLoop() | TellParent() | CancelChild():
                    batch.follow(live.execution_id, following(live.execution_id, effect, now))

    async def _commit(self, batch: Batch) -> set[ExecutionId] | None:
        """Store the batch. None: it could not be stored, and everybody has been told.

        That nothing follows from what happened is a decision, too. It must have been made on what
        is stored: where other processes write, a write without content goes along and is refused
        like any other if the execution has moved. What others wait for, like a parent for the end
        of its child, is then decided again as well.
        """
        writes, told = [], []
        for execution_id, write in batch.writes.items():
            live = self._memory.find(execution_id)
            if live is None:
                continue
            if write.events or write.closed or write.commands or write.timers_cleared:
                live.close(write)
                writes.append(write)
                told.append(write)
            elif not self._store.exclusive:
                writes.append(write)
        try:
            moved = await self._store.commit(writes, tied=batch.tied) if writes else []
        except NoetlError as error:
            self._undo(batch)
            for job in batch.jobs:
                fail(job, error)
            return None
        for execution_id in moved:
            self._memory.drop(execution_id)
        self._settle(batch, set(moved))
        if self.on_stored is not None:
            self.on_stored([write for write in told if write.execution_id not in moved])
        return set(moved) if moved else None

    def _settle(self, batch: Batch, moved: set[ExecutionId]) -> None:
        """It is stored: let it out."""
        opened = []
        for execution_id, write in batch.writes.items():
            live = self._memory.find(execution_id)
            if execution_id in moved or live is None:
                continue
            live.stored = write.seq_after
            if write.timers:
                self.timer_changed.set()
            opened += [new.command.pool for new in write.commands if new.worker_id is None]
            self.audience.tell(execution_id, write.events, may_have_ended=live.state.is_finished)
            if live.state.is_finished:
                bodies.let_go(live)
                if write.events:
                    self._tell_end(execution_id, live.state)
            self._memory.note(live)
        for command_id, (execution_id, tell) in batch.closed.items():
            if execution_id not in moved:
                self.dispatch.close(command_id, tell=tell)
        self.dispatch.deliver(moved)
        for job in batch.jobs:
            if job.waiter is not None and not job.waiter.given:
                self.dispatch.stop_waiting(job.waiter)
            if job.execution_id not in moved and not job.future.done():
                job.future.set_result(None)
        for pool in opened:
            self.dispatch.opened(pool)
        self._memory.forget()

    def _tell_end(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        """It has ended with what was just stored."""
        if state.status == "FAILED":
            error = state.failure
            logger.info(
                "an execution failed",
                extra={
                    "execution_id": execution_id,
                    "path": state.path,
                    "step": state.failed_step,
                    "error": error.message[:ERROR_LOGGED] if error is not None else "",
                },
            )
        if self.on_ended is not None:
            self.on_ended(state)

    def choose(self, execution_id: ExecutionId) -> None:
        """It goes on here, whatever else does."""
        if self.chosen is not None:
            self.chosen.add(execution_id)

    def is_chosen(self, execution_id: ExecutionId) -> bool:
        return self.chosen is None or execution_id in self.chosen
