"""One turn of the engine: the facts and effects that follow from one input.

Effects are values. The commit loop (`noetl.control.commit_loop`) makes them part of the transaction
that stores the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.engine.evolve import Recorder
from noetl.engine.program import Program
from noetl.model.commands import ChildRequest, Command
from noetl.model.events import Event, FinalStatus, Parent, StepDone, StepFailed
from noetl.model.facts import Warned
from noetl.model.ids import CommandId, ExecutionId, StepRunId
from noetl.model.outcome import TaskError
from noetl.model.state import Run


class Issue(msgspec.Struct, frozen=True):
    """Open this command."""

    command: Command


class Close(msgspec.Struct, frozen=True):
    """The command is not needed any more; a worker that has it must stop."""

    command_id: CommandId


class StartChild(msgspec.Struct, frozen=True):
    """Start an execution that reports its end to this run."""

    child: ExecutionId
    request: ChildRequest
    parent: Parent
    number: int
    """Counts the children of the execution."""


class CancelChild(msgspec.Struct, frozen=True):
    """The step run that waited for this child has ended."""

    child: ExecutionId
    reason: str


class TellParent(msgspec.Struct, frozen=True):
    """This execution has ended, and the step run that called it waits for that."""

    parent: Parent
    status: FinalStatus
    result: Any = None
    error: TaskError | None = None
    warnings: tuple[Warned, ...] = ()


class Keep(msgspec.Struct, frozen=True):
    """Store a body together with the facts that refer to it."""

    key: str
    body: bytes


class EndLoop(msgspec.Struct, frozen=True):
    """A loop is over, and its results, or some of them, are put away: what follows may read them.

    The shell has them at hand and comes back (`LoopEnded`) in the same transaction.
    """

    step_run_id: StepRunId
    result: Any


OtherEffect = Keep | EndLoop | Close | StartChild | CancelChild | TellParent
Effect = Issue | OtherEffect


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The facts and effects of one turn."""

    events: tuple[Event, ...]
    effects: tuple[Effect, ...]


NO_CONSEQUENCES = Decision((), ())


class Turn(Recorder, eq=False, kw_only=True):
    """One call of `advance` while it is made: its facts and effects so far."""

    program: Program
    execution_id: ExecutionId
    at: float
    bodies: Mapping[str, Any]
    """Large results at hand, by the key of their reference."""
    effects: list[Effect] = msgspec.field(default_factory=list)
    ended: dict[StepRunId, Run] = msgspec.field(default_factory=dict)
    """Runs that ended in this turn: routing reads their args."""
    closing_command: CommandId | None = None
    """The command whose last report or loss is being decided: the caller closes it."""
    runs_started: int = 0

    def about(self, run: Run | StepDone | StepFailed) -> dict[str, Any]:
        """The fields of every fact about a step run: when it happened, and to which run."""
        return {"at": self.at, "step_run_id": run.step_run_id, "step": run.step}
