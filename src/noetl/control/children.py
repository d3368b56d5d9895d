"""How executions that a step calls begin, and how their end reaches that step."""

from __future__ import annotations

from typing import NamedTuple

from noetl.control.programs import Programs, workload_of
from noetl.engine.evolve import NOT_STARTED
from noetl.engine.turn import StartChild, TellParent
from noetl.errors import BadRequest, NotFound, TooLarge, TooMany
from noetl.model.events import Actor, ChildFinished, ExecutionRequested
from noetl.model.ids import ExecutionId
from noetl.model.inputs import ChildEnded, Start
from noetl.model.labels import combined
from noetl.model.outcome import ErrorKind, TaskError
from noetl.model.state import ExecutionState
from noetl.store.credentials import Credentials


class ChildLimits(NamedTuple):
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


class Children:
    """Makes the starts of children."""

    def __init__(self, credentials: Credentials, programs: Programs, limits: ChildLimits) -> None:
        self._credentials = credentials
        self._programs = programs
        self._limits = limits

    async def start(
        self, effect: StartChild, caller: ExecutionState, now: float
    ) -> Start | ChildEnded:
        """The start of a child; if there is no such playbook, its end.

        It has its caller's seal, so each can read what the other keeps, and its labels, unless its
        playbook says others.
        """
        parent, request = effect.parent, effect.request
        try:
            program, entry = await self._programs.by_path(request.path, request.version)
            workload = await workload_of(self._credentials, program, request.workload)
            self._limits.refuse(effect)
        except NotFound as error:
            return _refused(effect, "not_found", "no_playbook", str(error), now)
        except (TooLarge, TooMany, BadRequest) as error:
            return _refused(effect, "client_error", error.code, str(error), now)
        requested = ExecutionRequested(
            at=now,
            path=entry.path,
            digest=entry.digest,
            version=entry.version,
            payload=request.workload,
            parent=parent,
            actor=Actor(kind="playbook", name=parent.execution_id),
            labels=combined(caller.labels, program.labels),
            seal=caller.seal,
        )
        return Start(execution_id=effect.child, at=now, request=requested, workload=workload)


def _refused(effect: StartChild, kind: ErrorKind, code: str, why: str, now: float) -> ChildEnded:
    """The end of a child that never began."""
    error = TaskError(kind=kind, code=code, message=why, details=NOT_STARTED)
    return child_ended(effect.child, TellParent(effect.parent, "FAILED", None, error), now)


def child_ended(child: ExecutionId, effect: TellParent, now: float) -> ChildEnded:
    """The end of a child, as an input for its parent."""
    parent = effect.parent
    fact = ChildFinished(
        at=now,
        step_run_id=parent.step_run_id,
        child=child,
        status=effect.status,
        result=effect.result,
        error=effect.error,
        iteration=parent.iteration,
        warnings=effect.warnings,
    )
    return ChildEnded(execution_id=parent.execution_id, at=now, fact=fact)
