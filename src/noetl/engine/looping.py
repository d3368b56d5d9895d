"""Loops: handing out iterations in chunks, and what their ends come to.

An iteration is in flight from its beginning to its end, also while it waits for a moment or a
child execution. Sequential: one in flight. Parallel: chunks sized so that workers stay busy and
the last ones finish together, never more than `max_in_flight` iterations at once. A chunk whose
iterations wait gives back those it has not begun.
"""

from __future__ import annotations

import math
from typing import Any

from noetl.engine.failing import error_from
from noetl.engine.gathering import put_away_full, put_away_rest, results_of
from noetl.engine.listening import complete_run, fail_run
from noetl.engine.loop_start import BadCollection, started
from noetl.engine.reducing import ReducerConflict, reduced
from noetl.engine.running import command_for
from noetl.engine.turn import EndLoop, Issue, Turn
from noetl.errors import EvaluationFailed
from noetl.model.commands import Chunk
from noetl.model.events import CommandIssued, CtxPatched, LoopDone
from noetl.model.ids import CommandId, derive
from noetl.model.net import Loop, Values
from noetl.model.outcome import TaskError
from noetl.model.state import LoopState, Run


def start_loop(turn: Turn, run: Run) -> None:
    """Find out what to go over, and hand out the first iterations."""
    loop = _loop_of(turn, run)
    try:
        beginning = started(turn, run, loop)
    except EvaluationFailed as error:
        fail_run(turn, run.step_run_id, error_from(error))
        return
    except BadCollection as error:
        wrong = TaskError(kind="schema", code="bad_collection", message=str(error))
        fail_run(turn, run.step_run_id, wrong)
        return
    turn.record(beginning)
    go_on(turn, run)


def _loop_of(turn: Turn, run: Run) -> Loop:
    loop = turn.program.steps[run.step].step.loop
    assert loop is not None
    return loop


def element(loop: Loop, index: int, chunk: Chunk) -> Any:
    """The element of one iteration."""
    if loop.range is not None:
        return chunk.begin + index * chunk.by
    if chunk.items is None:
        return None  # a cursor's row goes with the progress of the iteration that waits
    return chunk.items[index - chunk.start]


def go_on(turn: Turn, run: Run) -> None:
    """End the loop if it is over, else hand out what there is."""
    assert run.loop is not None
    if run.loop.stopping:
        return
    if not _is_over(turn, run):
        put_away_full(turn, run)
        hand_out(turn, run)
    elif put_away_rest(turn, run):
        turn.effect(EndLoop(run.step_run_id, _result(turn, run)))
    else:
        conclude(turn, run)


def hand_out(turn: Turn, run: Run) -> None:
    """Issue what may go on, and chunks while there are iterations left and room for them."""
    loop = run.loop
    assert loop is not None
    if turn.state.status == "PAUSED" or loop.stopping:
        return
    for iteration in list(loop.woken):
        _issue_alone(turn, run, iteration)
    if loop.total is None:
        _issue_frames(turn, run, loop)
        return
    while len(loop.chunks) < loop.lanes:
        room = loop.in_flight - sum(loop.widths.values()) - len(loop.suspended)
        following = _following(loop)
        if room < 1 or following is None:
            return
        start, end = following
        others = loop.lanes - len(loop.chunks) - 1
        width = math.ceil(room / (1 + min(others, _chunks_after(loop, start))))
        # Where iterations are likely to wait, a chunk would soon give back the rest.
        size = width if loop.suspends else loop.size
        stop = min(end, start + size)
        _issue_chunk(turn, run, start, stop, min(width, stop - start))


