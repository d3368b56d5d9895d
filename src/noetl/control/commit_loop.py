"""The commit loop: inputs are decided and stored in batches (group commit).

Inputs gather in the inbox while the last batch is being written. A batch decides for all of them,
stores what was decided in one transaction, and only then lets anything out: answers, commands,
leases. A crash before the commit leaves no trace.

A decision may be made on a state that another server has moved on meanwhile. The commit refuses
it then: every write names the seq that its execution must still have, also the write that says
"nothing follows". What was refused is read again and decided again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import assert_never

import msgspec

from noetl.control import bodies
from noetl.control.audience import Audience
from noetl.control.children import Family, child_ended, child_start
from noetl.control.clock import Clock
from noetl.control.dispatch import Dispatch, Waiter
from noetl.control.inbox import Entry, Inbox
from noetl.control.live import Live
from noetl.control.memory import Memory
from noetl.control.programs import Programs
from noetl.engine.advance import advance
from noetl.engine.turn import (
    NOTHING,
    CancelChild,
    Close,
    Effect,
    EndLoop,
    Issue,
    Keep,
    StartChild,
    TellParent,
)
from noetl.errors import Conflict, Corrupted, Finished, NoetlError, SignalRefused, StoreError
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.inputs import (
    Admitted,
    Cancelled,
    Input,
    Lapsed,
    Leased,
    LoopEnded,
    Reported,
    Start,
    TimerDue,
)
from noetl.model.state import ExecutionState
from noetl.store.base import Store, Write

logger = logging.getLogger(__name__)

BATCH_MAX = 256
COMMIT_ATTEMPTS_MAX = 5
ERROR_LOGGED = 1000
"""Characters of an error in a line of the log."""
DECIDED_AT_A_TIME = 10
"""After so many decisions, whoever else is in this process has a turn."""


class Batch:
    """What one round decides."""

    def __init__(
        self, entries: Sequence[Entry], full: dict[ExecutionId, tuple[str, ...]] | None = None
    ) -> None:
        self.full = full or {}
        """Executions that may not start, and the limits that have no room for them."""
        self.writes: dict[ExecutionId, Write] = {}
        self.todo = list(entries)
        """Grows by what follows from what is decided."""
        self.decided: list[Entry] = []
        self.closed: dict[CommandId, tuple[ExecutionId, bool]] = {}
        """Commands that are over, and whether their worker has to be told."""
        self._ties: dict[ExecutionId, set[ExecutionId]] = {}

    def follow(self, cause: ExecutionId, given: Input) -> None:
        """What one decision makes happen to another execution: both are kept, or neither."""
        self.todo.append(Entry(given, is_consequence=True))
        if given.execution_id != cause:
            both = self._ties.get(cause, {cause}) | self._ties.get(
                given.execution_id, {given.execution_id}
            )
            for execution_id in both:
                self._ties[execution_id] = both

    def close(self, write: Write, command_id: CommandId, *, tell: bool) -> None:
        """The command is over; `tell` its worker to stop."""
        write.closed.append(command_id)
        self.closed[command_id] = (write.execution_id, tell)

    @property
    def tied(self) -> list[set[ExecutionId]]:
        """Executions that are kept together."""
        if not self._ties:
            return []
        return list({id(ties): ties for ties in self._ties.values()}.values())


class CommitLoop:
    """Batch after batch: decide, commit, let out."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        programs: Programs,
        dispatch: Dispatch,
        memory: Memory,
        audience: Audience,
        family: Family,
    ) -> None:
        self._store = store
        self._clock = clock
        self._programs = programs
        self._dispatch = dispatch
        self._memory = memory
        self._audience = audience
        self._family = family
        self.inbox = Inbox()
        self.timer_changed = asyncio.Event()
        self.slots_changed = asyncio.Event()
        """An execution waits for its turn, or has made room for others."""
        self.on_stored: Callable[[list[Write]], None] | None = None
        """Who wants to know what was written."""
        self.on_ended: list[Callable[[ExecutionId, ExecutionState], None]] = []
        """Who wants to know how executions ended."""
        self._under_way: Collection[ExecutionId] = ()
        """What is being decided and stored just now."""
        self._round_began: float | None = None
        """When the batch that is under way was begun, by the clock of the event loop."""
        self.states_found = 0
        """Decisions on a state that was in memory."""
        self.states_read = 0
        """Decisions for which it had to be read from the store."""

    async def run(self) -> None:
        """Decide and store, batch after batch, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            taken = await self.inbox.take(BATCH_MAX)
            self._round_began = loop.time()
            await self._round(taken)
            self._under_way, self._round_began = (), None

    def unstored_seconds(self) -> float:
        """For how long the oldest decision has been waiting to be stored; 0 if none waits."""
        if self._round_began is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._round_began

    async def submit(self, given: Input, waiter: Waiter | None = None) -> Entry:
        """Come back when what follows from it is stored."""
        entry = Entry(given, waiter)
        self.inbox.put(entry)
        await entry.future
        return entry

    def is_under_way(self, execution_id: ExecutionId) -> bool:
        """Whether it is being decided and stored just now."""
        return execution_id in self._under_way

    async def _round(self, entries: list[Entry]) -> None:
        """One batch. What was decided on an old state is decided again."""
        full: dict[ExecutionId, tuple[str, ...]] = {}
        for _ in range(COMMIT_ATTEMPTS_MAX):
            batch = Batch(entries, full)
            self._under_way = batch.writes
            try:
                await self._decide_all(batch)
            except Exception as error:  # noqa: BLE001  the entry that caused it gets it
                await self._without_the_broken(batch, entries, error)
                return
            moved = await self._commit(batch)
            if moved is None:
                return
            full |= {one: write.full for one, write in batch.writes.items() if write.full}
            entries = [
                entry
                for entry in batch.decided
                if entry.input.execution_id in moved and not entry.is_consequence
            ]
            if not entries:
                return
            for entry in entries:
                entry.decided_on_old_state = True
        for entry in entries:
            entry.fail(StoreError(f"execution {entry.input.execution_id} keeps moving; try again."))

    async def _without_the_broken(
        self, batch: Batch, entries: list[Entry], error: Exception
    ) -> None:
        """A decision failed: nothing of its batch counts. Each entry again, on its own."""
        self._undo(batch)
        if len(entries) > 1:
            for entry in entries:
                await self._round([entry])
            return
        logger.error(
            "a decision failed",
            exc_info=error,
            extra={"execution_id": entries[0].input.execution_id},
        )
        entries[0].fail(error)

    def _undo(self, batch: Batch) -> None:
        """What is in memory was never stored: forget it, and read it back when needed."""
        for execution_id in batch.writes:
            self._memory.drop(execution_id)
        self._dispatch.take_back()
        for entry in batch.decided:
            if entry.waiter is not None:
                self._dispatch.stop_waiting(entry.waiter)

    async def _decide_all(self, batch: Batch) -> None:
        for number, entry in enumerate(batch.todo, 1):
            await self._decide(batch, entry)
            if number % DECIDED_AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def _decide(self, batch: Batch, entry: Entry) -> None:
        given = entry.input
        live = self._memory.find(given.execution_id)
        if live is not None:
            self.states_found += 1
        else:
            try:
                live = await self._made_or_read(entry)
            except NoetlError as error:
                if (
                    entry.is_consequence
                    and isinstance(error, StoreError)
                    and not isinstance(error, Corrupted)
                ):
                    # What caused it must not be stored without it: a parent that cannot be read
                    # just now would never hear of the end of its child.
                    raise
                entry.fail(error)
                return
        write = batch.writes.get(given.execution_id)
        if write is None:
            write = batch.writes[given.execution_id] = Write(
                execution_id=given.execution_id, seq_before=live.stored
            )
            if type(given) is Start and live.stored == 0:
                write.trigger = given.trigger
        if type(given) is Reported:
            entry.has_voice = given.report.command_id in live.state.holders
        # Decided again, it may have been given something the first time.
        if entry.waiter is not None and entry.has_voice and not entry.waiter.given:
            self._dispatch.wait_in_front(entry.waiter, self._clock.now())
        batch.decided.append(entry)
        await bodies.bring(self._store, live, given, write)
        if batch.full and (names := batch.full.get(given.execution_id)):
            if type(given) is Start:
                given = msgspec.structs.replace(given, full=names)
            elif type(given) is Admitted:
                return  # It goes on waiting.
        try:
            decision = advance(live.program, live.state, given)
            entry.refusal = None
        except (SignalRefused, Finished) as error:
            decision, entry.refusal = NOTHING, error
        entry.changed = bool(decision.events)
        live.add(write, decision)
        if type(given) is TimerDue and not entry.changed:
            # Nothing waits for it: it must not come up again.
            write.timers_cleared.append(given.timer_id)
        closed = _closed_by(given)
        if closed is not None and entry.has_voice:
            batch.close(write, closed, tell=False)
        if decision.effects:
            await self._perform(batch, live, write, decision.effects)

    async def _made_or_read(self, entry: Entry) -> Live:
        """An execution that is not in memory."""
        given, is_old = entry.input, entry.decided_on_old_state
        # At first it is taken for new without looking: if it is not, the commit says so.
        if type(given) is not Start or (
            is_old and await self._store.load(given.execution_id) is not None
        ):
            self.states_read += 1
            return await self._memory.get(given.execution_id)
        program = await self._programs.by_digest(given.request.digest)
        live = Live(given.execution_id, program, ExecutionState())
        live.key = given.request.key
        if is_old:
            await self._memory.refuse_taken_key(live)
            if given.trigger is not None:
                raise Conflict("what should start this execution was decided elsewhere.")
        self._memory.put(live)
        return live

    async def _perform(
        self, batch: Batch, live: Live, write: Write, effects: tuple[Effect, ...]
    ) -> None:
        """Turn effects into parts of the same transaction, or into inputs of the same batch."""
        now = self._clock.now()
        for effect in effects:
            match effect:
                case Issue(command=command):
                    placed = self._dispatch.place(command, live.family, now)
                    write.commands.append(placed)
                    if placed.worker_id is not None:
                        leased = Leased(
                            execution_id=live.execution_id,
                            at=now,
                            step_run_id=command.step_run_id,
                            worker=placed.worker_id,
                        )
                        live.add(write, advance(live.program, live.state, leased))
                case Close(command_id=command_id):
                    if command_id not in batch.closed:
                        batch.close(write, command_id, tell=True)
                case Keep(key=key, body=body):
                    write.results.append((key, body))
                case StartChild():
                    self._dispatch.choose(effect.child)
                    given = await child_start(
                        self._store,
                        self._programs,
                        self._family,
                        effect,
                        now,
                        live.state.seal,
                        live.state.labels,
                    )
                    batch.follow(live.execution_id, given)
                case TellParent():
                    batch.follow(live.execution_id, child_ended(live.execution_id, effect, now))
                case EndLoop(step_run_id=step_run_id, result=result):
                    # The rest of a decision: what follows a loop's end may read all its results.
                    batch.follow(
                        live.execution_id,
                        LoopEnded(
                            execution_id=live.execution_id,
                            at=now,
                            step_run_id=step_run_id,
                            result=result,
                        ),
                    )
                case CancelChild(child=child, reason=reason):
                    batch.follow(
                        live.execution_id, Cancelled(execution_id=child, at=now, reason=reason)
                    )
                case _:
                    assert_never(effect)

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
            for entry in batch.decided:
                entry.fail(error)
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
            if write.slots:
                self.slots_changed.set()
            opened += [new.command.pool for new in write.commands if new.worker_id is None]
            self._audience.tell(execution_id, write.events, may_have_ended=live.state.is_finished)
            if live.state.is_finished:
                bodies.let_go(live)
                if write.events:
                    self._tell_end(execution_id, live.state)
            self._memory.note(live)
        for command_id, (execution_id, tell) in batch.closed.items():
            if execution_id not in moved:
                self._dispatch.close(command_id, tell=tell)
        self._dispatch.deliver(moved)
        for entry in batch.decided:
            if entry.waiter is not None and not entry.waiter.given:
                self._dispatch.stop_waiting(entry.waiter)
            if entry.input.execution_id not in moved and not entry.future.done():
                entry.future.set_result(None)
        for pool in opened:
            self._dispatch.opened(pool)
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
        for tell in self.on_ended:
            tell(execution_id, state)


def _closed_by(given: Input) -> CommandId | None:
    """The command that is over with this, whatever else follows."""
    if type(given) is Reported:
        report = given.report
        return report.command_id if report.closes or report.ending is not None else None
    return given.command_id if type(given) is Lapsed else None
