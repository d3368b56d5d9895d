"""Workbook entries: a pipeline within a task, perhaps looped, with `iter.parent` one level up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from noetl.engine.pipeline import TaskProgram, rendered
from noetl.errors import EvaluationFailed
from noetl.model.commands import Suspension
from noetl.model.net import Block, Loop, Values
from noetl.model.outcome import Outcome, TaskError, failed, ok
from noetl.templates import compile_value
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
    try:
        given = rendered(caller.inputs, frame.scope, f"args of task {caller.task.name}")
        defaults = rendered(compile_value(block.inputs), frame.scope, f"args of {name}")
        items = _items(block, frame)
    except EvaluationFailed as error:
        return failed("schema", str(error), code=error.code)
    args = {**frame.command.args, **defaults, **given}
    if block.loop is None:
        return await _pass(runner, block, frame, args, None, None)
    return await _loop(runner, block, block.loop, frame, args, items)


def _items(block: Block, frame: Frame) -> list[Any]:
    loop = block.loop
    if loop is None:
        return []
    if loop.range is not None:
        span = loop.range
        return list(range(int(span.start), int(span.stop), int(span.step)))
    found = compile_value(loop.items).render(frame.scope, f"loop of {block.name}")
    if isinstance(found, dict):
        return [{"key": key, "value": value} for key, value in found.items()]
    if not isinstance(found, list):
        raise EvaluationFailed(f'the loop of "{block.name}" goes over a list, not {found!r:.60}')
    return found


async def _loop(
    runner: Runner, block: Block, loop: Loop, frame: Frame, args: Values, items: list[Any]
) -> Outcome:
    limit = loop.max_in_flight if isinstance(loop.max_in_flight, int) else IN_FLIGHT_DEFAULT
    slots = asyncio.Semaphore(1 if loop.mode == "sequential" else limit)
    ended: dict[int, Outcome] = {}

    async def one(index: int) -> None:
        async with slots:
            if loop.on_error == "fail" and any(not found.is_ok for found in ended.values()):
                return
            ended[index] = await _pass(runner, block, frame, args, index, items[index])

    async with asyncio.TaskGroup() as group:
        for index in range(len(items)):
            group.create_task(one(index))
    errors = {index: found.error for index, found in sorted(ended.items()) if not found.is_ok}
    if errors and loop.on_error == "fail":
        index, cause = next(iter(errors.items()))
        assert cause is not None
        message = f"iteration {index} of {block.name} failed: {cause.message}"
        return failed(cause.kind, message, code=cause.code, retryable=cause.retryable)
    results = [ended[index].result if index in ended else None for index in range(len(items))]
    stats = {"total": len(items), "success": len(ended) - len(errors), "failed": len(errors)}
    return ok({"results": results, "stats": stats})


async def _pass(
    runner: Runner, block: Block, outer: Frame, args: Values, index: int | None, item: Any
) -> Outcome:
    """One pass through the entry's pipeline, in a frame of its own."""
    loop = block.loop
    own: Values = {"parent": outer.iter}
    if loop is not None:
        own |= {loop.iterator: item, "index": index}
    frame = Frame(
        outer.program,
        outer.command,
        outer.ctx,
        iteration=outer.iteration,
        iter_values=own,
        loop={"index": index, "length": None} if loop is not None else None,
        args=args,
    )
    for name, value in outer.results.items():
        frame.scope.roots.setdefault(name, value)
    if loop is not None:
        frame.scope.roots[loop.iterator] = item
    # Calls of different passes are different calls: the pass is part of their identity.
    frame.page = outer.page if index is None else index + 1
    frame.jumps = outer.jumps
    ended = await runner.pipeline(runner.pipelines.block(block.name), frame, top=False)
    outer.ctx_writes.update(frame.ctx_writes)
    if isinstance(ended, Suspension):
        message = "long waits and sub-playbooks are not possible inside a workbook entry"
        return failed("client_error", message, code="no_suspension")
    if ended.error is not None:
        return Outcome(status="error", error=_located(ended.error, block.name))
    return ok(ended.result)


def _located(error: TaskError, block: str) -> TaskError:
    return TaskError(
        kind=error.kind,
        code=error.code,
        message=f"{block}: {error.message}",
        retryable=error.retryable,
        retry_after=error.retry_after,
        status=error.status,
    )
