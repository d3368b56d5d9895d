"""Workbook entries: a pipeline within a task, perhaps looped, with `iter.parent` one level up.

An entry that calls a sub-playbook waits for it without a worker, and so does the task that
called it. One wait at a time: other passes of a looped entry wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.engine.elements import elements_of, numbers_of, whole_number
from noetl.engine.evolve import put
from noetl.engine.loops import ReducerConflict, reduced
from noetl.engine.pipeline.actions import rendered
from noetl.engine.pipeline.calls import overridden, timeout_of, total_seconds, unmet
from noetl.engine.pipeline.frame import Frame, recorded
from noetl.engine.pipeline.rules import TaskProgram
from noetl.engine.program import BlockProgram
from noetl.errors import EvaluationFailed
from noetl.model.chains import Inner, Progress
from noetl.model.commands import ChildRequest, Suspension
from noetl.model.ids import derive
from noetl.model.net import Loop, Values
from noetl.model.outcome import (
    LOOP_ERRORS_MAX,
    Outcome,
    failed,
    loop_error,
    ok,
)
from noetl.templates import Scope
from noetl.tools.limits import time_limit
from noetl.tools.workbook import TOOL as WORKBOOK

if TYPE_CHECKING:
    from noetl.worker.driver import Driver

IN_FLIGHT_DEFAULT = 8


class Interrupted(Exception):
    """An entry waits for a child execution. It continues where `inner` says."""

    def __init__(self, child: ChildRequest, inner: Inner) -> None:
        super().__init__("a workbook entry waits")
        self.child = child
        self.inner = inner

    def within(self, seconds: float, now: float) -> Interrupted:
        """The same, where the task that called the entry has so much time left: that bounds the
        child, too.
        """
        own = self.child.timeout
        child = msgspec.structs.replace(
            self.child, timeout=seconds if own is None else min(own, seconds)
        )
        return Interrupted(child, msgspec.structs.replace(self.inner, until=now + seconds))


async def run_task(driver: Driver, caller: TaskProgram, frame: Frame, action_id: str) -> Outcome:
    """Run the entry that a task names; its result is the task's result. Raises Interrupted."""
    name = str(caller.task.config.get("task"))
    block = driver.program.blocks.get(name)
    if block is None:
        return failed("not_found", f'the workbook has no entry "{name}"')
    inner, frame.inner = frame.inner, None
    try:
        limit = left = total_seconds(timeout_of(caller, frame))
        given = rendered(caller.inputs, frame.scope, f"args of task {caller.task.name}")
        _, given = overridden({}, given, frame.tries.overrides, WORKBOOK)
        if (lacking := unmet(caller.task, given)) is not None:
            return lacking
        if inner is not None and inner.until is not None:
            left = inner.until - driver.step_run.by_server(driver.now())
        if left is not None and left <= 0:
            raise TimeoutError
        async with time_limit(left) as running:
            return await run_entry(driver, block, frame, given, action_id, inner)
    except EvaluationFailed as error:
        return failed("schema", str(error), code=error.code)
    except Interrupted as entry:
        ends = running.when() if running is not None else None
        if ends is None:
            raise
        left = max(0.0, ends - asyncio.get_running_loop().time())
        now = driver.step_run.by_server(driver.now())
        raise entry.within(left, now) from None
    except TimeoutError:
        return failed("timeout", f'"{name}" took longer than {limit:g} s', retryable=True)


