"""The state of an execution: the fold of its events.

Only `engine.evolve` changes it, in place. A snapshot holds it, too, so everything in it is plain
data. Finished step runs leave only a summary: the size of the state depends on what is under way in
an execution, not on what has happened.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from noetl.model.chains import SERVER_STAGES, Chain
from noetl.model.events import NextEvaluated, Parent, Progress
from noetl.model.facts import Actor, Source, Undefined, Warned, WarnedAbout
from noetl.model.ids import CommandId, StepRunId, TokenId
from noetl.model.net import Values
from noetl.model.outcome import TaskError
from noetl.model.signals import Listening

Status = Literal["PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"]
TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class Token(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A token that waits at a step."""

    token_id: TokenId
    step: str
    args: Values = {}
    arc: str = ""
    ready_at: float | None = None
    priority: int = 0
    event: Values = {}
    past: dict[str, int] = {}
    """Which run of each absorbing join it descends from."""
    timer: str | None = None
    """The timer that makes it ready."""
    order: int = 0
    """Position in the order of arrival."""
    partition: str = ""
    """It waits for runs of its step with the same partition."""


class StepResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a step leaves for others to read."""

    value: Any = None
    tasks: Values = {}
    references: Values = {}
    """On a worker: the references of large values, by task; the step's own under the empty name."""


class Partitions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which iterations of a partitioned loop may run: each follows the one before it with its key.

    Only iterations that have not ended are in here, and of those that come later only a window.
    """

    keyed: int = 0
    """The number of iterations, from 0 on, whose keys are known."""
    keying: CommandId = ""
    """The command that computes more keys."""
    tails: dict[str, int] = {}
    """The last iteration of each key."""
    followers: dict[int, int] = {}
    """The next iteration with the same key."""
    ready: dict[int, None] = {}
    """Iterations that no worker has and that wait for no other."""
    handed: dict[int, CommandId] = {}
    """Iterations that open commands have."""
    chains: dict[CommandId, tuple[tuple[int, ...], ...]] = {}
    """Open commands → what they have."""
    left: dict[CommandId, int] = {}
    """Open commands → how many of their chains are not through."""


class LoopState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The progress of a loop."""

    total: int | None
    items: Any = None
    """The elements, or a reference to them."""
    given: int = 0
    """Iterations handed out, from 0 up; for a cursor, those that were claimed."""
    success: int = 0
    failed: int = 0
    begin: int | float = 0
    by: int | float = 1
    """A range: its first number, and the step from each to the next."""
    in_flight: int = 1
    lanes: int = 1
    size: int = 1
    chunks: dict[CommandId, tuple[int, int]] = {}
    """Open chunks: command → (start, stop)."""
    widths: dict[CommandId, int] = {}
    """Open chunks: command → how many of its iterations may be running."""
    frames: dict[CommandId, int | None] = {}
    """Open frames of a cursor: command → its first iteration, once it has claimed; -1 if none."""
    dry: int = 0
    """Frames of a cursor that found nothing left."""
    parts: Partitions | None = None
    max_pending: int | None = None
    claimed: dict[CommandId, int] = {}
    """With `max_pending`, open frames → how many of their elements neither ended nor wait."""
    returned: list[tuple[int, int]] = []
    """Iterations that were handed out and returned without having begun: (start, stop)."""
    resuming: dict[CommandId, int] = msgspec.field(default_factory=dict, name="alone")
    """Open commands that continue one suspended iteration → that iteration."""
    woken: list[int] = []
    """Suspended iterations that may continue as soon as work is handed out again."""
    results: dict[int, Any] = {}
    """Results of ended iterations, null for a failed one; those in `segments` are stored apart."""
    weight: int = 0
    """The approximate number of bytes of `results`."""
    segment: int = 100
    """Results per segment."""
    filled: dict[int, int] = {}
    """Segments not yet stored → how many of their iterations have ended."""
    segments: dict[int, str] = {}
    """Stored segments → checksum."""
    kept: int = 0
    """Bytes in stored segments."""
    errors: list[Values] = []
    """Why iterations failed, of the first of them in order: `[{index, error}]`."""
    first_error: tuple[int, TaskError] | None = None
    """The failed iteration with the lowest number, and why it failed."""
    patches: dict[int, Values] = {}
    """What iterations wrote to ctx, until the loop ends and reducers fold it in order."""
    suspended: dict[int, Progress | None] = {}
    """Iterations that were suspended and have not ended since."""
    suspends: bool = False
    """An iteration was suspended, so the next ones probably will be."""
    stopping: bool = False
    """No more iterations are handed out."""

    @property
    def ended(self) -> int:
        return self.success + self.failed

    def has_ended(self, iteration: int) -> bool:
        return iteration in self.results or iteration // self.segment in self.segments

    @property
    def may_claim(self) -> bool:
        """Whether another frame of a cursor may be issued. With `max_pending` one claims at a
        time, so that the next one knows how many have not ended.
        """
        if self.max_pending is None:
            return True
        pending = sum(self.claimed.values()) + len(self.suspended)
        return pending < self.max_pending and None not in self.frames.values()


