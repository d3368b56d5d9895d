"""The inbox and the commit loop: inputs are decided and stored in batches (group commit).

A commit costs a flush of the disk, whatever it holds. So inputs gather in the inbox while the last
batch is being written, and the next batch takes all of them. A round of the loop is:

1. *Decide.* For each input: find the state in memory, or read it; `engine.advance` says which
   facts and effects follow, and moves the state along. Commands are leased at birth to workers
   that wait. What follows for other executions (a child starts or ends) becomes a further input of
   the same batch, tied to its cause: both are kept, or neither.
2. *Commit.* All facts, commands, timers and results of the batch are one transaction.
3. *Tell.* Only now do others hear of it: callers that submitted an input, workers that were
   promised a lease, readers, other servers. A crash before the commit leaves no trace.

A decision may be made on a state that another server has moved on meanwhile. The commit refuses
it then: every write names the seq that its execution must still have, also the write that says
"nothing follows". What was refused, with what it is tied to, is forgotten, read again and decided
again. A decision that raises takes its batch back; each input is then tried by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ClassVar, assert_never

import msgspec

from noetl.control.children import Children, child_ended
from noetl.control.clock import Clock
from noetl.control.leases import Claiming, Dispatch, Leases, Waiter, lease_lost
from noetl.control.live import Live, Memory, fetch_bodies, may_bring_references
from noetl.control.programs import Programs
from noetl.control.watchers import Watchers
from noetl.engine.advance import advance
from noetl.engine.turn import (
    NO_CONSEQUENCES,
    CancelChild,
    Close,
    EndLoop,
    Issue,
    Keep,
    OtherEffect,
    StartChild,
    TellParent,
)
from noetl.errors import (
    Conflict,
    Corrupted,
    Finished,
    NoetlError,
    NotAllowed,
    SignalRefused,
    StoreBusy,
    StoreError,
    StoreFull,
)
from noetl.model.commands import Command
from noetl.model.events import Event
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
from noetl.model.state import TERMINAL, ExecutionState
from noetl.store.bodies import Bodies
from noetl.store.log import Log, Write

if TYPE_CHECKING:
    from noetl.control.notifications import Notifications

logger = logging.getLogger(__name__)

BATCH_MAX = 256
COMMIT_ATTEMPTS_MAX = 5
ERROR_LOGGED = 1000
"""Characters of an error in a line of the log."""
DECIDED_AT_A_TIME = 10
"""After so many decisions, other tasks of this process get a turn."""


class Entry(msgspec.Struct, eq=False):
    """One input on its way through the loop."""

    input: Input
    future: asyncio.Future[None] | None = None
    """Done when what follows is stored; None if no caller waits."""
    waiter: Waiter | None = None
    """The worker that reports, and wants more to do."""
    is_consequence: bool = False
    """It follows from another input of the same batch, and is decided again with that one."""
    is_over: bool = False
    """It is a report before the last, and it ended the step run: its worker must stop."""
    changed: bool = False
    """It made something happen."""
    refusal: NoetlError | None = None
    """Why it has no say: the execution does not accept it, or its sender has no lease."""
    decided_on_old_state: bool = False
    """The stored state had moved on: it has to be decided again."""

    prepares: ClassVar[bool] = False
    """The caller prepares its answer while the entry is being stored."""

    def prepare(self) -> None:
        """The entry is being stored. If it is decided again, it is prepared again."""

    def settle(self) -> None:
        """What follows from the entry is stored."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
            # The caller may be gone: the error counts as seen.
            self.future.exception()


