"""One turn of the engine: the facts and effects that follow from something that happened.

Effects are values. The shell performs them after the facts are safely stored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.engine.evolve import Recorder
from noetl.engine.program import Program
from noetl.model.commands import ChildRequest, Command
from noetl.model.events import Event, FinalStatus, Parent, StepDone, StepFailed
from noetl.model.ids import CommandId, ExecutionId, StepRunId
from noetl.model.outcome import TaskError
from noetl.model.state import Run


class Issue(msgspec.Struct, frozen=True):
    """Hand this to a worker."""

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
    """The workings of one call of `advance`. Lives no longer than that."""

    program: Program
    execution_id: ExecutionId
    at: float
    effects: list[Effect] = msgspec.field(default_factory=list)
    ended: dict[StepRunId, Run] = msgspec.field(default_factory=dict)
    """Runs that ended in this turn: routing reads their args."""
    last_word: CommandId | None = None
    """The command that is over whatever follows: by its own last report, or lost."""
    runs_started: int = 0

    def of(self, run: Run | StepDone | StepFailed) -> dict[str, Any]:
        """What every fact about a step run says: when it happened, and to which run."""
        return {"at": self.at, "step_run_id": run.step_run_id, "step": run.step}