async def run_entry(
    driver: Driver,
    block: BlockProgram,
    frame: Frame,
    given: Values,
    cause: str,
    inner: Inner | None,
) -> Outcome:
    """Run an entry with these inputs merged over its own, from where it was. Raises
    EvaluationFailed and Interrupted.
    """
    written = rendered(block.inputs, frame.scope, f"args of {block.name}")
    computed = {name: written[name] for name in block.computed}
    inputs = {**written, **given, **computed}
    if block.loop is None:
        start = inner.passes[0] if inner is not None else None
        ended, inside = await _pass(driver, block, frame, inputs, cause, start)
        frame.ctx_writes.update(inside.ctx_writes)
        if isinstance(ended, Suspension):
            raise _interruption(ended, Inner(waits=0, passes={0: ended.progress}))
        return ended
    # The loop is inside the entry: what surrounds the entry is already its parent.
    around = {**frame.iter, "parent": frame.iter}
    roots = {**frame.scope.roots, "args": {**frame.command.args, **inputs}, "iter": around}
    scope = Scope(roots, now=frame.scope.now, seed=frame.scope.seed)
    loop, where = block.loop, f'workbook entry "{block.name}"'
    count: int
    element: Callable[[int], Any]
    if loop.span is not None:
        numbers = numbers_of(loop.span, scope, where)
        count, element = numbers.total, numbers.at
    else:
        items = elements_of(loop, scope, where)
        count, element = len(items), items.__getitem__
    in_flight = whole_number(loop.in_flight, scope, "max_in_flight", where) or IN_FLIGHT_DEFAULT
    limit = driver.step_run.limits.max_in_flight
    in_flight = in_flight if limit is None else min(in_flight, limit)
    lanes = 1 if loop.loop.mode == "sequential" else min(in_flight, count)
    passes = Passes(driver, block, loop.loop, frame, inputs, count, element, lanes, cause)
    return await passes.run(inner)


def _interruption(suspension: Suspension, inner: Inner) -> Interrupted:
    assert suspension.child is not None  # other waits happen in place
    return Interrupted(suspension.child, inner)