def _issue_frames(turn: Turn, run: Run, loop: LoopState) -> None:
    """A cursor: as many frames as may be out, until each of them has found nothing left."""
    while len(loop.frames) < loop.lanes - loop.dry and loop.may_claim:
        command_id = derive(run.step_run_id, "frame", len(loop.frames), turn.state.seq)
        turn.record(CommandIssued(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
        issue_part(turn, run, command_id)


def _chunks_after(loop: LoopState, start: int) -> int:
    """How many more chunks there will be to share the room with, beside the one from `start`."""
    left = (loop.total or 0) - max(loop.given, start) + sum(b - a for a, b in loop.returned)
    return max(0, math.ceil(left / loop.size) - 1)


def _following(loop: LoopState) -> tuple[int, int] | None:
    """Iterations that nobody has: those that came back first."""
    if loop.returned:
        return loop.returned[0]
    total = loop.total or 0
    return (loop.given, total) if loop.given < total else None


def _issue_alone(turn: Turn, run: Run, iteration: int) -> None:
    command_id = derive(run.step_run_id, "iteration", iteration, turn.state.seq)
    turn.record(
        CommandIssued(
            at=turn.at, command_id=command_id, step_run_id=run.step_run_id, iteration=iteration
        )
    )
    issue_part(turn, run, command_id)


def _issue_chunk(turn: Turn, run: Run, start: int, stop: int, width: int) -> None:
    command_id = derive(run.step_run_id, "chunk", start, turn.state.seq)
    turn.record(
        CommandIssued(
            at=turn.at,
            command_id=command_id,
            step_run_id=run.step_run_id,
            start=start,
            stop=stop,
            width=width,
        )
    )
    issue_part(turn, run, command_id)


def issue_part(turn: Turn, run: Run, command_id: CommandId) -> None:
    """Send out a command of a loop: a chunk, or one iteration that goes on by itself."""
    loop = run.loop
    assert loop is not None
    alone = loop.alone.get(command_id)
    if command_id in loop.frames:
        chunk = Chunk(start=0, stop=0, claims=True)
        progress = None
    elif alone is None:
        start, stop = loop.chunks[command_id]
        chunk = chunk_of(loop, start, stop, loop.widths[command_id])
        progress = None
    else:
        chunk = chunk_of(loop, alone, alone + 1, 1)
        progress = loop.suspended[alone]
    command = command_for(turn, run, command_id, chunk=chunk, iteration=alone, progress=progress)
    turn.effect(Issue(command))


def chunk_of(loop: LoopState, start: int, stop: int, width: int) -> Chunk:
    """These iterations, less those that have ended or wait."""
    return Chunk(
        start=start,
        stop=stop,
        items=loop.items[start:stop] if isinstance(loop.items, list) else loop.items,
        total=loop.total,
        begin=loop.begin,
        by=loop.by,
        concurrency=width,
        skip=tuple(index for index in range(start, stop) if not is_open(loop, index)),
    )


def is_open(loop: LoopState, iteration: int) -> bool:
    """Whether the iteration has neither ended nor is waiting."""
    return not (has_ended(loop, iteration) or iteration in loop.suspended)


def has_ended(loop: LoopState, iteration: int) -> bool:
    return iteration in loop.results or iteration // loop.segment in loop.segments


def rest_of(loop: LoopState, command_id: CommandId) -> int | None:
    """The first iteration of a chunk that is still to be done, if there is one."""
    if command_id not in loop.chunks:
        return None
    start, stop = loop.chunks[command_id]
    return next((index for index in range(start, stop) if is_open(loop, index)), None)


def first_of(loop: LoopState, command_id: CommandId) -> int | None:
    """The iteration that a command of the loop would begin with."""
    return loop.alone.get(command_id, rest_of(loop, command_id))


def half_of(loop: LoopState, command_id: CommandId) -> tuple[int, int] | None:
    """The first half of what is still to be done of a chunk, if it can be halved."""
    start = rest_of(loop, command_id)
    if start is None:
        return None
    _, stop = loop.chunks[command_id]
    return (start, (start + stop) // 2) if stop - start > 1 else None


def _is_over(turn: Turn, run: Run) -> bool:
    """Whether the last iteration has ended, or a failure or a rule's `next` ends the loop."""
    state = run.loop
    assert state is not None
    # best_effort: the step lets its other iterations finish before it fails.
    best_effort = turn.program.steps[run.step].step.failure_mode == "best_effort"
    if run.next is not None or (_fails(turn, run) and not best_effort):
        return True
    if state.total is None:
        return state.dry >= state.lanes and not (state.frames or state.suspended)
    return state.ended >= state.total


def _fails(turn: Turn, run: Run) -> bool:
    assert run.loop is not None
    return run.loop.failed > 0 and _loop_of(turn, run).on_error == "fail"


def conclude(turn: Turn, run: Run) -> None:
    """End the step of a loop that is over."""
    state = run.loop
    assert state is not None
    if state.stopping or not _is_over(turn, run):
        return
    error = _first_error(state) if _fails(turn, run) else None
    values: Values = {}
    try:
        values = reduced(_loop_of(turn, run).reduce, state.patches, turn.state.ctx)
    except ReducerConflict as conflict:
        # What went wrong first is the failed iteration, if there is one.
        error = error or TaskError(kind="client_error", code="ctx_conflict", message=str(conflict))
    if values:
        turn.record(
            CtxPatched(at=turn.at, values=values, step_run_id=run.step_run_id, step=run.step)
        )
    turn.record(LoopDone(at=turn.at, step_run_id=run.step_run_id, step=run.step, **_stats(state)))
    result = _result(turn, run)
    if error is not None:
        fail_run(turn, run.step_run_id, error, result)
    else:
        complete_run(turn, run, result)


def _result(turn: Turn, run: Run) -> Values:
    """What a loop yields."""
    assert run.loop is not None
    stats = _stats(run.loop)
    errors = sorted(run.loop.errors, key=lambda one: one["index"])
    result = {"results": results_of(turn, run), "stats": stats}
    return {**result, "errors": errors} if errors else result


def _stats(state: LoopState) -> dict[str, int]:
    total = state.ended if state.total is None else state.total
    return {"total": total, "success": state.success, "failed": state.failed}


def _first_error(state: LoopState) -> TaskError:
    assert state.first_error is not None
    first, cause = state.first_error
    return TaskError(
        kind=cause.kind,
        code=cause.code,
        message=f"iteration {first} failed: {cause.message}",
        retryable=cause.retryable,
        status=cause.status,
        details=cause.details,
    )
