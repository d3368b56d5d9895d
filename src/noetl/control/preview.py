"""What a template would yield in an execution: for people who look for the reason of something.

No secret is in scope: those are resolved on the worker, when a tool runs.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec

from noetl.engine.program import Program
from noetl.engine.scope import common_roots, moment
from noetl.errors import NotFound
from noetl.model.ids import ExecutionId
from noetl.model.spelling import no_such_step
from noetl.model.state import ExecutionState, Run
from noetl.templates import Scope, compile_value, mask


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What templates can see at one moment, in a form that another process can be handed."""

    roots: dict[str, object]
    now: datetime
    seed: str


def seen_in(
    program: Program,
    state: ExecutionState,
    execution_id: ExecutionId,
    template: Any,
    *,
    at: float,
    step: str | None = None,
    iteration: int | None = None,
) -> Seen:
    """What this template, or object of templates, may read as that step sees it in this state, or
    would see it if it ran then.
    """
    written = msgspec.json.encode(template).decode()
    # Names of steps that do not occur in it are not read by it.
    everything = "steps" in written
    read = {
        name: result
        for name, result in state.results.items()
        if everything or name in written or json.dumps(name)[1:-1] in written
    }
    roots = common_roots(program, execution_id, state, read)
    if step is not None:
        roots |= _of_step(program, state, step, iteration)
    return Seen(roots=roots, now=moment(at), seed=execution_id)


def evaluated(template: Any, seen: Seen) -> Any:
    """The value of a template, or of an object of templates, as plain data."""
    found = compile_value(template).render(Scope(seen.roots, now=seen.now, seed=seen.seed))
    return msgspec.to_builtins(mask(found), enc_hook=str)


def _of_step(
    program: Program, state: ExecutionState, step: str, iteration: int | None
) -> dict[str, object]:
    if step not in program.steps:
        raise NotFound(no_such_step(step, program.steps))
    run = next((run for run in state.runs.values() if run.step == step), None)
    names: dict[str, object] = {"args": run.args if run is not None else {}}
    if iteration is not None:
        names["iter"] = _iteration(program, run, step, iteration)
    return names


def _iteration(program: Program, run: Run | None, step: str, index: int) -> dict[str, object]:
    loop = program.steps[step].step.loop
    items = run.loop.items if run is not None and run.loop is not None else None
    if loop is None or not isinstance(items, list) or not 0 <= index < len(items):
        raise NotFound(f'step "{step}" runs no iteration {index} at the moment.')
    return {loop.iterator: items[index], "index": index}
