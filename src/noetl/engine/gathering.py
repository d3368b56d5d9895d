"""Elements and results of loops that are too many for an event: kept in segments.

The engine decides what is kept and under which key; the shell writes it in the transaction that
records it. Whatever the state still holds of a running loop is bounded, however long the loop.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from noetl.engine.turn import Keep, Turn
from noetl.model import refs
from noetl.model.events import ResultsKept
from noetl.model.ids import derive
from noetl.model.state import LoopState, Run

SEGMENT = 100
"""Results to a segment. One of them is at most as large as an event may be."""
SEGMENT_BYTES = 256 * 1024
"""Elements are put into segments of about this size."""
NULL_BYTES = 5
"""What an iteration that never ran adds to the list of results: `null,`."""


def kept_elements(turn: Turn, run: Run, items: list[Any]) -> Any:
    """The elements as an event may hold them: themselves, or a reference to their segments."""
    size = len(refs.encode(items))
    if size <= refs.INLINE_MAX:
        return items
    key = derive(run.step_run_id, "items")
    width = max(1, SEGMENT_BYTES * len(items) // size)
    whole = sha256()
    for number, start in enumerate(range(0, len(items), width)):
        body = refs.encode(items[start : start + width])
        whole.update(sha256(body).digest())
        turn.effect(Keep(refs.segment_key(key, number), body))
    return refs.segmented(
        turn.execution_id,
        key,
        length=len(items),
        width=width,
        kept=range(-(-len(items) // width)),
        size=size,
        checksum=whole.hexdigest(),
        seal=turn.state.seal,
    )


def put_away_full(turn: Turn, run: Run) -> None:
    """Keep every segment whose iterations have all ended, once they are too much to hold."""
    loop = run.loop
    assert loop is not None
    if not loop.segments and loop.weight <= refs.INLINE_MAX:
        return
    for number in [found for found, ended in loop.filled.items() if ended == _width(loop, found)]:
        _put_away(turn, run, loop, number)


def put_away_rest(turn: Turn, run: Run) -> bool:
    """The loop is over: keep what is left, unless all of it fits into an event."""
    loop = run.loop
    assert loop is not None
    never_ran = length_of(loop) - loop.ended
    if not loop.segments and loop.weight + NULL_BYTES * never_ran <= refs.INLINE_MAX:
        return False
    for number in sorted(loop.filled):
        _put_away(turn, run, loop, number)
    return True


def _width(loop: LoopState, number: int) -> int:
    """How many iterations a segment has: the last one may have fewer."""
    if loop.total is None:
        return loop.segment
    return min(loop.segment, loop.total - number * loop.segment)


def _put_away(turn: Turn, run: Run, loop: LoopState, number: int) -> None:
    first = number * loop.segment
    body = refs.encode([loop.results.get(first + index) for index in range(_width(loop, number))])
    turn.effect(Keep(refs.segment_key(_results_key(run), number), body))
    turn.record(
        ResultsKept(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            segment=number,
            size=len(body),
            checksum=sha256(body).hexdigest(),
        )
    )


def length_of(loop: LoopState) -> int:
    """How many results there are to be, counting those that never came."""
    return loop.given if loop.total is None else loop.total


def results_of(turn: Turn, run: Run) -> Any:
    """The results in order: themselves, or a reference to where they are kept."""
    loop = run.loop
    assert loop is not None
    total = length_of(loop)
    if not loop.segments:
        return [loop.results.get(index) for index in range(total)]
    numbers = sorted(loop.segments)
    whole = sha256()
    for number in numbers:
        whole.update(bytes.fromhex(loop.segments[number]))
    return refs.segmented(
        turn.execution_id,
        _results_key(run),
        length=total,
        width=loop.segment,
        kept=numbers,
        size=loop.kept,
        checksum=whole.hexdigest(),
        seal=turn.state.seal,
    )


def _results_key(run: Run) -> str:
    return derive(run.step_run_id, "results")
