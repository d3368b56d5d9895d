"""Work that the control plane hands to workers, and what comes back.

A command is self-contained: with the net it names, a worker can run it anywhere. Large values
travel as references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from noetl.model.chains import Progress, Routing
from noetl.model.events import Event
from noetl.model.ids import CommandId, ExecutionId, StepRunId
from noetl.model.net import Values
from noetl.model.outcome import TaskError
from noetl.model.state import StepResult


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Iterations `start … stop - 1` of a loop, at most `concurrency` of them at once."""

    start: int
    stop: int
    items: Any = None
    """Their elements, or a reference to all elements of the loop; None for a range."""
    total: int | None = None
    begin: int | float = 0
    by: int | float = 1
    """A range: iteration 0 has `begin`, each further one `by` more."""
    concurrency: int = 1
    skip: tuple[int, ...] = ()
    """Iterations that are already recorded."""
    claims: bool = False
    """A frame of a cursor: its worker claims the elements, and counts them from 0."""
    chains: tuple[tuple[int, ...], ...] = ()
    """Of a partitioned loop: iterations to run, those of a chain one after the other."""
    keys: bool = False
    """Only compute the keys of these iterations."""


SUSPECT_AFTER = 3
"""A command requeued this often was lost twice: perhaps it kills its workers."""
_ALONE = " (alone)"


def apart(queue: str) -> str:
    """The queue for commands that need a worker which runs nothing else."""
    return queue + _ALONE


def is_apart(queue: str) -> bool:
    return queue.endswith(_ALONE)


def placed(pool: str, labels: Mapping[str, str]) -> str:
    """The queue of commands that require these labels, and what a worker with them offers."""
    if not labels:
        return pool
    return f"{pool} [{','.join(sorted(f'{key}={value}' for key, value in labels.items()))}]"


@lru_cache(maxsize=10_000)
def place_of(queue: str) -> tuple[str, frozenset[str]]:
    """The pool of a queue, and the labels that it requires, each as `key=value`."""
    pool, found, rest = queue.removesuffix(_ALONE).partition(" [")
    return pool, frozenset(rest.removesuffix("]").split(",")) if found else frozenset()


def pool_of(queue: str) -> str:
    """The pool whose workers serve the queue."""
    return place_of(queue)[0]


def serves(offer: str, queue: str) -> bool:
    """Whether a worker with this offer serves the queue: it has all required labels."""
    (pool, labels), (wanted, asked) = place_of(offer), place_of(queue)
    return pool == wanted and asked <= labels


def missing_labels(queues: Mapping[str, tuple[int, int]], offers: Sequence[str]) -> list[str]:
    """The labels that keep every worker of the pool from these queues."""
    found: set[str] = set()
    for queue, (waiting, _) in queues.items():
        if waiting and not any(serves(offer, queue) for offer in offers):
            found |= lacking(queue, offers)
    return sorted(found)


def lacking(queue: str, offers: Sequence[str]) -> frozenset[str]:
    """The labels that the best matching worker lacks."""
    asked = place_of(queue)[1]
    return min((asked - place_of(offer)[1] for offer in offers), key=len, default=asked)


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Run a step, or a part of its loop."""

    command_id: CommandId
    execution_id: ExecutionId
    digest: str
    """Of the net."""
    step: str
    step_run_id: StepRunId
    args: Values = {}
    workload: Values = {}
    ctx: Values = {}
    vars: Values = {}
    steps: dict[str, StepResult] = {}
    """Results of earlier steps that the step uses."""
    chunk: Chunk | None = None
    iteration: int | None = None
    """Set when one suspended iteration continues by itself."""
    progress: Progress | None = None
    local: Values = {}
    """Names of the step run that its rules have set."""
    block: str | None = None
    """Run this workbook entry instead of the step's tasks: a compensation."""
    pool: str = "default"
    priority: int = 0
    turn: int = 0
    """Of the waiting commands with the same priority, the lowest goes first; see
    `control.leases`.
    """
    at: float = 0.0
    """When the run was decided; `now()` of its templates."""
    deliveries: int = 1
    parent_execution_id: ExecutionId | None = None
    seal: str = ""
    """Marks the execution's references; see `model.refs`."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run a command and report on it, until it lapses."""

    command: Command
    token: str
    """The fence: a report under any other token is refused."""
    expires_at: float


EMBEDDED = "embedded-"
"""Prefix of the names of workers inside the process of their control plane."""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's heartbeat."""

    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    pool: str = "default"
    slots: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    host: str = ""
    version: str = ""
    draining: bool = False
    sandbox: Annotated[str, msgspec.Meta(max_length=40)] = ""


class Orders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Instructions for a worker about commands that it holds."""

    stop: set[CommandId] = set()
    """They are over: interrupt their calls."""
    pause: set[CommandId] = set()
    """Let running calls end, and begin nothing new under them."""

    def __bool__(self) -> bool:
        return bool(self.stop or self.pause)


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A playbook to run as a child."""

    path: str
    version: int | None = None
    workload: Values = {}
    return_step: str | None = None
    timeout: float | None = None
    """Seconds after which the child is cancelled, and the task ends as `timeout`."""


class Suspension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run (or one iteration of it) that continues later, and holds no worker until then."""

    progress: Progress
    iteration: int | None = None
    until: float | None = None
    """By the worker's clock, as `at`: how long it waits is what counts."""
    at: float | None = None
    child: ChildRequest | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run without loop ended on the worker."""

    error: TaskError | None = None
    result: Any = None
    tasks: Values = {}
    """With several tasks, the result of each."""
    next: Routing | None = None
    """Where a rule sends the tokens."""
    suppressed: tuple[str, ...] = ()
    """Branches that lost against it."""
    skipped: str | None = None
    """Why the step is skipped, if a rule says so."""
    recovered: bool = False
    """A rule set the step's result although it failed."""


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's report on a command it holds. The last one closes the command."""

    command_id: CommandId
    execution_id: ExecutionId
    token: str
    number: int
    """Counts the reports of this lease from 1, so that a repeated one is recognised."""
    worker: str = ""
    """Who speaks."""
    events: tuple[Event, ...] = ()
    suspensions: tuple[Suspension, ...] = ()
    ending: Ending | None = None
    """For a run without loop."""
    closes: bool = False
    """No more reports follow under this lease."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a report."""

    accepted: bool
    cancelled: bool = False
    """The run is no longer wanted: stop it."""
    leases: tuple[Lease, ...] = ()
    """The next commands, if the worker asked for some."""
