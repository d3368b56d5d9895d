"""Loops: what they go over, how their work is cut, and what their iterations come to.

An iteration is in flight from its beginning to its end, also while it waits for a moment or a
child execution. Sequential: one in flight. Parallel: chunks sized so that workers stay busy and
the last ones finish together, never more than `max_in_flight` iterations at once. A chunk whose
iterations wait gives back those it has not begun. However many may be in flight, only a window of
commands is open: it is wider than what workers can take, and each that ends opens the next.

Elements and results that are too many for an event are kept in segments: the engine decides what is
kept and under which key, and the shell writes it in the transaction that records it. Whatever the
state still holds of a running loop is bounded, however long the loop.

What iterations write to ctx is folded when the loop ends, in the order of the iterations and not of
their arrival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import islice, takewhile
from typing import Any, NamedTuple

import msgspec

from noetl.engine.elements import elements_of, numbers_of, whole_number
from noetl.engine.program import STATE_ROOTS, LoopProgram
from noetl.engine.runs import command_for, complete_run, fail_run
from noetl.engine.scope import server_scope
from noetl.engine.turn import EndLoop, Issue, Keep, Turn
from noetl.errors import EvaluationFailed
from noetl.model import refs
from noetl.model.commands import Chunk
from noetl.model.events import CommandIssued, CtxPatched, LoopDone, LoopStarted, ResultsKept
from noetl.model.ids import CommandId, derive
from noetl.model.net import Loop, Reducer, Values
from noetl.model.outcome import TaskError, error_from
from noetl.model.state import LoopState, Partitions, Run

KEYS = 500
"""Iterations of a partitioned loop whose keys are found at a time."""
KEYED_AHEAD = 2000
"""Keys are known of so many iterations beyond those that have ended."""
Chains = tuple[tuple[int, ...], ...]
"""Of a partitioned loop: iterations with one key each, in their order."""


def start_loop(turn: Turn, run: Run) -> None:
    """Find out what to go over, and hand out the first iterations."""
    try:
        turn.record(started(turn, run))
    except EvaluationFailed as error:
        fail_run(turn, run, error_from(error))
        return
    assert run.loop is not None
    go_on(turn, run, run.loop)


def _program_of(turn: Turn, run: Run) -> LoopProgram:
    program = turn.program.steps[run.step].loop
    assert program is not None
    return program


def go_on(turn: Turn, run: Run, loop: LoopState) -> None:
    """End the loop if it is over, else hand out what there is."""
    if loop.stopping:
        return
    if not _is_over(turn, run, loop):
        put_away_full(turn, run, loop)
        hand_out(turn, run, loop)
    elif put_away_rest(turn, run, loop) or _holds_large_results(turn, run, loop):
        turn.effects.append(EndLoop(run.step_run_id, _result(turn, run, loop)))
    else:
        conclude(turn, run, loop)


def hand_out(turn: Turn, run: Run, loop: LoopState) -> None:
    """Issue what may go on, and chunks while there are iterations left and room for them."""
    if turn.state.status == "PAUSED" or loop.stopping:
        return
    for iteration in loop.woken[: max(0, OPEN_MAX - len(run.commands))]:
        _issue(turn, run, loop, "iteration", iteration, iteration=iteration)
    if loop.total is None:
        # A cursor: as many frames as may be out, until each of them has found nothing left.
        while len(loop.frames) < loop.lanes - loop.dry and loop.may_claim:
            _issue(turn, run, loop, "frame", len(loop.frames))
        return
    if loop.parts is not None:
        _issue_chains(turn, run, loop, loop.parts)
        return
    room = _room(loop)
    while len(loop.chunks) < loop.lanes and len(run.commands) < OPEN_MAX:
        following = _following(loop)
        if room < 1 or following is None:
            return
        start, end = following
        others = loop.lanes - len(loop.chunks) - 1
        width = math.ceil(room / (1 + min(others, _chunks_after(loop, start))))
        # Where iterations are likely to wait, a chunk would soon give back the rest.
        size = width if loop.suspends else loop.size
        stop = min(end, start + size)
        width = min(width, stop - start)
        _issue(turn, run, loop, "chunk", start, start=start, stop=stop, width=width)
        room -= width


def _room(loop: LoopState) -> int:
    """How many more iterations may be in flight."""
    return loop.in_flight - sum(loop.widths.values()) - len(loop.suspended)


def _issue_chains(turn: Turn, run: Run, loop: LoopState, parts: Partitions) -> None:
    """A partitioned loop: have keys found some way ahead, and hand out what waits for no other.

    Beyond the usual chunks one more goes out when a quarter of the room is free: a key whose
    iterations take long holds up no other.
    """
    total = loop.total or 0
    if not parts.keying and parts.keyed < min(total, loop.ended + KEYED_AHEAD):
        stop = min(total, parts.keyed + KEYS)
        _issue(turn, run, loop, "keys", parts.keyed, start=parts.keyed, stop=stop, keys=True)
    room = _room(loop)
    while parts.ready and len(run.commands) < OPEN_MAX:
        lanes = max(0, loop.lanes - len(parts.chains) - 1)
        if room < 1 or (len(parts.chains) >= loop.lanes and room < loop.in_flight // 4):
            return
        width = math.ceil(room / (1 + lanes))
        chains = _chains(parts, width if loop.suspends else loop.size)
        width = min(width, len(chains))
        _issue(turn, run, loop, "chains", chains[0][0], width=width, chains=chains)
        room -= width


def _chains(parts: Partitions, size: int) -> Chains:
    """Up to so many iterations: those that are ready, each with those that follow it."""
    firsts = list(islice(parts.ready, size))
    length = max(1, size // len(firsts))
    found = []
    for first in firsts:
        chain = [first]
        while len(chain) < length and (one := parts.followers.get(chain[-1])) is not None:
            chain.append(one)
        found.append(tuple(chain))
    return tuple(found)


def open_chains(loop: LoopState, chains: Chains) -> Chains:
    """What is still to be done of them: nothing behind an iteration that waits."""
    found = []
    for chain in chains:
        left = [one for one in chain if not loop.has_ended(one)]
        left = list(takewhile(lambda one: one not in loop.suspended, left))
        if left:
            found.append(tuple(left))
    return tuple(found)


def _chunks_after(loop: LoopState, start: int) -> int:
    """How many more chunks there will be to share the room with, beside the one from `start`."""
    left = (loop.total or 0) - max(loop.given, start) + sum(b - a for a, b in loop.returned)
    return max(0, math.ceil(left / loop.size) - 1)


def _following(loop: LoopState) -> tuple[int, int] | None:
    """Iterations that no command has; those that were given back come first."""
    if loop.returned:
        return loop.returned[0]
    total = loop.total or 0
    return (loop.given, total) if loop.given < total else None


def _issue(turn: Turn, run: Run, loop: LoopState, what: str, number: int, **part: Any) -> None:
    """Open a command for a part of the loop."""
    command_id = derive(run.step_run_id, what, number, turn.state.seq)
    turn.record(
        CommandIssued(at=turn.at, command_id=command_id, step_run_id=run.step_run_id, **part)
    )
    issue_part(turn, run, loop, command_id)


def issue_part(turn: Turn, run: Run, loop: LoopState, command_id: CommandId) -> None:
    """Send out a command of a loop: a chunk, or one iteration that was suspended."""
    resumed = loop.resuming.get(command_id)
    progress = None
    if command_id in loop.frames:
        chunk = Chunk(start=0, stop=0, claims=True)
    elif resumed is not None:
        chunk, progress = chunk_of(loop, resumed, resumed + 1, 1), loop.suspended[resumed]
    elif loop.parts is not None:
        chunk = _partitioned_chunk(loop, loop.parts, command_id)
    else:
        chunk = chunk_of(loop, *loop.chunks[command_id], loop.widths[command_id])
    command = command_for(turn, run, command_id, chunk=chunk, iteration=resumed, progress=progress)
    turn.effects.append(Issue(command))


def _partitioned_chunk(loop: LoopState, parts: Partitions, command_id: CommandId) -> Chunk:
    if command_id == parts.keying:
        stop = min(loop.total or 0, parts.keyed + KEYS)
        chunk = chunk_of(loop, parts.keyed, stop, 1)
        return msgspec.structs.replace(chunk, keys=True, skip=())
    chains = open_chains(loop, parts.chains[command_id])
    indexes = [one for chain in chains for one in chain] or [0]
    chunk = chunk_of(loop, min(indexes), max(indexes) + 1, loop.widths[command_id])
    return msgspec.structs.replace(chunk, chains=chains, skip=())


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
        skip=tuple(_not_open(loop, start, stop)),
    )


def _not_open(loop: LoopState, start: int, stop: int) -> list[int]:
    """Of these iterations, those that have ended or are waiting."""
    ended, segments, suspended, size = loop.results, loop.segments, loop.suspended, loop.segment
    return [
        index
        for index in range(start, stop)
        if index in ended or index // size in segments or index in suspended
    ]


def rest_of(loop: LoopState, command_id: CommandId) -> int | None:
    """The first iteration of a chunk that is still to be done, if there is one."""
    if command_id not in loop.chunks:
        return None
    start, stop = loop.chunks[command_id]
    return min(set(range(start, stop)).difference(_not_open(loop, start, stop)), default=None)


def first_of(loop: LoopState, command_id: CommandId) -> int | None:
    """The iteration that a command of the loop would begin with."""
    if loop.parts is not None and command_id in loop.parts.chains:
        chains = open_chains(loop, loop.parts.chains[command_id])
        return chains[0][0] if chains else None
    return loop.resuming.get(command_id, rest_of(loop, command_id))


class Part(NamedTuple):
    """What of a lost command goes on under the next one: all that is left, or half of it."""

    chains: Chains = ()
    start: int | None = None
    stop: int | None = None
    is_half: bool = False
    """The other half is handed out apart from it."""


def part_again(loop: LoopState, command_id: CommandId, *, halve: bool) -> Part:
    """What is still to be done of a command, or the first half of that if it can be halved."""
    if loop.parts is not None and command_id in loop.parts.chains:
        left = open_chains(loop, loop.parts.chains[command_id])
        if not halve or sum(map(len, left)) < 2:
            return Part(left)
        if len(left) > 1:
            return Part(left[: len(left) // 2], is_half=True)
        return Part((left[0][: len(left[0]) // 2],), is_half=True)
    start = rest_of(loop, command_id) if halve else None
    if start is None or (stop := loop.chunks[command_id][1]) - start < 2:
        return Part()
    return Part(start=start, stop=(start + stop) // 2, is_half=True)


def _is_over(turn: Turn, run: Run, loop: LoopState) -> bool:
    """Whether the last iteration has ended, or a failure or a rule's `next` ends the loop."""
    # best_effort: the step lets its other iterations finish before it fails.
    best_effort = turn.program.steps[run.step].step.failure_mode == "best_effort"
    if run.next is not None or (_fails(turn, run, loop) and not best_effort):
        return True
    if loop.total is None:
        return loop.dry >= loop.lanes and not (loop.frames or loop.suspended)
    return loop.ended >= loop.total


