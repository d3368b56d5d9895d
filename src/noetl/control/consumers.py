"""Consumers: each message of a source starts an execution, or wakes some, exactly once.

One server reads a source at a time: the row of the consumer says which one, and until when. It
renews that every few seconds; if it is gone, the row is due, and whichever server looks next takes
it over (`control/triggers.py`). Two that believe they read, because one was frozen, do no harm:

* the outcome of a message is stored with the execution that it starts, in one transaction, under
  the id of the message; a message whose id is there already starts nothing;
* the source is told that a message is done only after that, so a message of a server that died in
  between comes again, and is known then.

A message that can never be taken (it is not JSON, its templates or the inputs of the playbook fail
on it, `when` does not hold) is stored with the reason, and the next one is taken. What fails on our
side (the playbook is not registered, the database is away) keeps the message and those behind it
waiting, and `noetl consumers show` says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.control.clock import heard
from noetl.control.documents import moment
from noetl.control.keys import Keys
from noetl.control.trigger_documents import (
    TriggerDocuments,
    TriggerServices,
    TriggerState,
    payload_of,
    scope_of,
)
from noetl.errors import BadRequest, Conflict, EvaluationFailed, NoetlError, StoreError
from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState
from noetl.model.triggers import (
    Consumer,
    FilesSource,
    MessageOutcome,
    PlaybookRef,
    SignalTarget,
    TriggerChange,
    TriggerMessage,
    TriggerRow,
)
from noetl.store.triggers import Messages
from noetl.templates import compile_condition

if TYPE_CHECKING:
    from noetl.control.sources import Message, Source
    from noetl.tools.resources import ToolResources

logger = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
"""Seconds after which a server that is gone is replaced as a reader."""
RENEW_SECONDS = 3.0
BATCH = 50
LOOK_SECONDS = 1.0
"""While there is no room, seconds between two looks for ends that other servers stored."""
PAUSE_SECONDS, PAUSE_MAX = 1.0, 30.0
"""Between two attempts to reach a source, or to start what cannot be started."""
KEPT_SECONDS = 30 * 86400.0
"""Outcomes of messages are kept this long, except of files, which are listed again."""
FORGET_SECONDS = 3600.0
REASON_MAX = 500
CONNECTING = "its source is being reached"
FULL = "messages wait: {} executions that it started have not ended, and `max_running` is no more"


class ConsumerState(TriggerState, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a consumer beside its document."""

    holder: str = ""
    """The server that reads it; empty if none does."""
    until: float = 0.0
    """Until then no other server may."""
    problem: str = ""
    """Why nothing can be read or started now."""


