"""Everything that happens to executions goes through here, in batches.

Jobs gather while the last batch is being written. A batch decides for all of them, stores what was
decided in one transaction, and only then lets anything out: answers, commands, the ends of
children. Whoever crashes in between has decided nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from noetl.control import bodies
from noetl.control.clock import Clock
from noetl.control.dispatch import Dispatch, Waiter
from noetl.control.jobs import Batch, Job, cancel_job, fail, merged, parent_job
from noetl.control.live import Live, fold, key_of
from noetl.control.programs import Programs
from noetl.control.support import refusal
from noetl.engine import advance
from noetl.engine.turn import CancelChild, Close, Decision, Effect, Issue, StartChild, TellParent
from noetl.errors import LeaseLost, NoetlError, NotFound, StoreError
from noetl.model.commands import Answer, Lease, Report
from noetl.model.events import ExecutionRequested
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState
from noetl.store.base import Store, Write

logger = logging.getLogger(__name__)

BATCH_MAX = 256
FINISHED_KEPT = 200
COMMIT_ATTEMPTS_MAX = 5


class Orchestrator:
    """The control plane of one process."""

    def __init__(self, store: Store, clock: Clock, *, lease_seconds: float = 30.0) -> None:
        self._store = store
        self._clock = clock
        self.programs = Programs(store)
        self.dispatch = Dispatch(lease_seconds)
        self._live: dict[ExecutionId, Live] = {}
        self._finished: deque[ExecutionId] = deque()
        self._jobs: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._ended: dict[ExecutionId, list[asyncio.Future[None]]] = {}
        self._watchers: dict[ExecutionId, list[asyncio.Event]] = {}
        self.timer_changed = asyncio.Event()
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
                refused=refused or refusal(live.program.net),
            )

        await self._submit(Job(execution_id, decide, create=create))

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        """Take what a worker says. The answer carries its next commands, if it wants some."""
        held = self.dispatch.holding(report.command_id, report.token)
        if held is None:
            raise LeaseLost(
                f"the lease on command {report.command_id} lapsed or was given to another worker."
                " Drop this result; the other worker will report."
            )
        if report.number <= held.reports:
            return Answer(accepted=True)
        closes = report.command_id if report.closes or report.ending is not None else None
        waiter = Waiter(held.worker_id, pool, want) if want and closes else None
        now = self._clock.now()

        def decide(live: Live) -> Decision:
            return advance.reported(live.program, live.state, report.execution_id, now, report)

        ending = report.ending
        coming = () if ending is None else (ending.result, *ending.tasks.values())
        job = Job(report.execution_id, decide, closes=closes, waiter=waiter, coming=coming)
        await self._submit(job)
        # Only now: a report that could not be stored may come again.
        held.reports = report.number
        return Answer(accepted=True, leases=tuple(waiter.given) if waiter is not None else ())

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
            finally:
                self.dispatch.stop_waiting(waiter)
            if waiter.given or self._clock.now() >= deadline:
                return waiter.given

    async def _claim(self, worker_id: str, pool: str, want: int) -> list[Lease]:
        now = self._clock.now()
        leases = await self._store.claim(
            worker_id,
            pool=pool,
            limit=want,
            now=now,
            expires_at=now + self.dispatch.lease_seconds,
            executions=self.chosen,
        )
        if len(leases) < want:
            self.dispatch.backlog[pool] = 0
        else:
            self.dispatch.backlog[pool] = max(1, self.dispatch.backlog.get(pool, 0) - len(leases))
        for lease in leases:
            self.dispatch.hold(lease, worker_id)
        await asyncio.gather(*(self._mark_started(lease, worker_id) for lease in leases))
        return leases

    async def _mark_started(self, lease: Lease, worker_id: str) -> None:
        command = lease.command
        now = self._clock.now()

        def decide(live: Live) -> Decision:
            return advance.leased(
                live.program,
                live.state,
                command.execution_id,
                now,
                command.step_run_id,
                worker_id,
            )

        await self._submit(Job(command.execution_id, decide))

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        """Extend leases; the commands that are no longer this worker's."""
        now = self._clock.now()
        held = await self._store.renew(
            list(tokens.values()), now=now, expires_at=now + self.dispatch.lease_seconds
        )
        return {command_id for command_id, token in tokens.items() if token not in set(held)}

    async def cancel(self, execution_id: ExecutionId, reason: str = "") -> None:
        await self._happen(
            execution_id,
            lambda live, now: advance.cancel(live.program, live.state, execution_id, now, reason),
        )

    async def pause(self, execution_id: ExecutionId, reason: str = "") -> None:
        await self._happen(
            execution_id,
            lambda live, now: advance.pause(live.program, live.state, execution_id, now, reason),
        )

    async def resume(self, execution_id: ExecutionId) -> None:
        await self._happen(
            execution_id,
            lambda live, now: advance.resume(live.program, live.state, execution_id, now),
        )

    async def fire(self, execution_id: ExecutionId, timer_id: str) -> None:
        """A timer's moment has come."""
        await self._happen(
            execution_id,
            lambda live, now: advance.fired(live.program, live.state, execution_id, now, timer_id),
        )

    async def lapse(self, execution_id: ExecutionId, command_id: CommandId, worker: str) -> None:
        """A lease ran out: its work goes on under a new command."""
        now = self._clock.now()

        def decide(live: Live) -> Decision:
            return advance.lapsed(live.program, live.state, execution_id, now, command_id, worker)

        await self._submit(Job(execution_id, decide, closes=command_id))

    async def _happen(
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

    def next_chosen_timer(self) -> float | None:
        """When the earliest timer of the chosen executions fires, as far as they are in memory."""
        chosen = [live.state for live in self._live.values() if self.is_chosen(live.execution_id)]
        moments = (timer.fires_at for state in chosen for timer in state.timers.values())
        return min(moments, default=None)

    async def state(self, execution_id: ExecutionId) -> ExecutionState:
        """The state as it stands. Read it, do not keep it."""
        return (await self._get(execution_id)).state

    async def wait_for_end(self, execution_id: ExecutionId) -> ExecutionState:
        """Come back when the execution has ended."""
        while True:
            state = await self.state(execution_id)
            if state.is_finished:
                return state
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ended.setdefault(execution_id, []).append(future)
            await future

    # --- The loop ---

    async def run(self) -> None:
        """Decide and store, batch after batch, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._jobs:
                taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), BATCH_MAX))]
                await self._round(taken)

    async def _submit(self, job: Job) -> None:
        self._jobs.append(job)
        self._arrived.set()
        await job.future

    async def _round(self, jobs: list[Job]) -> None:
        """One batch. Jobs whose execution moved under us are decided again."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            batch = Batch()
            batch.todo.extend(jobs)
            try:
                while batch.todo:
                    await self._decide(batch, batch.todo.popleft())
            except Exception as error:  # noqa: BLE001  whose it is gets it
                await self._without_the_broken(batch, jobs, error)
                return
            moved = await self._commit(batch)
            if moved is None:
                return
            jobs = [job for job in batch.jobs if job.execution_id in moved]
            self._settle(batch, moved)
            if not jobs:
                return
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
            self._live.pop(execution_id, None)
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
        if job.waiter is not None:
            self.dispatch.wait(job.waiter)
        batch.jobs.append(job)
        await bodies.fetch(self._store, live, job.coming)
        decision = job.decide(live)
        live.add(write, decision)
        if job.closes is not None:
            write.closed.append(job.closes)
            batch.closed.append((job.closes, False))
        await self._perform(batch, live, write, decision.effects)

    async def _live_for(self, job: Job) -> Live:
        if job.create is not None and job.execution_id not in self._live:
            existing = await self._store.load(job.execution_id)
            if existing is None:
                self._live[job.execution_id] = job.create()
        return await self._get(job.execution_id)

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
                    if (command_id, False) not in batch.closed:
                        write.closed.append(command_id)
                        batch.closed.append((command_id, True))
                case StartChild():
                    self.choose(effect.child)
                    batch.todo.append(await self._child_job(effect, now))
                case TellParent():
                    batch.todo.append(parent_job(live.execution_id, effect, now))
                case CancelChild(child=child, reason=reason):
                    batch.todo.append(cancel_job(child, reason, now))

    async def _child_job(self, effect: StartChild, now: float) -> Job:
        """The start of a child; if there is no such playbook, its end."""
        parent, request = effect.parent, effect.request
        try:
            program, entry = await self.programs.by_path(request.path, request.version)
        except NotFound as error:
            missing = TaskError(kind="not_found", code="no_playbook", message=str(error))
            ended = TellParent(parent, "FAILED", None, missing)
            return parent_job(effect.child, ended, now)
        requested = ExecutionRequested(
            at=now,
            path=entry.path,
            digest=entry.digest,
            version=entry.version,
            payload=request.workload,
            parent=parent,
        )
        workload = merged(program.net.workload, request.workload)

        def create() -> Live:
            return Live(effect.child, program, ExecutionState())

        def decide(live: Live) -> Decision:
            return advance.start(
                live.program,
                live.state,
                effect.child,
                requested,
                workload=workload,
                refused=refusal(live.program.net),
            )

        return Job(effect.child, decide, create=create)

    async def _commit(self, batch: Batch) -> set[ExecutionId] | None:
        """Store the batch. None: it could not be stored, and everybody has been told."""
        writes = []
        for execution_id, write in batch.writes.items():
            live = self._live.get(execution_id)
            if live is not None and (write.events or write.closed or write.commands):
                live.close(write)
                writes.append(write)
        try:
            moved = await self._store.commit(writes) if writes else []
        except StoreError as error:
            self._undo(batch)
            for job in batch.jobs:
                fail(job, error)
            return None
        for execution_id in moved:
            self._live.pop(execution_id, None)
        self._settle(batch, set(moved))
        return set(moved) if moved else None

    def _settle(self, batch: Batch, moved: set[ExecutionId]) -> None:
        """It is stored: let it out."""
        timers = False
        for execution_id, write in batch.writes.items():
            live = self._live.get(execution_id)
            if execution_id in moved or live is None:
                continue
            live.stored = write.seq_before + len(write.events)
            timers = timers or bool(write.timers)
            self._tell_watchers(execution_id, live)
        for command_id, tell in batch.closed:
            self.dispatch.close(command_id, tell=tell)
        self.dispatch.deliver()
        for write in batch.writes.values():
            for placed in write.commands:
                if placed.worker_id is None and write.execution_id not in moved:
                    self.dispatch.opened(placed.command.pool)
        if timers:
            self.timer_changed.set()
        for job in batch.jobs:
            if job.waiter is not None:
                self.dispatch.stop_waiting(job.waiter)
            if job.execution_id not in moved and not job.future.done():
                job.future.set_result(None)

    def _tell_watchers(self, execution_id: ExecutionId, live: Live) -> None:
        for signal in self._watchers.get(execution_id, ()):
            signal.set()
        if live.state.is_finished:
            for future in self._ended.pop(execution_id, ()):
                if not future.done():
                    future.set_result(None)
            bodies.let_go(live)
            self._forget_old(execution_id)

    def _forget_old(self, finished: ExecutionId) -> None:
        """Executions that have ended are kept for those who ask next, but not all of them."""
        self._finished.append(finished)
        if len(self._finished) > FINISHED_KEPT:
            self._live.pop(self._finished.popleft(), None)

    def watch(self, execution_id: ExecutionId) -> asyncio.Event:
        """A signal that is set whenever something about the execution was stored."""
        signal = asyncio.Event()
        self._watchers.setdefault(execution_id, []).append(signal)
        return signal

    def unwatch(self, execution_id: ExecutionId, signal: asyncio.Event) -> None:
        signals = self._watchers.get(execution_id, [])
        if signal in signals:
            signals.remove(signal)

    async def _get(self, execution_id: ExecutionId) -> Live:
        live = self._live.get(execution_id)
        if live is None:
            loaded = await self._store.load(execution_id)
            if loaded is None:
                raise NotFound(f"there is no execution {execution_id}.")
            state = fold(loaded)
            live = Live(execution_id, await self.programs.by_digest(state.digest), state)
            live.key = key_of(loaded)
            live.snapshot_seq = loaded.snapshot_seq
            self._live[execution_id] = live
        return live