def _fails(turn: Turn, run: Run, loop: LoopState) -> bool:
    return loop.failed > 0 and _program_of(turn, run).loop.on_error == "fail"


def conclude(turn: Turn, run: Run, loop: LoopState) -> None:
    """End the step of a loop that is over."""
    if loop.stopping or not _is_over(turn, run, loop):
        return
    error = _first_error(loop) if _fails(turn, run, loop) else None
    values: Values = {}
    try:
        values = reduced(_program_of(turn, run).loop.reduce, loop.patches, turn.state.ctx)
    except ReducerConflict as conflict:
        # What went wrong first is the failed iteration, if there is one.
        error = error or TaskError(kind="client_error", code="ctx_conflict", message=str(conflict))
    if values:
        turn.record(CtxPatched(**turn.about(run), values=values))
    turn.record(LoopDone(**turn.about(run) | _stats(loop)))
    result = _result(turn, run, loop)
    if error is not None:
        fail_run(turn, run, error, result)
    else:
        complete_run(turn, run, result)


def _holds_large_results(turn: Turn, run: Run, loop: LoopState) -> bool:
    """Whether a result of an iteration is a reference, and something that follows may read it."""
    program = turn.program
    is_read = program.result is not None or not program.reads_ahead[run.step] <= STATE_ROOTS
    return is_read and refs.holds_reference(_result(turn, run, loop), turn.state.seal)


