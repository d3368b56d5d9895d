"""The fold of a loop's facts: a part of `engine.evolve`, and under the same rule.

Each end of an iteration costs the same however many there are. Results gather in the state only
until a segment of them is put away.
"""

from __future__ import annotations

from typing import Any

from noetl.model import refs
from noetl.model.events import (
    CommandClosed,
    CommandIssued,
    CommandRequeued,
    FrameClaimed,
    IterationDone,
    IterationFailed,
    LoopDone,
    LoopStarted,
    ResultsKept,
    StepWaiting,
)
from noetl.model.outcome import LOOP_ERRORS_MAX, TaskError, loop_error
from noetl.model.state import ExecutionState, LoopState, StepSummary

REASONS_MAX = 20
REASON_MAX = 200
DRY = -1
"""Stands for the first iteration of a frame that found nothing left."""


def fold_loop(
    state: ExecutionState, fact: LoopStarted | FrameClaimed | ResultsKept | LoopDone
) -> None:
    run = state.runs[fact.step_run_id]
    summary = state.steps[fact.step]
    if isinstance(fact, LoopStarted):
        run.loop = LoopState(
            total=fact.total,
            items=fact.items,
            begin=fact.begin,
            by=fact.by,
            in_flight=fact.in_flight,
            lanes=fact.lanes,
            size=fact.size,
            segment=fact.segment,
            max_pending=fact.max_pending,
        )
        summary.loop_total, summary.loop_success, summary.loop_failed = fact.total, 0, 0
        summary.loop_errors = {}
        return
    loop = run.loop
    assert loop is not None
    match fact:
        case FrameClaimed():
            _claimed(loop, fact)
            summary.loop_total = loop.given
        case ResultsKept():
            _put_away(loop, fact)
        case LoopDone():
            loop.stopping = True


def iteration_done(state: ExecutionState, fact: IterationDone) -> None:
    loop = state.runs[fact.step_run_id].loop
    assert loop is not None
    loop.success += 1
    state.steps[fact.step].loop_success = loop.success
    _ended(loop, fact, fact.result)


def iteration_failed(state: ExecutionState, fact: IterationFailed) -> None:
    loop = state.runs[fact.step_run_id].loop
    assert loop is not None
    loop.failed += 1
    state.steps[fact.step].loop_failed = loop.failed
    _ended(loop, fact, None)
    if len(loop.errors) < LOOP_ERRORS_MAX:
        loop.errors.append(loop_error(fact.iteration, fact.error))
    _count_reason(state.steps[fact.step], fact.error)
    if loop.first_error is None or fact.iteration < loop.first_error[0]:
        loop.first_error = (fact.iteration, fact.error)


def _count_reason(summary: StepSummary, error: TaskError) -> None:
    """Failed iterations by reason, for people: the first line of each message."""
    reason = error.message.strip().partition("\n")[0][:REASON_MAX]
    if reason in summary.loop_errors or len(summary.loop_errors) < REASONS_MAX:
        summary.loop_errors[reason] = summary.loop_errors.get(reason, 0) + 1


def _ended(loop: LoopState, fact: IterationDone | IterationFailed, result: Any) -> None:
    iteration = fact.iteration
    loop.results[iteration] = result
    loop.weight += refs.weight(result)
    number = iteration // loop.segment
    loop.filled[number] = loop.filled.get(number, 0) + 1
    if iteration in loop.suspended:
        del loop.suspended[iteration]
    elif loop.claimed:
        _no_longer_claimed(loop, iteration)
    if fact.ctx:
        loop.patches[iteration] = fact.ctx


def _claimed(loop: LoopState, fact: FrameClaimed) -> None:
    loop.frames[fact.command_id] = loop.given if fact.iterations else DRY
    loop.given += fact.iterations
    if loop.max_pending is not None:
        loop.claimed[fact.command_id] = fact.iterations


def _no_longer_claimed(loop: LoopState, iteration: int) -> None:
    """An element of an open frame has ended, or waits: elements are numbered frame by frame."""
    firsts = {command: first for command, first in loop.frames.items() if first is not None}
    ahead = [command for command in loop.claimed if firsts.get(command, DRY) <= iteration]
    if ahead:
        command = max(ahead, key=lambda one: firsts.get(one, DRY))
        loop.claimed[command] = max(0, loop.claimed[command] - 1)


def _put_away(loop: LoopState, fact: ResultsKept) -> None:
    loop.segments[fact.segment] = fact.checksum
    loop.kept += fact.size
    loop.filled.pop(fact.segment, None)
    first = fact.segment * loop.segment
    for iteration in range(first, first + loop.segment):
        if iteration in loop.results:
            loop.weight -= refs.weight(loop.results.pop(iteration))


def suspended(loop: LoopState, fact: StepWaiting, iteration: int) -> None:
    """A waiting iteration is still in flight: its chunk runs one less beside it."""
    if loop.claimed and iteration not in loop.suspended:
        _no_longer_claimed(loop, iteration)
    loop.suspended[iteration] = fact.progress
    loop.suspends = True
    if fact.command_id in loop.widths:
        loop.widths[fact.command_id] = max(0, loop.widths[fact.command_id] - 1)


def chunk_issued(loop: LoopState, fact: CommandIssued) -> None:
    if fact.iteration is not None:
        loop.alone[fact.command_id] = fact.iteration
        loop.woken.remove(fact.iteration)
        return
    if fact.start is None or fact.stop is None:
        loop.frames[fact.command_id] = None
        return
    loop.chunks[fact.command_id] = (fact.start, fact.stop)
    loop.widths[fact.command_id] = fact.width
    if fact.start >= loop.given:
        loop.given = fact.stop
        return
    # A part of what came back.
    index = next(i for i, (start, _) in enumerate(loop.returned) if start == fact.start)
    _, stop = loop.returned.pop(index)
    if fact.stop < stop:
        loop.returned.insert(index, (fact.stop, stop))


def chunk_moved(loop: LoopState, fact: CommandRequeued) -> None:
    """The work of a lost command goes on under a new one; a frame will claim anew."""
    if fact.lost in loop.frames:
        loop.claimed.pop(fact.lost, None)
        del loop.frames[fact.lost]
        loop.frames[fact.command_id] = None
    for held in (loop.chunks, loop.widths, loop.alone):
        _rename(held, fact.lost, fact.command_id)
    if fact.start is not None and fact.stop is not None:
        _, stop = loop.chunks[fact.command_id]
        loop.chunks[fact.command_id] = (fact.start, fact.stop)
        width = loop.widths[fact.command_id]
        loop.widths[fact.command_id] = min(width, fact.stop - fact.start)
        loop.returned.append((fact.stop, stop))
        loop.returned.sort()


def _rename(held: dict[str, Any], old: str, new: str) -> None:
    if old in held:
        held[new] = held.pop(old)


def chunk_closed(loop: LoopState, fact: CommandClosed) -> None:
    loop.claimed.pop(fact.command_id, None)
    if loop.frames.pop(fact.command_id, None) == DRY:
        loop.dry += 1
    loop.alone.pop(fact.command_id, None)
    loop.widths.pop(fact.command_id, None)
    chunk = loop.chunks.pop(fact.command_id, None)
    if chunk is not None and fact.rest is not None:
        loop.returned.append((fact.rest, chunk[1]))
        loop.returned.sort()
