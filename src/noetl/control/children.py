"""How executions that a step calls begin."""

from __future__ import annotations

from typing import NamedTuple

from noetl.control.jobs import Job, merged, parent_job
from noetl.control.live import Live
from noetl.control.programs import Programs, refuse_large
from noetl.engine import advance
from noetl.engine.turn import Decision, StartChild, TellParent
from noetl.errors import NotFound, TooLarge, TooMany
from noetl.model.events import Actor, ExecutionRequested
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState


class Family(NamedTuple):
    """How far executions may call others, as the operator says."""

    depth: int = 50
    children: int = 1_000_000

    def refuse(self, effect: StartChild) -> None:
        """Raises TooMany: executions that call each other without end would fill the database."""
        if effect.parent.depth > self.depth:
            raise TooMany(
                f"{effect.parent.depth} playbooks would call each other, and {self.depth} may: does"
                f' "{effect.request.path}" call itself? The operator raises NOETL_MAX_DEPTH.'
            )
        if effect.number > self.children:
            raise TooMany(
                f"this execution has started {self.children:,} others, and may start no more."
                " The operator raises NOETL_MAX_CHILDREN."
            )


async def child_job(
    programs: Programs, family: Family, effect: StartChild, now: float, seal: str
) -> Job:
    """The start of a child; if there is no such playbook, its end.

    It has its parent's `seal`: each can read what the other keeps.
    """
    parent, request = effect.parent, effect.request
    try:
        program, entry = await programs.by_path(request.path, request.version)
        refuse_large(program, request.workload)
        family.refuse(effect)
    except NotFound as error:
        missing = TaskError(kind="not_found", code="no_playbook", message=str(error))
        return parent_job(effect.child, TellParent(parent, "FAILED", None, missing), now)
    except (TooLarge, TooMany) as error:
        refused = TaskError(kind="client_error", code=error.code, message=str(error))
        return parent_job(effect.child, TellParent(parent, "FAILED", None, refused), now)
    requested = ExecutionRequested(
        at=now,
        path=entry.path,
        digest=entry.digest,
        version=entry.version,
        payload=request.workload,
        parent=parent,
        actor=Actor(kind="playbook", name=parent.execution_id),
        seal=seal,
    )
    workload = merged(program.net.workload, request.workload)

    def create() -> Live:
        return Live(effect.child, program, ExecutionState())

    def decide(live: Live) -> Decision:
        return advance.start(
            live.program,
            live.state,
            effect.child,
            requested,
            workload=workload,
        )

    return Job(effect.child, decide, create=create)