def _result(turn: Turn, run: Run, loop: LoopState) -> Values:
    """What a loop yields."""
    # A state that an older version stored has them as they came.
    errors = sorted(loop.errors, key=lambda one: one["index"])
    result = {"results": results_of(turn, run, loop), "stats": _stats(loop)}
    return {**result, "errors": errors} if errors else result


def _stats(loop: LoopState) -> dict[str, int]:
    total = loop.ended if loop.total is None else loop.total
    return {"total": total, "success": loop.success, "failed": loop.failed}


def _first_error(loop: LoopState) -> TaskError:
    assert loop.first_error is not None
    first, cause = loop.first_error
    message = f"iteration {first} failed: {cause.message}"
    return msgspec.structs.replace(cause, message=message, retry_after=None)


# --- The beginning: what to go over, and how to cut it -------------------------------------------


IN_FLIGHT_DEFAULT = 32
"""Iterations of a parallel loop at once, where the playbook does not say."""
FRAMES_DEFAULT = 4
"""Frames of a cursor at once, where the playbook does not say."""
CHUNK_MAX = 500
LANES = 2
"""Chunks of a loop that are out at the same time, so that a worker never waits for the next."""
OPEN_MAX = 1000
"""Commands of a loop that are open at the same time. Opening them is one decision and one commit,
for which other executions wait: a hundred thousand took a minute."""


