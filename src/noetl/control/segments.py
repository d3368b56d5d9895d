"""Lists that loops keep in segments, as the one body that a reference to such a list stands for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from noetl.control.live import body_of
from noetl.control.records import events
from noetl.errors import Corrupted
from noetl.model import refs
from noetl.model.events import ExecutionRequested, LoopStarted, StepDone, StepFailed, decode
from noetl.model.ids import ExecutionId
from noetl.store.log import mark

if TYPE_CHECKING:
    from noetl.store.bodies import Bodies
    from noetl.store.log import Log

TYPES = ("playbook.execution.requested", "loop.started", "step.done", "step.failed")
"""Events that refer to such lists, after the one that has the seal of the references."""


async def find(log: Log, execution_id: ExecutionId, key: str) -> refs.About | None:
    """The reference with this key to a list in segments, if the log of the execution has it."""
    seal, written = "", mark(key=key)
    async for row in events(log, execution_id, types=TYPES):
        if row.seq > 1 and written not in row.body:
            continue
        fact = decode(row.body)
        if isinstance(fact, ExecutionRequested):
            seal = fact.seal
        held = fact.items if isinstance(fact, LoopStarted) else None
        if isinstance(fact, StepDone | StepFailed):
            held = fact.result
        for one in refs.held_by(held, seal):
            what = refs.about(one, seal)
            if what is not None and what.key == key and what.segments is not None:
                return what
    return None


async def pieces(
    bodies: Bodies, execution_id: ExecutionId, what: refs.About
) -> AsyncIterator[bytes]:
    """The list as JSON, with one segment in memory at a time."""
    cut = what.segments
    assert cut is not None
    kept = {number for begin, end in cut.kept for number in range(begin, end)}
    before = b"["
    for number in range(cut.count):
        body = b"[%b]" % b",".join([b"null"] * min(cut.width, cut.length - number * cut.width))
        if number in kept:
            body = await body_of(bodies, execution_id, refs.segment_key(what.key, number))
        if not body.startswith(b"[") or not body.endswith(b"]"):
            raise Corrupted(f"segment {number} of the list {what.key} is not a list.")
        yield before + body[1:-1]
        before = b","
    yield b"]"
