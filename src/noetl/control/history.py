"""The past of an execution: its facts one by one, and its state at any of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from noetl.control.live import decode_state
from noetl.control.records import PAGE, events, no_execution
from noetl.engine.evolve import evolve
from noetl.errors import NotFound
from noetl.model import refs
from noetl.model.events import Event, decode
from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState

if TYPE_CHECKING:
    from noetl.store.log import EventRow, Log

CHECKPOINT_EVERY = 5000
KEPT_BYTES = 128 << 20
"""Checkpoints of all executions together; those that were not looked at for longest go first."""
STRIDE = 500
"""A moment this many events after the last checkpoint is kept as one."""


async def facts(
    log: Log, execution_id: ExecutionId, *, upto: int | None = None
) -> AsyncIterator[tuple[int, Event]]:
    """The facts of an execution with their numbers, in order, up to and with `upto`.

    Raises NotFound for an event that is not there.
    """
    end = await last_seq(log, execution_id, upto)
    last = end if upto is None else upto
    async for row in events(log, execution_id):
        if row.seq > last:
            return
        yield row.seq, decode(row.body)


async def last_seq(log: Log, execution_id: ExecutionId, seq: int | None = None) -> int:
    """The last event there is. Raises NotFound, also for an event that is not there."""
    heads = await log.heads([execution_id])
    if execution_id not in heads:
        raise no_execution(execution_id)
    if seq is not None and not 1 <= seq <= heads[execution_id]:
        raise NotFound(
            f"execution {execution_id} has no event {seq}: its events are 1 to"
            f" {heads[execution_id]}. `noetl executions events {execution_id}` lists them."
        )
    return heads[execution_id]


class Moment(NamedTuple):
    """An execution as it was after one of its events."""

    state: ExecutionState
    seq: int
    event: EventRow
    last_seq: int


class Moments:
    """States of executions at any of their events. The first look at an execution folds its log;
    checkpoints on the way make the next looks short."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: OrderedDict[ExecutionId, dict[int, bytes]] = OrderedDict()
        self._size = 0
        self._long = asyncio.Lock()

    async def at(self, execution_id: ExecutionId, seq: int | None = None) -> Moment:
        """The state after an event; after the last one if none is named. Raises NotFound.

        Long logs are read one at a time: a slider that is dragged over a log for the first time
        asks for many moments at once, and the checkpoints of the first answer shorten the others.
        """
        last = await last_seq(self._log, execution_id, seq)
        wanted = last if seq is None else seq
        if wanted - self._nearest(execution_id, wanted) <= CHECKPOINT_EVERY:
            return await self._at(execution_id, wanted, last)
        async with self._long:
            return await self._at(execution_id, wanted, last)

    def _nearest(self, execution_id: ExecutionId, wanted: int) -> int:
        """The last checkpoint before an event; 0 if there is none."""
        kept = self._kept.get(execution_id, ())
        return max((one for one in kept if one < wanted), default=0)

    async def _at(self, execution_id: ExecutionId, wanted: int, last: int) -> Moment:
        kept = self._kept.setdefault(execution_id, {})
        self._kept.move_to_end(execution_id)
        begin = self._nearest(execution_id, wanted)
        state = decode_state(kept[begin]) if begin else ExecutionState()
        rows: list[EventRow] = []
        while state.seq < wanted:
            room = min(PAGE, wanted - state.seq)
            rows = await self._log.events(execution_id, after=state.seq, limit=room)
            if not rows:
                raise no_execution(execution_id)  # It was just removed.
            for row in rows:
                evolve(state, decode(row.body))
                if state.seq % CHECKPOINT_EVERY == 0:
                    self._keep(execution_id, state)
        if state.seq - begin > STRIDE:
            self._keep(execution_id, state)
        return Moment(state, wanted, rows[-1], last)

    async def end(self, execution_id: ExecutionId, state: ExecutionState) -> Moment:
        """The last moment of an execution that has ended with this state: nothing is folded."""
        rows = await self._log.events(execution_id, after=state.seq - 1, limit=1)
        if not rows:
            raise no_execution(execution_id)  # It was just removed.
        return Moment(state, state.seq, rows[0], state.seq)

    def _keep(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        kept = self._kept.setdefault(execution_id, {})
        self._kept.move_to_end(execution_id)
        if state.seq not in kept:
            kept[state.seq] = refs.encode(state)
            self._size += len(kept[state.seq])
        while self._size > KEPT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size -= sum(len(body) for body in dropped.values())
        if self._size > KEPT_BYTES:
            # One execution with large states: every other checkpoint of it goes.
            for seq in sorted(kept)[::2]:
                self._size -= len(kept.pop(seq))