def started(turn: Turn, run: Run) -> LoopStarted:
    """The beginning of a loop. Raises BadCollection and EvaluationFailed."""
    scope = server_scope(turn, run.step, seed=run.step_run_id, args=run.args)
    program, where = _program_of(turn, run), f'step "{run.step}"'
    loop = program.loop
    asked = whole_number(program.in_flight, scope, "max_in_flight", where)
    limit = turn.program.net.executor.limits.max_in_flight or math.inf
    names = {**turn.about(run), "segment": SEGMENT}
    if loop.cursor is not None:
        frames = int(min(asked or FRAMES_DEFAULT, limit, OPEN_MAX))
        return LoopStarted(in_flight=frames, lanes=frames, max_pending=loop.max_pending, **names)
    items: Any = None
    begin: Any = 0
    by: Any = 1
    if program.span is not None:
        total, begin, by = numbers_of(program.span, scope, where)
    else:
        elements = elements_of(program, scope, where)
        total, items = len(elements), kept_elements(turn, run, elements)
    in_flight = int(min(asked or IN_FLIGHT_DEFAULT, limit))
    batch = whole_number(program.batch, scope, "batch_size", where)
    lanes, size = _shape(loop, total, in_flight, batch)
    return LoopStarted(
        total=total,
        items=items,
        begin=begin,
        by=by,
        in_flight=1 if loop.mode == "sequential" else in_flight,
        lanes=lanes,
        size=size,
        partitioned=loop.partition is not None and loop.mode == "parallel",
        **names,
    )


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


# --- Segments ------------------------------------------------------------------------------------


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
    kept: dict[int, str] = {}
    for number, start in enumerate(range(0, len(items), width)):
        body = refs.encode(items[start : start + width])
        kept[number] = sha256(body).hexdigest()
        turn.effects.append(Keep(refs.segment_key(key, number), body))
    return refs.segmented(
        turn.execution_id,
        key,
        length=len(items),
        width=width,
        kept=kept,
        size=size,
        seal=turn.state.seal,
    )


def put_away_full(turn: Turn, run: Run, loop: LoopState) -> None:
    """Keep every segment whose iterations have all ended, once they are too much to hold."""
    if not loop.segments and loop.weight <= refs.INLINE_MAX:
        return
    for number in [found for found, ended in loop.filled.items() if ended == _width(loop, found)]:
        _put_away(turn, run, loop, number)


def put_away_rest(turn: Turn, run: Run, loop: LoopState) -> bool:
    """The loop is over: keep what is left, unless all of it fits into an event."""
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
    turn.effects.append(Keep(refs.segment_key(_results_key(run), number), body))
    turn.record(
        ResultsKept(
            **turn.about(run), segment=number, size=len(body), checksum=sha256(body).hexdigest()
        )
    )


def length_of(loop: LoopState) -> int:
    """How many results there are to be, counting those that never came."""
    return loop.given if loop.total is None else loop.total


def results_of(turn: Turn, run: Run, loop: LoopState) -> Any:
    """The results in order: themselves, or a reference to where they are kept."""
    total = length_of(loop)
    if not loop.segments:
        return [loop.results.get(index) for index in range(total)]
    return refs.segmented(
        turn.execution_id,
        _results_key(run),
        length=total,
        width=loop.segment,
        kept=loop.segments,
        size=loop.kept,
        seal=turn.state.seal,
    )