class Held:
    """A consumer that this server reads."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.problem = CONNECTING
        self.changed = asyncio.Event()
        """Set when the row, or the problem to write there, may have changed."""
        self.running: set[ExecutionId] = set()
        self.freed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Consumers(TriggerDocuments[Consumer, ConsumerState]):
    """Everything one can do with consumers."""

    document = Consumer
    state = ConsumerState

    def __init__(
        self,
        services: TriggerServices,
        messages: Messages,
        keys: Keys,
        resources: Callable[[], ToolResources],
        me: str,
        count: Callable[[MessageOutcome], None],
    ) -> None:
        """`me` is this server, as the rows of consumers name it; `count` counts outcomes."""
        super().__init__(services)
        self._messages = messages
        self._keys = keys
        self._resources = resources
        self._me = me
        self._count = count
        self._held: dict[str, Held] = {}

    # --- Who reads ---

    def next_look(self, document: Consumer, state: ConsumerState) -> float | None:
        return state.until if state.status == "active" else None

    def paused(self, state: ConsumerState, reason: str) -> ConsumerState:
        """Its source is not tried any more; the last error stays known."""
        problem = "" if state.problem == CONNECTING else state.problem
        return msgspec.structs.replace(super().paused(state, reason), problem=problem)

    def resumed(self, state: ConsumerState) -> ConsumerState:
        return msgspec.structs.replace(super().resumed(state), holder="", until=0.0, problem="")

    async def take_over(self) -> None:
        """The server that read before is gone: do not wait until its lease lapses."""
        for consumer, state in await self.all("", "", 1_000_000):
            if state.holder:
                await self.change(consumer.path, _free)

    async def close(self) -> None:
        """Stop reading; another server takes over at once."""
        tasks = [held.task for held in self._held.values() if held.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def settle(self, row: TriggerRow) -> None:
        """Take over consumers that no server reads."""
        path, now = row.path, self._clock.now()

        def taken(state: ConsumerState) -> ConsumerState | None:
            if state.status != "active" or state.until > now:
                return None
            until = now + LEASE_SECONDS
            return msgspec.structs.replace(state, holder=self._me, until=until, problem=CONNECTING)

        if (held := self._held.get(path)) is not None:
            await self._renew(path, held)
        elif (state := await self.move(path, taken)) is not None:
            held = self._held[path] = Held(state.until)
            held.task = asyncio.create_task(self._hold(path, held))

    async def _renew(self, path: str, held: Held) -> ConsumerState | None:
        """Renew our lease on a consumer. None: it is paused, deleted or another server's."""

        def renewed(state: ConsumerState) -> ConsumerState | None:
            if state.status != "active" or state.holder != self._me:
                return None
            until = self._clock.now() + LEASE_SECONDS
            return msgspec.structs.replace(state, until=until, problem=held.problem)

        state = await self.move(path, renewed)
        if state is not None:
            held.until = state.until
        return state

    async def _hold(self, path: str, held: Held) -> None:
        """Read a consumer as long as its row is ours."""
        reading: asyncio.Task[None] | None = None
        digest = ""
        try:
            while True:
                held.changed.clear()
                try:
                    state = await self._renew(path, held)
                    if state is None:
                        return
                    if state.digest != digest:
                        await _stopped(reading)
                        digest = state.digest
                        reading = asyncio.create_task(self._read(await self.spec(digest), held))
                except StoreError as error:
                    logger.warning("a consumer cannot be renewed: %s", error, extra={"path": path})
                    if self._clock.now() >= held.until:
                        return
                await heard(held.changed, RENEW_SECONDS)
        finally:
            await _stopped(reading)
            del self._held[path]
            await self._release(path)

    async def _release(self, path: str) -> None:
        try:
            if await self.move(path, lambda one: _free(one) if one.holder == self._me else None):
                self._triggers.announce()
        except NoetlError as error:
            logger.warning("a consumer is not given back: %s", error, extra={"path": path})

    # --- Reading ---

    async def _read(self, consumer: Consumer, held: Held) -> None:
        """Take message after message; if the source is lost, reach it again."""
        # The tools that it takes are loaded where something is read.
        from noetl.control.sources import Surroundings, opened

        around = Surroundings(
            self._keys.granted, self._resources(), self._messages, self._clock.now
        )
        pause = PAUSE_SECONDS
        while True:
            registered = self._triggers.registered
            try:
                async with opened(consumer, around) as source:
                    self._say(held, "")
                    pause = PAUSE_SECONDS
                    held.running = await self._open(consumer)
                    await self._take_all(consumer, held, source)
            except Exception as error:  # noqa: BLE001  it is said, and tried again
                said = str(error) or type(error).__name__
                if self._say(held, f"its source cannot be read: {said}"):
                    logger.warning(
                        "a consumer cannot read its source: %s", said, extra={"path": consumer.path}
                    )
            await heard(registered, pause)
            pause = min(2 * pause, PAUSE_MAX)

    async def _take_all(self, consumer: Consumer, held: Held, source: Source) -> None:
        forgot = float("-inf")
        while True:
            room = await self._room(consumer, held)
            batch = await source.next(min(room, BATCH))
            pause = PAUSE_SECONDS
            registered = self._triggers.registered
            while not await self._tried(consumer, held, batch):
                await heard(registered, pause)
                registered = self._triggers.registered
                pause = min(2 * pause, PAUSE_MAX)
            await source.done(batch)
            now = self._clock.now()
            if now - forgot > FORGET_SECONDS and not isinstance(consumer.source, FilesSource):
                forgot = now
                await self._messages.forget_old(consumer.path, before=now - KEPT_SECONDS)

    async def _room(self, consumer: Consumer, held: Held) -> int:
        """Wait until at least one more may be started. Returns how many may."""
        while len(held.running) >= consumer.max_running:
            held.freed.clear()
            if not await heard(held.freed, LOOK_SECONDS):
                self._say(held, FULL.format(consumer.max_running))
                # Others may have ended without our hearing of it.
                held.running = await self._open(consumer)
        if held.problem:
            self._say(held, "")
        return consumer.max_running - len(held.running)

    async def _open(self, consumer: Consumer) -> set[ExecutionId]:
        limit = consumer.max_running
        return set(await self._messages.open(consumer.path, limit=limit))

    def note_end(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        """An execution has ended here: there may be room for another."""
        if state.actor is not None and state.actor.kind == "consumer":
            held = self._held.get(state.actor.name)
            if held is not None:
                held.running.discard(execution_id)
                held.freed.set()

    async def _tried(self, consumer: Consumer, held: Held, batch: Sequence[Message]) -> bool:
        """Take these messages. Returns whether the outcome of each is stored."""
        messages = {one.id: one for one in batch}
        try:
            known = await self._messages.known(consumer.path, list(messages))
            new = [one for one in messages.values() if one.id not in known]
            done = await asyncio.gather(
                *(self._take(consumer, held, one) for one in new), return_exceptions=True
            )
            for problem in done:
                if problem is not None:
                    raise problem
        except NoetlError as error:
            if self._say(held, f"messages wait: {error}"):
                logger.warning("a consumer cannot go on: %s", error, extra={"path": consumer.path})
            return False
        self._say(held, "")
        return True

    async def _take(self, consumer: Consumer, held: Held, message: Message) -> None:
        """Do what a message is to do, or store why not, in one transaction with its id."""
        from noetl.control.sources import read

        now = self._clock.now()
        key = f"consumer/{consumer.path}/{message.id}"
        try:
            body, text = read(message, consumer.format)
            shown = {
                "path": consumer.path,
                "id": message.id,
                "time": moment(now),
                "body": body,
                "text": text,
                "headers": dict(message.headers),
                "subject": message.subject,
            }
            scope = scope_of("message", shown, now, key)
            if consumer.when is not None and not compile_condition(consumer.when).holds(scope):
                await self._note(consumer, message, "ignored", "`when` does not hold")
                return
            target = consumer.target
            if isinstance(target, SignalTarget):
                found = await self.signal(consumer.path, target, "message", scope, key)
                reason = "" if found else "no execution waits for it"
                outcome: MessageOutcome = "started" if found else "ignored"
                await self._note(consumer, message, outcome, reason)
                return
            workload = payload_of(target, "message", scope)
            await self._start(consumer, target.playbook, held, message, key, workload)
        except (BadRequest, EvaluationFailed) as error:
            await self._note(consumer, message, "refused", str(error))

    async def _start(
        self,
        consumer: Consumer,
        playbook: PlaybookRef,
        held: Held,
        message: Message,
        key: str,
        workload: dict[str, Any],
    ) -> None:
        given: list[ExecutionId] = []

        def stored(execution_id: ExecutionId) -> TriggerChange:
            # Before it can end.
            given.append(execution_id)
            held.running.add(execution_id)
            row = self._row_of(consumer, message, "started", "", execution_id)
            return TriggerChange(messages=(row,))

        try:
            await self.start(consumer.path, playbook, workload, key=key, trigger=stored)
        except NoetlError as error:
            held.running.difference_update(given)
            if not isinstance(error, Conflict):
                raise
            # Another server has taken it, if it is known now.
            if not await self._messages.known(consumer.path, [message.id]):
                raise
            return
        self._count("started")

    async def _note(
        self, consumer: Consumer, message: Message, outcome: MessageOutcome, reason: str
    ) -> None:
        row = self._row_of(consumer, message, outcome, reason, None)
        if await self._rows.change(TriggerChange(messages=(row,))):
            self._count(outcome)
            if outcome == "refused":
                logger.warning("a message is refused: %s", reason, extra={"path": consumer.path})

    def _row_of(
        self,
        consumer: Consumer,
        message: Message,
        outcome: MessageOutcome,
        reason: str,
        execution_id: ExecutionId | None,
    ) -> TriggerMessage:
        return TriggerMessage(
            path=consumer.path,
            id=message.id,
            at=self._clock.now(),
            outcome=outcome,
            reason=reason[:REASON_MAX],
            execution_id=execution_id,
        )

    def _say(self, held: Held, problem: str) -> bool:
        """Whether it is news. It is told in one line, whatever a database says."""
        problem = " ".join(problem.split())[:REASON_MAX]
        is_new = held.problem != problem
        if is_new:
            held.problem = problem
            held.changed.set()
        return is_new

    # --- What people do with consumers ---

    def changed(self, path: str) -> None:
        super().changed(path)
        if (held := self._held.get(path)) is not None:
            held.changed.set()


def _free(state: ConsumerState) -> ConsumerState:
    """No server reads it."""
    return msgspec.structs.replace(state, holder="", until=0.0)


async def _stopped(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