class Passes(msgspec.Struct):
    """The passes of a looped entry."""

    driver: Driver
    block: BlockProgram
    loop: Loop
    frame: Frame
    inputs: Values
    count: int
    element: Callable[[int], Any]
    """The element of a pass, by its number."""
    lanes: int
    """How many run at once."""
    cause: str
    begun: dict[int, Progress] = {}
    """The positions of those that had begun before an interruption."""
    ended: dict[int, Outcome] = {}
    waits: dict[int, Suspension] = {}
    writes: dict[int, Values] = {}
    """What each wrote to ctx, for the reducers."""
    ctx: Values = {}
    """What passes in order see of ctx, and write to, where reducers fold their writes."""

    @property
    def is_reduced(self) -> bool:
        """Whether writes to ctx wait for the reducers, as in the loop of a step."""
        return self.loop.mode == "parallel" or bool(self.loop.reduce)

    async def run(self, inner: Inner | None) -> Outcome:
        """Run all of them, continuing where they were. Returns their combined outcome."""
        self.ctx = dict(self.frame.ctx)
        if inner is not None:
            self.begun = dict(inner.passes)
            self.writes = dict(inner.writes)
            if self.loop.mode == "sequential":
                for index in sorted(self.writes):
                    for path, value in self.writes[index].items():
                        put(self.ctx, path, value)
            for index, one in inner.ended.items():
                value = await self.driver.bodies.real(one.result)
                self.ended[index] = msgspec.structs.replace(one, result=value)
        known = frozenset(self.ended)
        todo = (index for index in range(self.count) if index not in known)
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self.lanes):
                lanes.create_task(self._lane(todo))
        if self.waits and not self._is_over():
            first = min(self.waits)
            begun = {index: one.progress for index, one in self.waits.items()}
            ended = {index: await self._recorded(index) for index in sorted(self.ended)}
            raise _interruption(
                self.waits[first],
                Inner(waits=first, passes={**self.begun, **begun}, ended=ended, writes=self.writes),
            )
        conflict = self._reduce()
        outcome = self._outcome()
        return conflict if conflict is not None and outcome.is_ok else outcome

    def _reduce(self) -> Outcome | None:
        """Write to ctx what all passes wrote, in their order; why that cannot be, if it cannot."""
        try:
            values = reduced(self.loop.reduce, self.writes, self.frame.ctx)
        except ReducerConflict as conflict:
            return failed("client_error", str(conflict), code="ctx_conflict")
        for path, value in values.items():
            put(self.frame.ctx, path, value)
            self.frame.ctx_writes[path] = value
        return None

    def _is_over(self) -> bool:
        """Whether a failure ends the loop."""
        return self.loop.on_error == "fail" and not all(one.is_ok for one in self.ended.values())

    async def _lane(self, todo: Iterator[int]) -> None:
        while not self.waits and not self._is_over():
            index = next(todo, None)
            if index is None:
                return
            ctx = None
            if self.is_reduced:
                # Parallel passes do not see each other's writes.
                ctx = dict(self.ctx) if self.loop.mode == "parallel" else self.ctx
            ended, frame = await _pass(
                self.driver,
                self.block,
                self.frame,
                self.inputs,
                derive(self.cause, index),
                self.begun.pop(index, None),
                ctx=ctx,
                own={self.loop.iterator: self.element(index), "index": index},
                position={"index": index, "length": self.count},
            )
            if not self.is_reduced:
                self.frame.ctx_writes.update(frame.ctx_writes)
            elif isinstance(ended, Suspension):
                progress = msgspec.structs.replace(ended.progress, writes=frame.ctx_writes)
                ended = msgspec.structs.replace(ended, progress=progress)
            elif frame.ctx_writes:
                self.writes[index] = frame.ctx_writes
            if isinstance(ended, Suspension):
                self.waits[index] = ended
            else:
                self.ended[index] = ended

    async def _recorded(self, index: int) -> Outcome:
        """The outcome of a pass, prepared for the record, because another one waits."""
        key = derive(self.cause, index, "pass")
        step_run = self.driver.step_run
        _, stored, body = recorded(self.ended[index], step_run.command, key, step_run.result_max)
        if body is not None:
            await self.driver.bodies.keep(body)
        return stored

    def _outcome(self) -> Outcome:
        ended, count = self.ended, self.count
        errors = {index: found.error for index, found in sorted(ended.items()) if not found.is_ok}
        if errors and self.loop.on_error == "fail":
            index, first = next(iter(errors.items()))
            assert first is not None
            message = f"iteration {index} of {self.block.name} failed: {first.message}"
            return failed(first.kind, message, code=first.code, retryable=first.retryable)
        results = [ended[index].result if index in ended else None for index in range(count)]
        stats = {"total": count, "success": len(ended) - len(errors), "failed": len(errors)}
        reasons = [loop_error(index, error) for index, error in errors.items() if error is not None]
        shown = reasons[:LOOP_ERRORS_MAX]
        result = {"results": results, "stats": stats}
        return ok({**result, "errors": shown} if shown else result)


async def _pass(
    driver: Driver,
    block: BlockProgram,
    outer: Frame,
    inputs: Values,
    cause: str,
    start: Progress | None = None,
    *,
    ctx: Values | None = None,
    own: Values | None = None,
    position: Values | None = None,
) -> tuple[Outcome | Suspension, Frame]:
    """One pass through the entry's pipeline, and the frame in which it ran.

    It writes to the caller's ctx, or to `ctx`.
    """
    frame = Frame(
        outer.program,
        outer.command,
        outer.ctx if ctx is None else ctx,
        iteration=outer.iteration,
        iter={**(own or {}), "parent": outer.iter},
        loop=position,
        start=start,
        args={**outer.command.args, **inputs},
        # Calls of different passes are different calls.
        cause=cause,
    )
    if len(block.tasks) == 1:
        # An entry that is one task is called like that task.
        frame.given = inputs
    frame.see(outer)
    if block.loop is not None and own is not None:
        iterator = block.loop.loop.iterator
        frame.names[iterator] = own[iterator]
    ended = await driver.drive(block.tasks, frame, inside=True)
    outer.vars_writes.update(frame.vars_writes)
    if isinstance(ended, Suspension):
        return ended, frame
    if ended.error is not None:
        message = f"{block.name}: {ended.error.message}"
        error = msgspec.structs.replace(ended.error, message=message, details=None)
        return Outcome(status="error", error=error), frame
    return ok(frame.previous), frame