class Inbox:
    """What has come in and is not decided yet, in the order it came."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._arrival: asyncio.Future[None] | None = None
        """Done when there is an entry; None if the loop does not wait for one."""

    async def submit(self, given: Input) -> Entry:
        """Return when all that follows from the input is stored."""
        entry, stored = self.take_in(given)
        await stored
        return entry

    def take_in(
        self, given: Input, waiter: Waiter | None = None
    ) -> tuple[Entry, asyncio.Future[None]]:
        """Take the input in; the future is done when what follows from it is stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = Entry(given, stored, waiter)
        self.put(entry)
        return entry, stored

    def post(self, given: Input) -> None:
        """Take the input in without waiting for what follows."""
        self.put(Entry(given))

    def put(self, entry: Entry) -> None:
        self.entries.append(entry)
        arrival = self._arrival
        if arrival is not None:
            self._arrival = None
            if not arrival.done():
                arrival.set_result(None)

    def arrival(self) -> asyncio.Future[None]:
        """Done as soon as there is an entry."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.entries:
            arrival.set_result(None)
        else:
            self._arrival = arrival
        return arrival

    def take(self, limit: int) -> list[Entry]:
        """The oldest entries."""
        if len(self.entries) <= limit:
            taken, self.entries = self.entries, []
        else:
            taken = self.entries[:limit]
            del self.entries[:limit]
        return taken


class Batch(msgspec.Struct, eq=False):
    """What one round decides."""

    todo: list[Entry]
    """Grows by the consequences of what is decided."""
    now: float
    full: dict[ExecutionId, tuple[str, ...]] = {}
    """Executions that may not start, and the limits that have no room for them."""
    writes: dict[ExecutionId, Write] = {}
    decided: list[Entry] = []
    closed: dict[CommandId, tuple[ExecutionId, bool]] = {}
    """Commands that are over, and whether their worker has to be told."""
    ties: dict[ExecutionId, set[ExecutionId]] = {}

    def follow(self, cause: ExecutionId, given: Input) -> None:
        """What a decision makes happen to another execution: both are stored, or neither."""
        self.todo.append(Entry(given, is_consequence=True))
        if given.execution_id != cause:
            both = self.ties.get(cause, {cause}) | self.ties.get(
                given.execution_id, {given.execution_id}
            )
            for execution_id in both:
                self.ties[execution_id] = both

    def close(self, write: Write, command_id: CommandId, *, tell: bool) -> None:
        """The command is over; `tell` its worker to stop."""
        write.closed.append(command_id)
        self.closed[command_id] = (write.execution_id, tell)

    @property
    def tied(self) -> list[set[ExecutionId]]:
        """Executions that are stored together or not at all."""
        return list({id(ties): ties for ties in self.ties.values()}.values())


class CommitLoop:
    """Batch after batch: decide, commit, tell."""

    def __init__(
        self,
        log: Log,
        bodies: Bodies,
        clock: Clock,
        programs: Programs,
        inbox: Inbox,
        dispatch: Dispatch,
        leases: Leases,
        memory: Memory,
        watchers: Watchers,
        children: Children,
    ) -> None:
        self._log = log
        self._bodies = bodies
        self._clock = clock
        self._programs = programs
        self._inbox = inbox
        self._dispatch = dispatch
        self._leases = leases
        self._memory = memory
        self._watchers = watchers
        self._children = children
        self.timer_changed = asyncio.Event()
        self.slots_changed = asyncio.Event()
        """An execution waits for its turn, or has made room for others."""
        self.on_stored: Callable[[list[Write]], None] | None = None
        """Called with what was written."""
        self.on_ended: list[Callable[[ExecutionId, ExecutionState], None]] = []
        """Called with each execution that has ended."""
        self.notifications: Notifications | None = None
        """Says what is written with events to tell people of them, if this process does that."""
        self._under_way: Collection[ExecutionId] = ()
        """Executions of the batch that is under way."""
        self._round_began: float | None = None
        """When the batch that is under way was begun, by the clock of the event loop."""
        self._round_awaited: list[asyncio.Future[None]] = []
        """Done when the batch that is under way is over."""
        self.started = 0
        """Executions that began here."""
        self.states_found = 0
        """Decisions whose state was in memory."""
        self.states_read = 0
        """Decisions whose state had to be read."""

    async def run(self) -> None:
        """Decide and store, batch after batch, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if self._inbox.entries:
                # Workers that were just answered report first: their reports share the next flush.
                await asyncio.sleep(0)
            else:
                await self._inbox.arrival()
            self._round_began = loop.time()
            await self._round(self._inbox.take(BATCH_MAX))
            self._under_way, self._round_began = (), None
            for awaiting in self._round_awaited:
                if not awaiting.done():
                    awaiting.set_result(None)
            self._round_awaited.clear()

    def unstored_seconds(self) -> float:
        """For how long the oldest decision has been waiting to be stored; 0 if none waits."""
        if self._round_began is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._round_began

    async def round_over(self) -> None:
        """Return when the batch that is under way is stored or refused, before the next one is
        decided.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._round_awaited.append(over)
        await over

    def is_under_way(self, execution_id: ExecutionId) -> bool:
        """Whether it is in the batch that is under way."""
        return execution_id in self._under_way

    async def _round(self, entries: list[Entry]) -> None:
        """One batch. What was decided on an old state is decided again."""
        full: dict[ExecutionId, tuple[str, ...]] = {}
        for _ in range(COMMIT_ATTEMPTS_MAX):
            batch = Batch(list(entries), self._clock.now(), full)
            self._under_way = batch.writes
            try:
                for number, entry in enumerate(batch.todo, 1):
                    await self._decide(batch, entry)
                    if number % DECIDED_AT_A_TIME == 0:
                        await asyncio.sleep(0)
            except Exception as error:  # noqa: BLE001  the entry that caused it gets it
                await self._without_the_broken(batch, entries, error)
                return
            try:
                moved = await self._commit(batch)
            except (StoreBusy, StoreFull) as error:
                self._undo(batch)
                for entry in batch.decided:
                    self._fail(entry, error)
                return
            except NoetlError as error:
                await self._without_the_broken(batch, entries, error)
                return
            if not moved:
                return
            no_room = {one: write.full for one, write in batch.writes.items() if write.full}
            full |= no_room
            entries = [
                entry
                for entry in batch.decided
                if entry.input.execution_id in moved and not entry.is_consequence
            ]
            for entry in entries:
                # What was refused for want of room has not moved.
                entry.decided_on_old_state = entry.input.execution_id not in no_room
        for entry in entries:
            self._fail(
                entry,
                StoreError(
                    f"execution {entry.input.execution_id} is being changed elsewhere; try again."
                ),
            )

    async def _without_the_broken(
        self, batch: Batch, entries: list[Entry], error: Exception
    ) -> None:
        """A decision failed, or the store refused it: nothing of its batch counts. Try each entry
        by itself. One that is stored nevertheless is decided again like any that has moved.
        """
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
        self._fail(entries[0], error)

    def _fail(self, entry: Entry, error: Exception) -> None:
        """Nothing follows from the entry, and a worker that reported gets nothing."""
        entry.fail(error)
        if entry.waiter is not None and entry.waiter.given:
            self._leases.give_back(entry.waiter.given, entry.waiter.worker_id)

    def _undo(self, batch: Batch) -> None:
        """What is in memory was never stored: drop it, and read it again when needed."""
        for execution_id in batch.writes:
            self._memory.drop(execution_id)
        self._dispatch.take_back()
        for entry in batch.decided:
            if entry.waiter is not None:
                self._dispatch.stop_waiting(entry.waiter)

    async def _decide(self, batch: Batch, entry: Entry) -> None:
        """Let the engine decide what follows from an entry, and make that part of the batch."""
        given = entry.input
        live = self._memory.find(given.execution_id)
        if live is not None:
            self.states_found += 1
        else:
            live = await self._brought_in(entry)
            if live is None:
                return
        write = batch.writes.get(given.execution_id)
        if write is None:
            write = batch.writes[given.execution_id] = Write(
                execution_id=given.execution_id, seq_before=live.stored
            )
            if type(given) is Start and live.stored == 0:
                write.trigger = given.trigger
        closed: CommandId | None = None
        entry.refusal = None
        if type(given) is Reported:
            report = given.report
            if report.command_id not in live.state.holders:
                entry.refusal = lease_lost(report)
            if report.closes or report.ending is not None:
                closed = report.command_id
        elif type(given) is Lapsed:
            closed = given.command_id
        elif type(given) is Leased and given.command_id not in live.state.holders:
            # It was over before its worker had it.
            batch.closed[given.command_id] = (given.execution_id, True)
        # An entry that is decided again may have been given something the first time.
        if entry.waiter is not None and entry.refusal is None and not entry.waiter.given:
            await self._offer_slot(entry.waiter, live, batch.now)
        batch.decided.append(entry)
        if live.has_references or may_bring_references(given):
            await fetch_bodies(self._bodies, live, given, write)
        if batch.full and (names := batch.full.get(given.execution_id)):
            if type(given) is Start:
                given = msgspec.structs.replace(given, full=names)
            elif type(given) is Admitted:
                return  # It goes on waiting.
        try:
            decision = advance(live.program, live.state, given, live.bodies)
        except (SignalRefused, NotAllowed, Finished) as error:
            decision, entry.refusal = NO_CONSEQUENCES, error
        facts = decision.events
        entry.changed = bool(facts)
        if closed is None and type(given) is Reported and entry.refusal is None:
            entry.is_over = given.report.command_id not in live.state.holders
        if type(given) is TimerDue and not facts:
            # Nothing waits for it: it must not come up again.
            write.timers_cleared.append(given.timer_id)
        if closed is not None and entry.refusal is None:
            batch.close(write, closed, tell=False)
        for effect in decision.effects:
            if isinstance(effect, Issue):
                facts += self._issue(batch, live, write, effect.command)
            else:
                await self._perform(batch, live, write, effect)
        if facts:
            live.add(write, facts)
            if self.notifications is not None and self.notifications.rules:
                rows = self.notifications.of_execution(given.execution_id, live.state, facts)
                if rows:
                    write.add_rows(rows)

    async def _offer_slot(self, waiter: Waiter, live: Live, now: float) -> None:
        """A slot that reports waits for what follows, or makes room for another execution."""
        if self._dispatch.newcomers:
            queue = self._dispatch.makes_room(waiter, live.family)
            if queue is not None:
                waiter.given = await self._leases.claim_for_reporter(waiter, queue)
        if not waiter.given:
            self._dispatch.wait_in_front(waiter, now)

    async def _brought_in(self, entry: Entry) -> Live | None:
        """The execution of an entry that is not in memory. None: the entry has failed."""
        try:
            return await self._made_or_read(entry)
        except NoetlError as error:
            may_come_back = isinstance(error, StoreError) and not isinstance(error, Corrupted)
            if entry.is_consequence and may_come_back:
                # Its cause must not be stored without it: a parent that cannot be read now would
                # never hear of the end of its child.
                raise
            entry.fail(error)
            return None

    async def _made_or_read(self, entry: Entry) -> Live:
        """Make a new execution, or read one that is not in memory."""
        given, is_old = entry.input, entry.decided_on_old_state
        # A start is taken for new without looking: if it is not, the commit is refused.
        if type(given) is not Start or (
            is_old and await self._log.load(given.execution_id) is not None
        ):
            self.states_read += 1
            return await self._memory.get(given.execution_id)
        program = await self._programs.by_digest(given.request.digest)
        live = Live(given.execution_id, program, ExecutionState())
        live.key = given.request.key
        if is_old:
            await self._memory.refuse_taken_key(live)
            if given.trigger is not None:
                raise Conflict("another server has decided about this trigger already.")
        self._memory.put(live)
        return live

    def _issue(self, batch: Batch, live: Live, write: Write, command: Command) -> tuple[Event, ...]:
        """Lease a command to a worker that waits, or leave it open. Returns what follows."""
        placed = self._dispatch.place(command, live, batch.now)
        write.commands.append(placed)
        if placed.worker_id is None:
            return ()
        leased = Leased(
            execution_id=live.execution_id,
            at=batch.now,
            command_id=command.command_id,
            step_run_id=command.step_run_id,
            worker=placed.worker_id,
        )
        return advance(live.program, live.state, leased).events

    async def _perform(self, batch: Batch, live: Live, write: Write, effect: OtherEffect) -> None:
        """Make an effect part of the transaction, or an input of the same batch."""
        now = batch.now
        match effect:
            case Close(command_id=command_id):
                if command_id not in batch.closed:
                    batch.close(write, command_id, tell=True)
            case Keep(key=key, body=body):
                write.results.append((key, body))
            case StartChild():
                given = await self._children.start(effect, live.state, now)
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

    async def _commit(self, batch: Batch) -> set[ExecutionId]:
        """Store the batch. Returns what was refused because it moved elsewhere.

        That nothing follows is a decision, too, and must have been made on what is stored. Where
        other processes write, a write without content goes along, and is refused like any other if
        the execution has moved; what is tied to it is then decided again as well.
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
            elif self._memory.is_shared:
                writes.append(write)
        claims: list[Claiming] = []
        if self._leases.go_along and any(self._dispatch.backlog.values()):
            # For slots that would have to ask as soon as they are answered.
            reporting = [one.waiter for one in batch.decided if one.waiter and one.refusal is None]
            claims = self._dispatch.claims(reporting, batch.now)
        if len(batch.decided) == 1 and batch.decided[0].prepares and not claims:
            # While the store writes. Where many come together, the writer and the next readers
            # have better use for that time.
            asyncio.get_running_loop().call_soon(batch.decided[0].prepare)
        try:
            refused = set(
                await self._log.commit(
                    writes,
                    tied=batch.tied if batch.ties else (),
                    claims=[one.claim for one in claims],
                )
                if writes
                else ()
            )
        except NoetlError:
            for one in claims:
                self._dispatch.break_off_claim(one)
            raise
        for execution_id in refused:
            self._memory.drop(execution_id)
        for one in claims:
            self._dispatch.end_claim(one)
            self._leases.note_claimed(one.claim.found, one.claim.worker_id, batch.now)
        self._tell(batch, refused)
        if self.on_stored is not None:
            self.on_stored([write for write in told if write.execution_id not in refused])
        return refused

    def _tell(self, batch: Batch, moved: set[ExecutionId]) -> None:
        """The batch is stored, except for what `moved` elsewhere: tell everybody."""
        self._dispatch.let_out(batch.closed, moved)
        # Workers that reported are answered first: they wait for nothing else.
        for entry in batch.decided:
            waiter = entry.waiter
            if waiter is not None and not waiter.given:
                self._dispatch.stop_waiting(waiter)
            if entry.input.execution_id not in moved:
                entry.settle()
                if waiter is not None and waiter.given and entry.refusal is not None:
                    self._leases.give_back(waiter.given, waiter.worker_id)
        opened = []
        for execution_id, write in batch.writes.items():
            live = self._memory.find(execution_id)
            if execution_id in moved or live is None:
                continue
            live.stored = live.state.seq
            if not write.seq_before:
                self.started += 1
            if write.timers:
                self.timer_changed.set()
            if write.slots:
                self.slots_changed.set()
            if self.notifications is not None and write.trigger and write.trigger.rows:
                self.notifications.noticed(write.trigger.rows)
            for new in write.commands:
                if new.worker_id is None:
                    opened.append(new.command)
            has_ended = live.state.status in TERMINAL
            self._watchers.tell(execution_id, write, may_have_ended=has_ended)
            if has_ended:
                live.bodies.clear()
                if write.events:
                    self._tell_end(execution_id, live.state)
            self._memory.note(live)
        for command in opened:
            self._dispatch.opened(command.pool, command.turn)
        self._memory.forget()

    def _tell_end(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        """The execution has ended with what was just stored."""
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
