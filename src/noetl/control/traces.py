"""Roots of traces: the span of each execution that ends, which the server that stores the end sends
to a collector. None of them is lost with a server.

A server that traces keeps one row that says up to when it has sent the spans of all ends that it
stored. It writes the row before it stores any end, renews it every few seconds and removes it when
it stops; an execution costs nothing more. A row that is not renewed was left by a server that died:
the server that finds it sends the spans of all ends since then, and removes it. What was sent
before is then sent again under the same id, by which a collector knows it.
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from noetl.control.clock import Clock
from noetl.control.live import fold
from noetl.control.programs import Programs
from noetl.engine.program import Program
from noetl.errors import Corrupted, NotFound, StoreError
from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState
from noetl.model.triggers import TriggerChange, TriggerRow
from noetl.store.log import Log
from noetl.store.records import Records
from noetl.store.triggers import Triggers

logger = logging.getLogger(__name__)

PATH, KIND = "noetl/traces", "Trace"
RENEW_SECONDS = 10.0
GONE_SECONDS = 45.0
"""A row that was not renewed for so long was left by a server that died."""
STORED_SECONDS = 30.0
"""An end is stored no later than this after it was decided."""
PAGE = 500
SENT_EVERY = 0.2


class Sender(Protocol):
    """Sends spans, or drops those that no collector takes."""

    taken: int
    """How many it was given."""
    done: int
    """How many of them were sent or dropped."""

    def execution(
        self, execution_id: ExecutionId, state: ExecutionState, program: Program | None
    ) -> None:
        """Send the span of an execution that has ended, if it is traced."""


class Mark(msgspec.Struct, frozen=True):
    """What the row of a server says."""

    until: float
    """The span of whatever it stored as ended before is sent."""
    seen_at: float


class Traces:
    """The spans of executions that end at this server, and those that dead servers left behind."""

    def __init__(
        self,
        log: Log,
        records: Records,
        rows: Triggers,
        programs: Programs,
        clock: Clock,
        sender: Sender,
        name: str,
        gone_seconds: float = GONE_SECONDS,
    ) -> None:
        self._log = log
        self._records = records
        self._rows = rows
        self._programs = programs
        self._clock = clock
        self._sender = sender
        self._gone_seconds = gone_seconds
        now = clock.now()
        self._row = TriggerRow(path=PATH, key=name, kind=KIND)
        self._until = now - STORED_SECONDS
        self._given = now, 0
        """A moment, and how many spans the sender had been given then."""

    def tell(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        """An execution has ended with what was just stored."""
        self._sender.execution(execution_id, state, self._programs.known(state.digest))

    async def run(self) -> None:
        """Renew the row, and look for those of dead servers, for ever."""
        while True:
            try:
                await self._look()
                await self._clock.sleep(RENEW_SECONDS)
                await self.renew()
            except StoreError as error:
                logger.warning("how far traces were sent could not be stored: %s", error)
                await self._clock.sleep(RENEW_SECONDS)

    async def renew(self) -> None:
        """Store how far we have come."""
        now = self._clock.now()
        moment, count = self._given
        if self._sender.done >= count:
            self._until = moment - STORED_SECONDS
            self._given = now, self._sender.taken
        state = msgspec.json.encode(Mark(self._until, now))
        row = msgspec.structs.replace(self._row, state=state)
        if not await self._rows.change(TriggerChange(row=row)):
            # Another server took this one for dead, and has sent its spans until then.
            row = msgspec.structs.replace(row, revision=0)
            await self._rows.change(TriggerChange(row=row))
        self._row = msgspec.structs.replace(row, revision=row.revision + 1)

    async def leave(self) -> None:
        """Everything is sent, or dropped."""
        await self._rows.change(TriggerChange(row=self._row, gone=True))

    # --- What others left behind ---

    async def _look(self) -> None:
        for row in await self._rows.of_kind(KIND):
            mark = msgspec.json.decode(row.state, type=Mark)
            is_over = mark.seen_at + self._gone_seconds < self._clock.now()
            if row.key != self._row.key and is_over:
                await self._take_over(row, mark)

    async def _take_over(self, row: TriggerRow, mark: Mark) -> None:
        """Send the spans of what ended while its server was there. The row stays until then."""
        after: tuple[float, ExecutionId] = (mark.until, "")
        before = mark.seen_at + GONE_SECONDS
        while page := await self._records.ended(after=after, before=before, limit=PAGE):
            for _, execution_id in page:
                await self._send(execution_id)
            after = page[-1]
            count = self._sender.taken
            while self._sender.done < count:
                await self._clock.sleep(SENT_EVERY)
        await self._rows.change(TriggerChange(row=row, gone=True))
        logger.info("sent the traces that a server left behind", extra={"server": row.key})

    async def _send(self, execution_id: ExecutionId) -> None:
        try:
            loaded = await self._log.load(execution_id)
        except Corrupted as error:
            logger.warning("the root of a trace is not sent: %s", error)
            return
        if loaded is None:
            return  # It was deleted.
        state = fold(loaded)
        try:
            program = await self._programs.by_digest(state.digest)
        except NotFound:
            program = None
        self._sender.execution(execution_id, state, program)
