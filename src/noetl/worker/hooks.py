"""Hooks of a task: pipelines that run `before`, `after` and `finally` around each try of it.

They are a part of the try. Whatever repeats one of them waits where it is, and a try that is made
again after a crash runs its hooks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetl.engine.pipeline import TaskProgram
from noetl.model.commands import Suspension
from noetl.model.ids import derive
from noetl.model.outcome import Outcome, failed
from noetl.worker.blocks import Interrupted
from noetl.worker.frame import Frame
from noetl.worker.printing import NOTHING, Printed

if TYPE_CHECKING:
    from noetl.worker.runner import Runner


async def with_hooks(
    runner: Runner, program: TaskProgram, frame: Frame, action_id: str
) -> tuple[Outcome, Printed]:
    """`before`, the task, `after`; `finally` whatever happens, also on cancellation.

    A task that waits is not over, and goes on behind its `before`. Raises Interrupted.
    """
    waits = False
    try:
        goes_on = frame.inner is not None
        broken = None if goes_on else await _hook(runner, program, "before", frame, action_id)
        if broken is not None:
            return broken, NOTHING
        outcome, printed = await runner.call(program, frame, action_id)
        frame.show_outcome(program.task.kind, outcome)
        if outcome.is_ok:
            outcome = await _hook(runner, program, "after", frame, action_id) or outcome
    except Interrupted:
        waits = True
        raise
    finally:
        broken = None if waits else await _hook(runner, program, "finally", frame, action_id)
    return (broken if broken is not None and outcome.is_ok else outcome), printed


async def _hook(
    runner: Runner, program: TaskProgram, name: str, frame: Frame, action_id: str
) -> Outcome | None:
    """Run one hook; what it failed with, if it did."""
    tasks = {"before": program.before, "after": program.after, "finally": program.finally_}[name]
    if not tasks:
        return None
    inner = frame.around(derive(action_id, name))
    ended = await runner.pipeline(tasks, inner, inside=True)
    frame.names.update(frame.local)
    frame.scope.tainted |= inner.scope.tainted
    if isinstance(ended, Suspension):
        message = f'a hook (`{name}`) of task "{program.task.name}" calls a playbook, for which it'
        return failed(
            "client_error", f"{message} cannot wait. Call it from a task.", code="no_suspension"
        )
    return None if ended.error is None else Outcome(status="error", error=ended.error)
