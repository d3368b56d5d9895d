"""Loops: handing out iterations in chunks, and what their ends come to.

Sequential: one chunk with everything, one iteration at a time; after a crash it goes on behind
the last recorded one. Parallel: chunks sized so that workers stay busy and the last ones finish
together, never more than `max_in_flight` iterations at once.
"""

from __future__ import annotations

import math
from typing import Any

from noetl.engine.failing import error_from
from noetl.engine.reducing import ReducerConflict, reduced
from noetl.engine.running import command_for, fail_run
from noetl.engine.scope import server_scope
from noetl.engine.turn import Issue, Turn
from noetl.errors import EvaluationFailed
from noetl.model.commands import Chunk
from noetl.model.events import CommandIssued, CtxPatched, LoopDone, LoopStarted, StepDone
from noetl.model.ids import derive
from noetl.model.net import Loop, Values
from noetl.model.outcome import TaskError
from noetl.model.state import LoopState, Run

IN_FLIGHT_DEFAULT = 32
"""Iterations of a parallel loop at once, where the playbook does not say."""
CHUNK_MAX = 500
LANES = 2
"""Chunks of a loop that are out at the same time, so that a worker never waits for the next."""


class BadCollection(Exception):
    """What a loop should go over is nothing to go over."""


def start_loop(turn: Turn, run: Run) -> None:
    """Find out what to go over, and hand out the first iterations."""
    loop = turn.program.steps[run.step].step.loop
    assert loop is not None
    try:
        total, items = _collection(turn, run, loop)
    except EvaluationFailed as error:
        fail_run(turn, run.step_run_id, error_from(error))
        return
    except BadCollection as error:
        wrong = TaskError(kind="schema", code="bad_collection", message=str(error))
        fail_run(turn, run.step_run_id, wrong)
        return
    turn.record(
        LoopStarted(
            at=turn.at, step_run_id=run.step_run_id, step=run.step, total=total, items=items
        )
    )
    hand_out(turn, run)
    finish_if_over(turn, run)


def _collection(turn: Turn, run: Run, loop: Loop) -> tuple[int, Any]:
    if loop.range is not None:
        return _count(loop), None
    scope = server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        run.step,
        at=turn.at,
        seed=run.step_run_id,
        args=run.args,
    )
    found = turn.program.steps[run.step].items.render(scope, f"loop of step {run.step}")
    if isinstance(found, dict):
        found = [{"key": key, "value": value} for key, value in found.items()]
    if not isinstance(found, list):
        kind = "nothing" if found is None else type(found).__name__
        raise BadCollection(
            f'the loop of step "{run.step}" goes over a list or a mapping, but `in` is {kind}.'
            " Check the expression, or give it `| default([])`."
        )
    return len(found), found


def _count(loop: Loop) -> int:
    span = loop.range
    assert span is not None
    start, stop, step = span.start, span.stop, span.step
    if isinstance(start, str) or isinstance(stop, str) or isinstance(step, str):
        raise BadCollection("a range in a loop takes numbers; templates go into `in`.")
    return max(0, math.ceil((stop - start) / step))


def element(loop: Loop, index: int, chunk: Chunk) -> Any:
    """The element of one iteration."""
    if loop.range is not None:
        span = loop.range
        assert not isinstance(span.start, str)
        assert not isinstance(span.step, str)
        return span.start + index * span.step
    return chunk.items[index - chunk.start]


def hand_out(turn: Turn, run: Run) -> None:
    """Issue chunks while there are iterations left and room for them."""
    loop_state = run.loop
    loop = turn.program.steps[run.step].step.loop
    assert loop_state is not None
    assert loop is not None
    if turn.state.status == "PAUSED" or loop_state.stopping:
        return
    total = loop_state.total or 0
    lanes, size, concurrency = _shape(loop, total)
    while loop_state.given < total and len(loop_state.chunks) < lanes:
        start = loop_state.given
        stop = min(total, start + size)
        _issue_chunk(turn, run, start, stop, concurrency)


