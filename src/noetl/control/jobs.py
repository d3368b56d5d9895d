"""What the orchestrator works on: things that happened, gathered into batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from noetl.control.dispatch import Waiter
from noetl.control.live import Live
from noetl.engine import advance
from noetl.engine.turn import Decision, TellParent
from noetl.model.events import ChildFinished
from noetl.model.ids import CommandId, ExecutionId
from noetl.store.base import Write

Decide = Callable[[Live], Decision]


class Job:
    """Something that happened to one execution, and who waits for it to be stored."""

    __slots__ = ("closes", "coming", "create", "decide", "execution_id", "future", "waiter")

    def __init__(
        self,
        execution_id: ExecutionId,
        decide: Decide,
        *,
        create: Callable[[], Live] | None = None,
        closes: CommandId | None = None,
        waiter: Waiter | None = None,
        coming: tuple[Any, ...] = (),
    ) -> None:
        self.coming = coming
        """Results that it brings."""
        self.execution_id = execution_id
        self.decide = decide
        self.create = create
        self.closes = closes
        self.waiter = waiter
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Batch:
    """What one round decides."""

    def __init__(self) -> None:
        self.writes: dict[ExecutionId, Write] = {}
        self.jobs: list[Job] = []
        self.todo: deque[Job] = deque()
        self.closed: list[tuple[CommandId, bool]] = []


def fail(job: Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)
        # A job of our own making (the end of a child, say) has nobody who would look.
        job.future.exception()


def parent_job(child: ExecutionId, effect: TellParent, now: float) -> Job:
    parent = effect.parent
    fact = ChildFinished(
        at=now,
        step_run_id=parent.step_run_id,
        child=child,
        status=effect.status,
        result=effect.result,
        error=effect.error,
        iteration=parent.iteration,
    )

    def decide(live: Live) -> Decision:
        return advance.child_ended(live.program, live.state, parent.execution_id, fact)

    return Job(parent.execution_id, decide, coming=(effect.result,))


def cancel_job(child: ExecutionId, reason: str, now: float) -> Job:
    def decide(live: Live) -> Decision:
        return advance.cancel(live.program, live.state, child, now, reason)

    return Job(child, decide)


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The workload: the playbook's defaults with the request's values deep-merged over them."""
    result = dict(defaults)
    for key, value in given.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
