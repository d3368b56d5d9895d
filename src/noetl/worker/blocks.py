"""Workbook entries: a pipeline within a task, perhaps looped, with `iter.parent` one level up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from noetl.engine.pipeline import TaskProgram, rendered
from noetl.errors import EvaluationFailed
from noetl.model.commands import Suspension
from noetl.model.ids import derive
from noetl.model.net import Block, Loop, Values
from noetl.model.outcome import Outcome, TaskError, failed, ok
from noetl.templates import Scope, compile_value
from noetl.worker.calls import action_of, total_seconds
from noetl.worker.frame import Frame

if TYPE_CHECKING:
    from noetl.worker.runner import Runner

IN_FLIGHT_DEFAULT = 8


async def run_block(runner: Runner, caller: TaskProgram, frame: Frame) -> Outcome:
    """Run the entry a task names; its result is the task's result."""
    name = str(caller.task.config.get("task"))
    block = runner.program.blocks.get(name)
    if block is None:
        return failed("not_found", f'the workbook has no entry "{name}"')
    limit = total_seconds(caller.task.timeout)
    try:
        given = rendered(caller.inputs, frame.scope, f"args of task {caller.task.name}")
        async with asyncio.timeout(limit):
            return await run_entry(runner, block, frame, given, action_of(frame, caller.task))
    except EvaluationFailed as error:
        return failed("schema", str(error), code=error.code)
    except TimeoutError:
        return failed("timeout", f'"{name}" took longer than {limit:g} seconds', retryable=True)


async def run_entry(
    runner: Runner, block: Block, frame: Frame, given: Values, cause: str
) -> Outcome:
    """Run an entry with these inputs over its own. Raises EvaluationFailed."""
    defaults = rendered(compile_value(block.inputs), frame.scope, f"args of {block.name}")
    inputs = {**defaults, **given}
    if block.loop is None:
        return await _pass(runner, block, frame, inputs, cause)
    # The loop is inside the entry: what is outside of it is its parent already.
    around = {**frame.iter, "parent": frame.iter}
    roots = {**frame.scope.roots, "args": {**frame.command.args, **inputs}, "iter": around}
    scope = Scope(roots, now=frame.scope.now, seed=frame.scope.seed)
    return await _loop(runner, block, block.loop, frame, inputs, _items(block.loop, scope), cause)


def _items(loop: Loop, scope: Scope) -> list[Any]:
    if loop.range is not None:
        span = (loop.range.start, loop.range.stop, loop.range.step)
        return list(range(*(_whole(part, scope) for part in span)))
    found = compile_value(loop.items).render(scope, f"loop over {loop.iterator}")
    if isinstance(found, dict):
        return [{"key": key, "value": value} for key, value in found.items()]
    if not isinstance(found, list):
        raise EvaluationFailed(f"the loop over {loop.iterator} needs a list, not {found!r:.60}")
    return found


def _whole(written: Any, scope: Scope) -> int:
    found = compile_value(written).render(scope, "range of a loop")
    try:
        return int(found)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise EvaluationFailed(f"a range is made of whole numbers, not {found!r:.60}") from None


async def _loop(
    runner: Runner,
    block: Block,
    loop: Loop,
    frame: Frame,
    inputs: Values,
    items: list[Any],
    cause: str,
) -> Outcome:
    limit = loop.max_in_flight if isinstance(loop.max_in_flight, int) else IN_FLIGHT_DEFAULT
    ended: dict[int, Outcome] = {}
    indices = iter(range(len(items)))
    stop = False

    async def lane() -> None:
        nonlocal stop
        for index in indices:
            if stop:
                return
            own = {loop.iterator: items[index], "index": index}
            position = {"index": index, "length": len(items)}
            cause_of_pass = derive(cause, index)
            outcome = await _pass(runner, block, frame, inputs, cause_of_pass, own, position)
            ended[index] = outcome
            stop = stop or (loop.on_error == "fail" and not outcome.is_ok)

    async with asyncio.TaskGroup() as lanes:
        for _ in range(1 if loop.mode == "sequential" else min(limit, len(items))):
            lanes.create_task(lane())
    errors = {index: found.error for index, found in sorted(ended.items()) if not found.is_ok}
    if errors and loop.on_error == "fail":
        index, first = next(iter(errors.items()))
        assert first is not None
        message = f"iteration {index} of {block.name} failed: {first.message}"
        return failed(first.kind, message, code=first.code, retryable=first.retryable)
    results = [ended[index].result if index in ended else None for index in range(len(items))]
    stats = {"total": len(items), "success": len(ended) - len(errors), "failed": len(errors)}
    return ok({"results": results, "stats": stats})


async def _pass(
    runner: Runner,
    block: Block,
    outer: Frame,
    inputs: Values,
    cause: str,
    own: Values | None = None,
    position: Values | None = None,
) -> Outcome:
    """One pass through the entry's pipeline, in a frame of its own."""
    frame = Frame(
        outer.program,
        outer.command,
        outer.ctx,
        iteration=outer.iteration,
        iter_values={**(own or {}), "parent": outer.iter},
        loop=position,
        args={**outer.command.args, **inputs},
        # Calls of different passes are different calls.
        cause=cause,
    )
    if len(block.tasks) == 1:
        # An entry that is one task is called like that task.
        frame.given = inputs
    frame.see(outer)
    if block.loop is not None and own is not None:
        frame.scope.roots[block.loop.iterator] = own[block.loop.iterator]
    ended = await runner.pipeline(runner.pipelines.block(block.name), frame, inside=True)
    outer.ctx_writes.update(frame.ctx_writes)
    if isinstance(ended, Suspension):
        message = "a sub-playbook cannot be called from a workbook entry; call it from a step"
        return failed("client_error", message, code="no_suspension")
    if ended.error is not None:
        return Outcome(status="error", error=_located(ended.error, block.name))
    return ok(frame.previous)


def _located(error: TaskError, block: str) -> TaskError:
    return TaskError(
        kind=error.kind,
        code=error.code,
        message=f"{block}: {error.message}",
        retryable=error.retryable,
        retry_after=error.retry_after,
        status=error.status,
    )