def _shape(loop: Loop, total: int) -> tuple[int, int, int]:
    """How many chunks at once, how large, and how many iterations of each at once."""
    if loop.mode == "sequential":
        return 1, max(1, total), 1
    limit = loop.max_in_flight
    in_flight = limit if isinstance(limit, int) else IN_FLIGHT_DEFAULT
    lanes = 1 if loop.placement == "local" else min(LANES, in_flight)
    concurrency = in_flight // lanes
    written = loop.batch_size
    if isinstance(written, int):
        return lanes, written, min(concurrency, written)
    size = max(concurrency, min(CHUNK_MAX, math.ceil(total / (lanes * 4))))
    return lanes, max(1, size), concurrency


def _issue_chunk(turn: Turn, run: Run, start: int, stop: int, concurrency: int) -> None:
    command_id = derive(run.step_run_id, "chunk", start)
    turn.record(
        CommandIssued(
            at=turn.at,
            command_id=command_id,
            step_run_id=run.step_run_id,
            start=start,
            stop=stop,
        )
    )
    chunk = chunk_of(run, start, stop, concurrency)
    turn.effect(Issue(command_for(turn, run, command_id, chunk=chunk)))


def chunk_of(run: Run, start: int, stop: int, concurrency: int) -> Chunk:
    """These iterations, less those that have ended already."""
    loop = run.loop
    assert loop is not None
    ended = [i for i in range(start, stop) if i in loop.results or i in loop.errors]
    waiting = [i for i in range(start, stop) if i in loop.suspended]
    return Chunk(
        start=start,
        stop=stop,
        items=loop.items[start:stop] if isinstance(loop.items, list) else loop.items,
        total=loop.total,
        concurrency=concurrency,
        skip=tuple(sorted({*ended, *waiting})),
    )


def concurrency_of(turn: Turn, run: Run) -> int:
    loop = turn.program.steps[run.step].step.loop
    assert loop is not None
    return _shape(loop, (run.loop.total or 0) if run.loop is not None else 0)[2]


def finish_if_over(turn: Turn, run: Run) -> None:
    """End the step when its last iteration has, or when a failure ends the loop."""
    loop_state = run.loop
    loop = turn.program.steps[run.step].step.loop
    assert loop_state is not None
    assert loop is not None
    failing = loop_state.failed > 0 and loop.on_error == "fail" and not _best_effort(turn, run)
    if loop_state.ended < (loop_state.total or 0) and not failing:
        return
    try:
        values = reduced(loop.reduce, loop_state.patches)
    except ReducerConflict as error:
        wrong = TaskError(kind="client_error", code="ctx_conflict", message=str(error))
        _record_done(turn, run, loop_state)
        fail_run(turn, run.step_run_id, wrong)
        return
    _finish(turn, run, loop_state, values, loop)


def _finish(turn: Turn, run: Run, loop_state: LoopState, values: Values, loop: Loop) -> None:
    if values:
        turn.record(
            CtxPatched(at=turn.at, values=values, step_run_id=run.step_run_id, step=run.step)
        )
    _record_done(turn, run, loop_state)
    result = _result(loop_state)
    if loop_state.failed and loop.on_error == "fail":
        first = min(loop_state.errors)
        cause = loop_state.errors[first]
        error = TaskError(
            kind=cause.kind,
            code=cause.code,
            message=f"iteration {first} failed: {cause.message}",
            retryable=cause.retryable,
            status=cause.status,
        )
        fail_run(turn, run.step_run_id, error, result)
        return
    turn.close_commands(run.step_run_id)
    turn.record(StepDone(at=turn.at, step_run_id=run.step_run_id, step=run.step, result=result))


def _best_effort(turn: Turn, run: Run) -> bool:
    """The step lets its other iterations finish before it fails."""
    return turn.program.steps[run.step].step.failure_mode == "best_effort"


def _record_done(turn: Turn, run: Run, loop_state: LoopState) -> None:
    turn.record(
        LoopDone(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            total=loop_state.total or 0,
            success=loop_state.success,
            failed=loop_state.failed,
        )
    )


def _result(loop_state: LoopState) -> Values:
    total = loop_state.total or 0
    return {
        "results": [loop_state.results.get(index) for index in range(total)],
        "stats": {"total": total, "success": loop_state.success, "failed": loop_state.failed},
    }