class Used(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What calls have used together. Counted only if there are quotas."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Run(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A step run that has not ended."""

    step_run_id: StepRunId
    step: str
    number: int
    args: Values = {}
    scheduled_at: float = 0.0
    started: bool = False
    loop: LoopState | None = None
    progress: Progress | None = None
    """Where its pipeline continues, after a crash or a wait."""
    commands: dict[CommandId, int] = {}
    """Open commands → how often each was delivered."""
    alone: dict[CommandId, int] = {}
    """Open commands → how many workers died while they ran only this one."""
    paused: dict[CommandId, None] = {}
    """Open commands under which, according to their workers, nothing new begins."""
    waiting: bool = False
    listens: Listening | None = None
    """It waits for external events; between two of them it may be at work."""
    children: dict[str, int | None] = {}
    """Child executions it waits for → iteration."""
    reported: dict[CommandId, int] = {}
    """Open commands → number of the last report taken."""
    timers: dict[str, None] = {}
    """Timers set for it, in order."""
    compensates: StepRunId | None = None
    undoes: str = ""
    """The step of the run that it compensates."""
    block: str | None = None
    handles_failure: bool = False
    priority: int = 0
    past: dict[str, int] = {}
    order: int = 0
    local: Values = {}
    """Names of its own that rules have set."""
    yields: tuple[Any, ...] = ()
    """The result that a rule set; empty if none did."""
    next: NextEvaluated | None = None
    """Where a rule sends its tokens, instead of its arcs."""
    partition: str = ""
    used: Used = Used()

    @property
    def following(self) -> Chain | None:
        """Rules for an event that the server received, while a worker follows them."""
        chain = self.progress.chain if self.progress is not None else None
        if chain is None or chain.outermost.stage not in SERVER_STAGES:
            return None
        return chain.outermost

    @property
    def open_loop(self) -> LoopState | None:
        """The loop, until a worker follows the rules for its end."""
        return self.loop if self.following is None else None


class Undo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A done run, and what undoes it should the execution fail."""

    step_run_id: StepRunId
    step: str
    by: str
    """A step or a workbook entry."""
    result: Any = None


class StepSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What people see of a step in an execution."""

    status: Literal["running", "done", "failed", "skipped", "cancelled"] = "running"
    runs: int = 0
    attempts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    error: TaskError | None = None
    loop_total: int | None = None
    loop_success: int = 0
    loop_failed: int = 0
    loop_errors: dict[str, int] = {}
    """Why iterations failed → how many of them did; the first few reasons."""
    undone: int = 0
    """Runs of it that were compensated."""
    undoes: int = 0
    """How many of its runs compensated another."""
    unmatched: int = 0
    """Runs after which none of its arcs held: its branch ended there."""


class Act(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An action on the execution from outside: who, what, when."""

    at: float
    action: str
    """The stored name of the event."""
    actor: Actor
    reason: str = ""
    key: str = ""
    """The idempotency key of the request, if it had one."""


ACTS_MAX = 50
"""The last ones are kept in the state; the log has all of them."""
WARNINGS_MAX = 50
"""Different ones that an execution keeps; a mistake in a loop is one of them."""


class TimerState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A timer that has not fired."""

    timer_id: str
    fires_at: float
    purpose: str
    step_run_id: StepRunId | None = None
    token_id: TokenId | None = None
    iteration: int | None = None
    name: str = ""


class Signal(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An external event that is not settled.

    It is kept until every waiting step has been offered it, and, if none took it, for steps that
    wait later.
    """

    signal_id: str
    name: str
    data: Any = None
    step: str = ""
    """The step it is addressed to, if only one."""
    taken: bool = False
    due: list[StepRunId] = []
    """Waiting runs that have yet to be offered it."""
    roles: tuple[str, ...] = ()
    """For an answer: the roles of its sender."""


class Queued(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An execution that waits until its limits have room."""

    since: float
    is_fork: bool = False
    ended: Values = {}


class ExecutionState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything the engine knows of an execution."""

    status: Status = "PENDING"
    path: str = ""
    digest: str = ""
    version: int | None = None
    entry: str = ""
    parent: Parent | None = None
    seal: str = ""
    """Marks its references; see `model.refs`."""
    labels: dict[str, str] = {}
    slots: dict[str, int] = {}
    """The limits it is subject to, and how many executions they allow."""
    priority: int = 0
    replaces: bool = False
    queued: Queued | None = None
    """It waits for its turn."""
    requested_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    payload: Values = {}
    workload: Values = {}
    ctx: Values = {}
    vars: Values = {}
    tokens: dict[TokenId, Token] = {}
    runs: dict[StepRunId, Run] = {}
    timers: dict[str, TimerState] = {}
    results: dict[str, StepResult] = {}
    """Last result of each step, inline or as a reference."""
    holders: dict[CommandId, StepRunId] = {}
    """Open commands → the run they work on."""
    children: int = 0
    """How many it has started."""
    lost: dict[CommandId, tuple[StepRunId, int]] = {}
    """Commands that were lost, until a report under one is refused: run, last report taken."""
    steps: dict[str, StepSummary] = {}
    arc_keys: dict[str, dict[str, None]] = {}
    """Keys of tokens, as digests, that arcs with `dedupe` have carried."""
    arrivals: int = 0
    """Counts tokens and runs, for order."""
    last_step: str = ""
    """The step whose run ended last."""
    signals: dict[str, Signal] = {}
    """Signals that no step has taken yet, oldest first."""
    heard: dict[str, None] = {}
    """Ids of the last signals, to recognise a repeated one."""
    undo: list[Undo] = []
    """Done runs that can be compensated, oldest first."""
    failure: TaskError | None = None
    """Why the execution is failing; compensation may still be under way."""
    failed_step: str = ""
    failure_handled: bool = False
    """`on_failure` has begun: it happens once."""
    compensating: bool = False
    cancelling: bool = False
    """It was cancelled; compensation may still be under way."""
    warnings: list[Warned] = []
    actor: Actor | None = None
    """Who started it."""
    source: Source | None = None
    """The file it was started from."""
    acts: list[Act] = []
    used: Used = Used()
    seq: int = 0
    """Events folded so far."""
    result: Any = None

    @property
    def is_finished(self) -> bool:
        return self.status in TERMINAL

    def acted(
        self, at: float, action: str, actor: Actor | None, reason: str = "", key: str = ""
    ) -> None:
        """Record an action. Part of the fold; older events do not say who it was."""
        if actor is not None:
            self.acts.append(Act(at=at, action=action, actor=actor, reason=reason, key=key))
            del self.acts[:-ACTS_MAX]

    def cancelled_under(self, key: str) -> Act | None:
        """The cancellation that a request with this idempotency key was."""
        wanted = ("playbook.cancelled", key)
        return next((act for act in self.acts if key and (act.action, act.key) == wanted), None)

    def warn(self, about: WarnedAbout, step: str, undefined: Undefined) -> None:
        """Keep a warning. Part of the fold."""
        if undefined:
            self.keep_warning(Warned(about=about, step=step, undefined=undefined))

    def keep_warning(self, given: Warned) -> None:
        """Keep a warning; the same one again only counts. Part of the fold."""
        for number, one in enumerate(self.warnings):
            if one.what == given.what:
                count = one.count + given.count
                self.warnings[number] = msgspec.structs.replace(one, count=count)
                return
        if len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(given)
