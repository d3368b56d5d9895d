"""Loops: handing out iterations in chunks, and what their ends come to.

An iteration is in flight from its beginning to its end, also while it waits for a moment or a
child execution. Sequential: one in flight. Parallel: chunks sized so that workers stay busy and
the last ones finish together, never more than `max_in_flight` iterations at once. A chunk whose
iterations wait gives back those it has not begun.
"""

from __future__ import annotations

import math
from typing import Any

from noetl.engine.ending import complete_run, fail_run
from noetl.engine.failing import error_from
from noetl.engine.reducing import ReducerConflict, reduced
from noetl.engine.running import command_for
from noetl.engine.scope import server_scope
from noetl.engine.turn import Issue, Turn
from noetl.errors import EvaluationFailed
from noetl.model.commands import Chunk
from noetl.model.events import CommandIssued, CtxPatched, LoopDone, LoopStarted
from noetl.model.ids import CommandId, derive
from noetl.model.net import Loop, Values
from noetl.model.outcome import TaskError
from noetl.model.state import LoopState, Run
from noetl.templates import Compiled, Scope

IN_FLIGHT_DEFAULT = 32
"""Iterations of a parallel loop at once, where the playbook does not say."""
CHUNK_MAX = 500
ITERATIONS_MAX = 10_000_000
LANES = 2
"""Chunks of a loop that are out at the same time, so that a worker never waits for the next."""


class BadCollection(Exception):
    """What a loop should go over is nothing to go over."""


def start_loop(turn: Turn, run: Run) -> None:
    """Find out what to go over, and hand out the first iterations."""
    loop = _loop_of(turn, run)
    try:
        started = _started(turn, run, loop)
    except EvaluationFailed as error:
        fail_run(turn, run.step_run_id, error_from(error))
        return
    except BadCollection as error:
        wrong = TaskError(kind="schema", code="bad_collection", message=str(error))
        fail_run(turn, run.step_run_id, wrong)
        return
    turn.record(started)
    go_on(turn, run)


def _loop_of(turn: Turn, run: Run) -> Loop:
    loop = turn.program.steps[run.step].step.loop
    assert loop is not None
    return loop


def _started(turn: Turn, run: Run, loop: Loop) -> LoopStarted:
    scope = server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        run.step,
        at=turn.at,
        seed=run.step_run_id,
        args=run.args,
    )
    program = turn.program.steps[run.step]
    items: list[Any] | None = None
    begin: Any = 0
    by: Any = 1
    if program.span is not None:
        total, begin, by = _counted(run.step, program.span, scope)
    else:
        items = _elements(run.step, program.items, scope)
        total = len(items)
    asked = _whole(run.step, "max_in_flight", program.in_flight, scope)
    limit = turn.program.net.executor.limits.max_in_flight
    in_flight = min(asked or IN_FLIGHT_DEFAULT, limit or math.inf)
    batch = _whole(run.step, "batch_size", program.batch, scope)
    lanes, size = _shape(loop, total, int(in_flight), batch)
    return LoopStarted(
        at=turn.at,
        step_run_id=run.step_run_id,
        step=run.step,
        total=total,
        items=items,
        begin=begin,
        by=by,
        in_flight=1 if loop.mode == "sequential" else int(in_flight),
        lanes=lanes,
        size=size,
    )


def _elements(step: str, items: Compiled, scope: Scope) -> list[Any]:
    found = items.render(scope, f"loop of step {step}")
    if isinstance(found, dict):
        return [{"key": key, "value": value} for key, value in found.items()]
    if not isinstance(found, list):
        kind = "nothing" if found is None else type(found).__name__
        raise BadCollection(
            f'the loop of step "{step}" goes over a list or a mapping, but `in` is {kind}.'
            " Check the expression, or give it `| default([])`."
        )
    return found


def _counted(step: str, span: tuple[Compiled, ...], scope: Scope) -> tuple[int, Any, Any]:
    """How many numbers a range has, the first of them, and the step."""
    begin, stop, by = (
        _number(step, name, part.render(scope, f"loop of step {step}"))
        for name, part in zip(("from", "to", "step"), span, strict=True)
    )
    if by == 0:
        raise BadCollection(f'the range of step "{step}" has `step: 0` and would never end.')
    total = (stop - begin) / by
    if total > ITERATIONS_MAX:
        raise BadCollection(
            f'the range of step "{step}" has {total:.0f} numbers; {ITERATIONS_MAX} are the most.'
        )
    return max(0, math.ceil(total)), begin, by


