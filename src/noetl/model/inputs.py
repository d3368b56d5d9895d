"""Everything that can happen to an execution, as values.

An execution moves only when it is given one of these: `engine.advance(program, state, input)` says
what follows. Each names its execution and the moment it happened, by the clock of the server that
took it in.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.model.commands import Report
from noetl.model.events import Actor, ChildFinished, ExecutionRequested, StepDone, StepFailed
from noetl.model.ids import CommandId, ExecutionId, StepRunId
from noetl.model.outcome import TaskError
from noetl.model.signals import ApprovalReceived, MessageReceived
from noetl.model.state import ExecutionState, Run
from noetl.model.triggers import TriggerChange


class _Input(msgspec.Struct, frozen=True, kw_only=True):
    execution_id: ExecutionId
    at: float


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """What a rerun or a fork begins with: a state without open work."""

    source: ExecutionId
    state: ExecutionState
    entry: str | None = None
    """A rerun: the step that it begins with."""
    seq: int | None = None
    iteration: int | None = None
    ctx: dict[str, Any] = {}
    """What was changed in the ctx of the state."""
    ended: tuple[tuple[StepDone | StepFailed, Run], ...] = ()
    """Runs that ended just then: where their tokens go is yet to be decided."""


class Start(_Input, frozen=True, kw_only=True):
    """An execution was asked for. The same id again changes nothing."""

    request: ExecutionRequested
    workload: dict[str, Any]
    seed: Seed | None = None
    """What it begins with, if another execution has come so far already."""
    refused: TaskError | None = None
    """It fails at once, for this reason."""
    trigger: TriggerChange | None = None
    """What started it, to be stored with its first events; the engine does not read it."""
    full: tuple[str, ...] = ()
    """Limits that have no room for it, as the store has said."""


class Admitted(_Input, frozen=True, kw_only=True):
    """There is room for an execution that waits for its turn: it starts."""


class Leased(_Input, frozen=True, kw_only=True):
    """A worker took a command of a run. The first one starts the run."""

    step_run_id: StepRunId
    worker: str


class Reported(_Input, frozen=True, kw_only=True):
    """A worker that holds the lease has something to say."""

    report: Report


class Refused(_Input, frozen=True, kw_only=True):
    """A report came from a worker that does not hold the lease."""

    report: Report


class Lapsed(_Input, frozen=True, kw_only=True):
    """A lease ran out: the work goes on under a new command, from where it was recorded."""

    command_id: CommandId
    worker: str
    given_back: bool = False
    """Its worker was stopped, so the command is not suspected of killing workers."""
    alone: bool = False
    """Its worker ran nothing else, so no other command is suspected."""


class TimerDue(_Input, frozen=True, kw_only=True):
    """A timer's moment has come."""

    timer_id: str


class ChildEnded(_Input, frozen=True, kw_only=True):
    """A child execution that a run waits for has ended."""

    fact: ChildFinished


class LoopEnded(_Input, frozen=True, kw_only=True):
    """The results of a loop that is over are at hand. Follows the effect `EndLoop`."""

    step_run_id: StepRunId
    result: Any


class Signalled(_Input, frozen=True, kw_only=True):
    """An external event: waiting steps consider it; if none takes it, it is kept."""

    signal: MessageReceived | ApprovalReceived


class Cancelled(_Input, frozen=True, kw_only=True):
    """The execution is cancelled: it stops now, and running work is interrupted."""

    reason: str
    cascade: bool = True
    """Its children stop, too; otherwise they go on without it."""
    actor: Actor | None = None


class Paused(_Input, frozen=True, kw_only=True):
    """Calls that run end; nothing new is handed out, and workers begin nothing more."""

    reason: str
    actor: Actor | None = None


class Resumed(_Input, frozen=True, kw_only=True):
    """What was held back is handed out."""

    actor: Actor | None = None


class VarsChanged(_Input, frozen=True, kw_only=True):
    """Variables are set or removed from outside; steps that start later see it."""

    values: dict[str, Any]
    removed: tuple[str, ...] = ()
    actor: Actor | None = None


class Nothing(_Input, frozen=True, kw_only=True):
    """Nothing happened: the sender wants to know when all before it is stored."""


Input = (
    Start
    | Admitted
    | Leased
    | Reported
    | Refused
    | Lapsed
    | TimerDue
    | ChildEnded
    | LoopEnded
    | Signalled
    | Cancelled
    | Paused
    | Resumed
    | VarsChanged
    | Nothing
)
