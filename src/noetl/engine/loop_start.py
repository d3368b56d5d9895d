"""What a loop goes over, and how its work is cut: decided once, when it starts."""

from __future__ import annotations

import math
from typing import Any

from noetl.engine.gathering import SEGMENT, kept_elements
from noetl.engine.scope import server_scope
from noetl.engine.turn import Turn
from noetl.model.events import LoopStarted
from noetl.model.net import Loop
from noetl.model.state import Run
from noetl.templates import Compiled, Scope

IN_FLIGHT_DEFAULT = 32
"""Iterations of a parallel loop at once, where the playbook does not say."""
FRAMES_DEFAULT = 4
"""Frames of a cursor at once, where the playbook does not say."""
CHUNK_MAX = 500
ITERATIONS_MAX = 10_000_000
LANES = 2
"""Chunks of a loop that are out at the same time, so that a worker never waits for the next."""


class BadCollection(Exception):
    """What a loop should go over is nothing to go over."""


def started(turn: Turn, run: Run, loop: Loop) -> LoopStarted:
    """The beginning of a loop. Raises BadCollection or EvaluationFailed."""
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
    asked = _whole(run.step, "max_in_flight", program.in_flight, scope)
    limit = turn.program.net.executor.limits.max_in_flight or math.inf
    names: dict[str, Any] = {
        "at": turn.at,
        "step_run_id": run.step_run_id,
        "step": run.step,
        "segment": SEGMENT,
    }
    if loop.cursor is not None:
        frames = int(min(asked or FRAMES_DEFAULT, limit))
        return LoopStarted(in_flight=frames, lanes=frames, max_pending=loop.max_pending, **names)
    items: Any = None
    begin: Any = 0
    by: Any = 1
    if program.span is not None:
        total, begin, by = _counted(run.step, program.span, scope)
    else:
        elements = _elements(run.step, program.items, scope)
        total, items = len(elements), kept_elements(turn, run, elements)
    in_flight = int(min(asked or IN_FLIGHT_DEFAULT, limit))
    batch = _whole(run.step, "batch_size", program.batch, scope)
    lanes, size = _shape(loop, total, in_flight, batch)
    return LoopStarted(
        total=total,
        items=items,
        begin=begin,
        by=by,
        in_flight=1 if loop.mode == "sequential" else in_flight,
        lanes=lanes,
        size=size,
        **names,
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
