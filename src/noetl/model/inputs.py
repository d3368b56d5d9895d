"""Everything that can happen to an execution, as values.

An execution moves only when it receives one of these: `engine.advance(program, state, input)`
decides what follows. Each names its execution and the moment it happened, by the clock of the
server that received it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.model.commands import Report
from noetl.model.events import (
    Actor,
    ApprovalReceived,
    ChildFinished,
    ExecutionRequested,
    MessageReceived,
    StepDone,
    StepFailed,
)
from noetl.model.ids import CommandId, ExecutionId, StepRunId
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState, Run
from noetl.model.triggers import TriggerChange


class _Input(msgspec.Struct, frozen=True, kw_only=True):
    execution_id: ExecutionId
    at: float


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a rerun or a fork begins with, without open work."""

    source: ExecutionId
    state: ExecutionState
    entry: str | None = None
    """For a rerun: the step that it begins with."""
    seq: int | None = None
    iteration: int | None = None
    ctx: dict[str, Any] = {}
    """Changes to the ctx of the state."""
    ended: tuple[tuple[StepDone | StepFailed, Run], ...] = ()
    """Runs that had just ended: where their tokens go is yet to be decided."""


class Start(_Input, frozen=True, kw_only=True):
    """An execution was requested. The same id again changes nothing."""

    request: ExecutionRequested
    workload: dict[str, Any]
    seed: Seed | None = None
    """The initial state, if it continues another execution."""
    refused: TaskError | None = None
    """It fails at once, for this reason."""
    trigger: TriggerChange | None = None
    """The trigger that started it, stored with its first events; the engine does not read it."""
    full: tuple[str, ...] = ()
    """Limits that have no room for it, according to the store."""


class Admitted(_Input, frozen=True, kw_only=True):
    """There is room for an execution that waits for its turn: it starts."""


class Leased(_Input, frozen=True, kw_only=True):
    """A worker took a command of a run. The first one starts the run."""

    command_id: CommandId
    step_run_id: StepRunId
    worker: str


class Reported(_Input, frozen=True, kw_only=True):
    """A report of a worker that holds the lease."""

    report: Report


class Refused(_Input, frozen=True, kw_only=True):
    """A report of a worker that does not hold the lease."""

    report: Report


class Lapsed(_Input, frozen=True, kw_only=True):
    """A lease lapsed: the work continues under a new command, from what was recorded."""

    command_id: CommandId
    worker: str
    given_back: bool = False
    """Its worker was stopped, so the command is not suspected of killing workers."""
    alone: bool = False
    """Its worker ran nothing else, so no other command is suspected."""


class TimerDue(_Input, frozen=True, kw_only=True):
    """A timer is due."""

    timer_id: str


class ChildEnded(_Input, frozen=True, kw_only=True):
    """A child execution that a run waits for has ended."""

    fact: ChildFinished


class LoopEnded(_Input, frozen=True, kw_only=True):
    """The results of a finished loop have been read. Follows the effect `EndLoop`."""

    step_run_id: StepRunId
    result: Any


class Signalled(_Input, frozen=True, kw_only=True):
    """An external event: waiting steps consider it; if none takes it, it is kept."""

    signal: MessageReceived | ApprovalReceived


class Cancelled(_Input, frozen=True, kw_only=True):
    """The execution is cancelled: it stops now, and running work is interrupted."""

    reason: str
    cascade: bool = True
    """Cancel its children, too; otherwise they continue without it."""
    actor: Actor | None = None
    key: str = ""
    """The caller's idempotency key: under the same one it is the same cancellation."""


class Paused(_Input, frozen=True, kw_only=True):
    """Running calls end; no commands are leased, and workers begin nothing new."""

    reason: str
    actor: Actor | None = None


class Resumed(_Input, frozen=True, kw_only=True):
    """Commands that were held back are leased again."""

    actor: Actor | None = None


class VarsChanged(_Input, frozen=True, kw_only=True):
    """Variables are set or removed from outside; steps that start later see it."""

    values: dict[str, Any]
    removed: tuple[str, ...] = ()
    actor: Actor | None = None


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
)