def _results_key(run: Run) -> str:
    return derive(run.step_run_id, "results")


# --- Reducers ------------------------------------------------------------------------------------


Writes = list[tuple[int, Any]]
"""Iteration and value, in order."""


class ReducerConflict(Exception):
    """Two iterations wrote the same key, and nothing says how the writes combine."""


def reduced(
    reducers: Mapping[str, Reducer], patches: Mapping[int, Values], ctx: Values | None = None
) -> Values:
    """What all iterations together write to ctx, on top of what a reduced key has there."""
    writes: dict[str, Writes] = {}
    for iteration in sorted(patches):
        for key, value in patches[iteration].items():
            writes.setdefault(key, []).append((iteration, value))
    for key in writes:
        _refuse_overlap(key, writes)
    return {
        key: _fold(key, reducers.get(key), writes[key], _found(ctx or {}, key))
        for key in sorted(writes)
    }


def _found(values: Values, path: str) -> Any:
    """What stands at a dotted path; None if nothing does."""
    found: Any = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _refuse_overlap(key: str, writes: Mapping[str, Writes]) -> None:
    """`a` and `a.b` are the same place: who wrote which would decide what is left."""
    above = key.rpartition(".")[0]
    while above:
        if above in writes:
            whole = [iteration for iteration, _ in writes[above]]
            part = [iteration for iteration, _ in writes[key]]
            if len({*whole, *part}) > 1:
                raise ReducerConflict(
                    f"iteration {whole[0]} wrote ctx.{above} and iteration {part[-1]} wrote"
                    f" ctx.{key}, which is a part of it. Write to separate keys."
                )
        above = above.rpartition(".")[0]


def _fold(key: str, reducer: Reducer | None, writes: Writes, before: Any) -> Any:
    values = [value for _, value in writes]
    if reducer is None:
        if len(writes) > 1:
            first, second = writes[0][0], writes[1][0]
            by = "extend" if isinstance(values[0], list) else "append"
            raise ReducerConflict(
                f"iterations {first} and {second} both wrote ctx.{key}. Say how the writes"
                f" combine: `loop.spec.policy.reduce: {{{key}: {by}}}`."
            )
        return values[0]
    for iteration, value in writes:
        if reducer in _TAKES and not isinstance(value, _TAKES[reducer]):
            raise ReducerConflict(
                f"ctx.{key} cannot be combined by `{reducer}`: iteration {iteration} wrote"
                f" {type(value).__name__}. Check what iterations write."
            )
    if before is not None and reducer in _ADDS_TO and not isinstance(before, _ADDS_TO[reducer]):
        raise ReducerConflict(
            f"ctx.{key} cannot be combined by `{reducer}`: before the loop it was"
            f" {type(before).__name__}. Give the loop a key of its own."
        )
    try:
        return _FOLDS[reducer](values, before)
    except TypeError as error:
        raise ReducerConflict(
            f"ctx.{key} cannot be combined by `{reducer}`: {error}. Check what iterations write."
        ) from None


def _merged(values: list[Any], before: Any) -> Any:
    total: Values = dict(before or {})
    for value in values:
        total.update(value)
    return total


def _with(values: list[Any], before: Any) -> list[Any]:
    return values if before is None else [before, *values]


_TAKES: dict[str, type | tuple[type, ...]] = {
    "extend": list,
    "merge": dict,
    "sum": (int, float),
}
"""What a value must be for the reducer to make sense of it."""
_ADDS_TO: dict[str, type | tuple[type, ...]] = {
    "append": list,
    "extend": list,
    "merge": dict,
    "sum": (int, float),
    "count": int,
}
"""What ctx must hold already for the reducer to add to it, if it holds anything."""
_FOLDS: dict[str, Callable[[list[Any], Any], Any]] = {
    "append": lambda values, before: [*(before or []), *values],
    "extend": lambda values, before: [*(before or []), *(one for value in values for one in value)],
    "sum": lambda values, before: sum(values, before or 0),
    "min": lambda values, before: min(_with(values, before)),
    "max": lambda values, before: max(_with(values, before)),
    "merge": _merged,
    "count": lambda values, before: (before or 0) + len(values),
    "last": lambda values, before: values[-1],
    "first": lambda values, before: _with(values, before)[0],
}
