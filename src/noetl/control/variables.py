"""The variables of an execution, set and removed from outside."""

from __future__ import annotations

from typing import Any

from noetl.control.orchestrator import Orchestrator
from noetl.engine import advance
from noetl.errors import Finished
from noetl.model.events import Actor, VarsSet
from noetl.model.ids import ExecutionId


async def change(
    orchestrator: Orchestrator,
    execution_id: ExecutionId,
    values: dict[str, Any],
    removed: tuple[str, ...] = (),
    *,
    actor: Actor | None = None,
) -> None:
    """Set these and remove those; steps that start from now on see it. Raises Finished."""
    state = await orchestrator.state(execution_id)
    if state.is_finished:
        raise Finished(f"execution {execution_id} has ended, and ended it stays.")
    await orchestrator.happen(
        execution_id,
        lambda live, now: advance.vars_set(
            live.program,
            live.state,
            execution_id,
            VarsSet(at=now, values=values, removed=removed, actor=actor),
        ),
    )
