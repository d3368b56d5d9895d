"""The past of an execution: its facts one by one, and its state at any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from noetl.engine.evolve import evolve
from noetl.errors import NotFound
from noetl.model.events import Event, decode
from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState

if TYPE_CHECKING:
    from noetl.store.base import Store

PAGE = 1000


async def facts(
    store: Store, execution_id: ExecutionId, *, upto: int | None = None, after: int = 0
) -> AsyncIterator[tuple[int, Event]]:
    """The facts of an execution with their numbers, in order, up to and with `upto`.

    Raises NotFound for an event that is not there.
    """
    heads = await store.heads([execution_id])
    if execution_id not in heads:
        raise NotFound(f"there is no execution {execution_id}.")
    if upto is not None and not 1 <= upto <= heads[execution_id]:
        raise NotFound(
            f"execution {execution_id} has no event {upto}: its events are 1 to"
            f" {heads[execution_id]}. `noetl executions events {execution_id}` lists them."
        )
    last = heads[execution_id] if upto is None else upto
    while rows := await store.events(execution_id, after=after, limit=PAGE):
        for row in rows:
            if row.seq > last:
                return
            yield row.seq, decode(row.body)
        after = rows[-1].seq


async def state_at(store: Store, execution_id: ExecutionId, seq: int | None) -> ExecutionState:
    """The state after an event; after the last one if none is named."""
    state = ExecutionState()
    async for _, fact in facts(store, execution_id, upto=seq):
        evolve(state, fact)
    return state