def _number(step: str, name: str, value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = _float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise BadCollection(
            f'`{name}` in the loop of step "{step}" is {value!r}, which is no number.'
        )
    return value


def _float(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _whole(step: str, name: str, written: Compiled, scope: Scope) -> int | None:
    value: Any = written.render(scope, f"{name} of step {step}")
    if value is None:
        return None
    number = _number(step, name, value)
    if number < 1:
        raise BadCollection(f'`{name}` in the loop of step "{step}" is {value!r}; 1 is the least.')
    return int(number)


def _shape(loop: Loop, total: int, in_flight: int, batch: int | None) -> tuple[int, int]:
    """How many chunks at once, and how large."""
    if loop.mode == "sequential":
        return 1, CHUNK_MAX
    if loop.placement == "local":
        return 1, batch or CHUNK_MAX
    if batch is not None:
        return min(in_flight, max(LANES, math.ceil(in_flight / batch))), batch
    lanes = min(LANES, in_flight)
    # A quarter of each lane's share: the last chunks finish at about the same time.
    return lanes, max(1, math.ceil(in_flight / lanes), min(CHUNK_MAX, math.ceil(total / lanes / 4)))


def element(loop: Loop, index: int, chunk: Chunk) -> Any:
    """The element of one iteration."""
    if loop.range is not None:
        return chunk.begin + index * chunk.by
    return chunk.items[index - chunk.start]


def go_on(turn: Turn, run: Run) -> None:
    """End the loop if it is over, else hand out what there is."""
    if not _finish_if_over(turn, run):
        hand_out(turn, run)


def hand_out(turn: Turn, run: Run) -> None:
    """Issue what may go on, and chunks while there are iterations left and room for them."""
    loop = run.loop
    assert loop is not None
    if turn.state.status == "PAUSED" or loop.stopping:
        return
    for iteration in list(loop.woken):
        _issue_alone(turn, run, iteration)
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
    if alone is None:
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
    return iteration in loop.results or iteration in loop.errors


def rest_of(loop: LoopState, command_id: CommandId) -> int | None:
    """The first iteration of a chunk that is still to be done, if there is one."""
    if command_id not in loop.chunks:
        return None
    start, stop = loop.chunks[command_id]
    return next((index for index in range(start, stop) if is_open(loop, index)), None)


def _finish_if_over(turn: Turn, run: Run) -> bool:
    """End the step when its last iteration has, or when a failure ends the loop."""
    state = run.loop
    assert state is not None
    loop = _loop_of(turn, run)
    fails = state.failed > 0 and loop.on_error == "fail"
    # best_effort: the step lets its other iterations finish before it fails.
    best_effort = turn.program.steps[run.step].step.failure_mode == "best_effort"
    if state.ended < (state.total or 0) and (not fails or best_effort):
        return False
    error = _first_error(state) if fails else None
    values: Values = {}
    try:
        values = reduced(loop.reduce, state.patches)
    except ReducerConflict as conflict:
        # What went wrong first is the failed iteration, if there is one.
        error = error or TaskError(kind="client_error", code="ctx_conflict", message=str(conflict))
    _finish(turn, run, state, values, error)
    return True


def _first_error(state: LoopState) -> TaskError:
    first = min(state.errors)
    cause = state.errors[first]
    return TaskError(
        kind=cause.kind,
        code=cause.code,
        message=f"iteration {first} failed: {cause.message}",
        retryable=cause.retryable,
        status=cause.status,
    )


def _finish(
    turn: Turn, run: Run, state: LoopState, values: Values, error: TaskError | None
) -> None:
    if values:
        turn.record(
            CtxPatched(at=turn.at, values=values, step_run_id=run.step_run_id, step=run.step)
        )
    total = state.total or 0
    stats = {"total": total, "success": state.success, "failed": state.failed}
    turn.record(LoopDone(at=turn.at, step_run_id=run.step_run_id, step=run.step, **stats))
    result = {"results": [state.results.get(index) for index in range(total)], "stats": stats}
    if error is not None:
        fail_run(turn, run.step_run_id, error, result)
    else:
        complete_run(turn, run, result)
