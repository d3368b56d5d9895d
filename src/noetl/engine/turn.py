"""One turn of the engine: the facts and effects that follow from something that happened.

Effects are values. The shell performs them after the facts are safely stored.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from noetl.engine.evolve import evolve
from noetl.engine.program import Program
from noetl.model.commands import ChildRequest, Command
from noetl.model.events import Event, FinalStatus, Parent
from noetl.model.ids import CommandId, ExecutionId, StepRunId
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState


class Issue(msgspec.Struct, frozen=True):
    """Hand this to a worker."""

    command: Command


class Close(msgspec.Struct, frozen=True):
    """Nobody needs this command any more; if a worker has it, it must stop."""

    command_id: CommandId


class StartChild(msgspec.Struct, frozen=True):
    """Start an execution that reports its end to this run."""

    child: ExecutionId
    request: ChildRequest
    parent: Parent


class CancelChild(msgspec.Struct, frozen=True):
    """The run that waited for it is gone."""

    child: ExecutionId
    reason: str


class TellParent(msgspec.Struct, frozen=True):
    """This execution has ended, and somebody waits for that."""

    parent: Parent
    status: FinalStatus
    result: Any = None
    error: TaskError | None = None


Effect = Issue | Close | StartChild | CancelChild | TellParent


class Decision(msgspec.Struct, frozen=True):
    """What one turn came to."""

    events: tuple[Event, ...]
    effects: tuple[Effect, ...]


class Turn:
    """The workings of one call of `advance`. Lives no longer than that."""

    __slots__ = ("at", "effects", "events", "execution_id", "pending", "program", "state")

    def __init__(
        self, program: Program, state: ExecutionState, execution_id: ExecutionId, at: float
    ) -> None:
        self.program = program
        self.state = state
        self.execution_id = execution_id
        self.at = at
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        self.pending: deque[Event] = deque()

    def record(self, fact: Event) -> None:
        """It has happened: fold it, keep it, and let its consequences follow."""
        evolve(self.state, fact)
        self.events.append(fact)
        self.pending.append(fact)

    def effect(self, effect: Effect) -> None:
        self.effects.append(effect)

    def close_commands(self, step_run_id: StepRunId) -> None:
        """The run is about to end: whatever works on it must stop."""
        run = self.state.runs[step_run_id]
        for command_id in run.commands:
            self.effects.append(Close(command_id))
        for child in run.children:
            self.effects.append(CancelChild(child, "the step that waited for it has ended"))
