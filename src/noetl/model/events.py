"""Everything that can have happened to an execution, one class per fact.

Names are past tense. Fields are ids and plain values. The tag is the stored name: a class may be
renamed, a tag never. Facts hold no secrets: code that makes one masks first.

State is the fold of these facts (`engine.evolve`); nothing else is remembered.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args

import msgspec

from noetl.model.chains import Chain, Goal, Routing
from noetl.model.chains import Progress as Progress
from noetl.model.facts import Actor as Actor
from noetl.model.facts import Fact as Fact
from noetl.model.facts import PassFact, ReportedStepFact, Source, StepFact, Undefined, Warned
from noetl.model.facts import ReportedFact as ReportedFact
from noetl.model.ids import CommandId, ExecutionId, StepRunId, TokenId
from noetl.model.net import NextPolicy, Values
from noetl.model.outcome import Outcome, TaskError
from noetl.model.signals import APPROVAL, Listening

FinalStatus = Literal["COMPLETED", "FAILED", "CANCELLED"]


# --- The execution as a whole ------------------------------------------------------------------


class Parent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run that waits for this execution's end."""

    execution_id: ExecutionId
    step_run_id: StepRunId
    iteration: int | None = None
    return_step: str | None = None
    """The step whose result is wanted, instead of the result of the execution."""
    depth: int = 1
    """How many executions are above."""
    root: ExecutionId = ""
    """The top-level execution, unless that is `execution_id`."""
    slots: tuple[str, ...] = ()
    """Limits that its callers hold slots of: it runs within those slots."""

    @property
    def first(self) -> ExecutionId:
        """The top-level execution."""
        return self.root or self.execution_id


class ExecutionRequested(Fact, frozen=True, kw_only=True, tag="playbook.execution.requested"):
    path: str
    digest: str
    version: int | None = None
    payload: Values = {}
    parent: Parent | None = None
    key: str | None = None
    """The caller's idempotency key."""
    asked: str = ""
    """Of a rerun or a fork: a digest of the request that its key stands for."""
    rerun_of: ExecutionId | None = None
    """It begins with what this execution recorded, or with its workload alone."""
    forked_at: int | None = None
    """The event of that execution which happens again; `playbook.forked` has what came before."""
    actor: Actor | None = None
    source: Source | None = None
    labels: dict[str, str] = {}
    seal: str = ""
    """The key that marks its references, shared with its children and reruns. Only servers and
    workers know it.
    """


class RequestEvaluated(Fact, frozen=True, kw_only=True, tag="playbook.request.evaluated"):
    workload: Values
    reused: dict[str, Any] = {}
    """Older reruns: results of steps that are not run again. Now `playbook.forked` has them."""
    ctx: Values = {}
    vars: Values = {}
    entry: str | None = None


class ExecutionForked(Fact, frozen=True, kw_only=True, tag="playbook.forked"):
    """It continues from what another execution recorded; nothing of that is repeated."""

    source: ExecutionId
    seq: int | None = None
    """The last event of the source that counts here; None in a rerun: everything before its
    step.
    """
    iteration: int | None = None
    """The repeated iteration of a loop whose other iterations count."""
    ctx: Values = {}
    """What was written to ctx for this execution: path → value."""
    state: Values = {}
    """The initial part of the state, as plain data; see `engine.forks`."""


class ExecutionBounded(Fact, frozen=True, kw_only=True, tag="playbook.bounded"):
    """The limits that it is subject to: by name, how many executions may run at the same time."""

    slots: dict[str, int]
    priority: int = 0
    replaces: bool = False
    """Older executions make room for it (`on_limit: cancel_running`)."""


class ExecutionQueued(Fact, frozen=True, kw_only=True, tag="playbook.queued"):
    """It waits for its turn: these limits have no room."""

    full: tuple[str, ...] = ()
    is_fork: bool = False
    """It will continue from what another execution recorded."""
    ended: Values = {}
    """For a fork, the runs that had just ended, under `runs`; see `Seed.ended`."""


class WorkflowStarted(Fact, frozen=True, kw_only=True, tag="workflow.started"):
    pass


class WorkflowFailing(Fact, frozen=True, kw_only=True, tag="workflow.failing"):
    """A failure that nothing in the playbook handles. Running steps may have to stop."""

    error: TaskError
    step: str = ""
    stop: bool = True
    """fail_fast: the other runs are cancelled; best_effort: they finish first."""


class ExecutionPaused(Fact, frozen=True, kw_only=True, tag="playbook.paused"):
    reason: str = ""
    actor: Actor | None = None


class ExecutionResumed(Fact, frozen=True, kw_only=True, tag="playbook.resumed"):
    actor: Actor | None = None


class ExecutionCancelled(Fact, frozen=True, kw_only=True, tag="playbook.cancelled"):
    reason: str = ""
    actor: Actor | None = None
    key: str = ""
    """The caller's idempotency key."""


class WorkflowFinished(Fact, frozen=True, kw_only=True, tag="workflow.finished"):
    status: FinalStatus
    result: Any = None
    error: TaskError | None = None


LAST_EVENT = "playbook.processed"
"""The last event of an execution."""


class ExecutionProcessed(Fact, frozen=True, kw_only=True, tag=LAST_EVENT):
    status: FinalStatus


class QuotaUsed(StepFact, frozen=True, kw_only=True, tag="quota.used"):
    """What the calls of a run have used since the last such event, if there are quotas."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


# --- Tokens ------------------------------------------------------------------------------------


class TokenCreated(Fact, frozen=True, kw_only=True, tag="token.created"):
    token_id: TokenId
    step: str
    args: Values = {}
    source: StepRunId | None = None
    arc: str = ""
    """Which arc it came over: `step#index`."""
    ready_at: float | None = None
    """A delayed arc: the token may not be used before."""
    priority: int = 0
    event: Values = {}
    """What `event` shows to admission at the target."""
    past: dict[str, int] = {}
    """The run of each absorbing join (`any`, `{n: k}`) that this token descends from, if any."""
    dedupe: str = ""
    """A digest of its key, on an arc that carries each key once."""
    partition: str = ""
    """A digest of its key, on an arc whose tokens with the same key run one after the other."""


class TokenConsumed(Fact, frozen=True, kw_only=True, tag="token.consumed"):
    token_id: TokenId
    step_run_id: StepRunId


class TokenAbsorbed(Fact, frozen=True, kw_only=True, tag="token.absorbed"):
    token_id: TokenId
    reason: str


# --- Step runs ---------------------------------------------------------------------------------


class StepScheduled(StepFact, frozen=True, kw_only=True, tag="step.scheduled"):
    number: int
    """Counts the runs of this step from 1."""
    args: Values = {}
    command_id: CommandId | None = None
    """The command that runs all of it, if there is one."""
    compensates: StepRunId | None = None
    block: str | None = None
    """It runs this workbook entry instead of the step's tasks: a compensation."""
    priority: int = 0
    past: dict[str, int] = {}
    handles_failure: bool = False
    """It is the playbook's `on_failure`: the execution has failed."""
    released: bool = False
    """Two joins waited for each other; the oldest was released."""
    partition: str = ""
    """The partition of its token: no other run of the step with the same one begins before it
    ends.
    """


class StepStarted(StepFact, frozen=True, kw_only=True, tag="step.started"):
    worker: str = ""


class StepSkipped(StepFact, frozen=True, kw_only=True, tag="step.skipped"):
    reason: str = ""
    undefined: Undefined = {}
    """No admission rule held; names that their conditions did not find."""


class StepWaiting(PassFact, frozen=True, kw_only=True, tag="step.waiting"):
    """The run holds no worker until a timer is due, its child has ended, or an event arrives."""

    until: float | None = None
    child: ExecutionId | None = None
    progress: Progress | None = None
    listens: Listening | None = None
    """It waits for external events (`eval_mode: on_event`)."""
    yields: tuple[Any, ...] = ()
    """The result of its body, if it has one."""


class StepResumed(StepFact, frozen=True, kw_only=True, tag="step.resumed"):
    iteration: int | None = None


class StepDone(StepFact, frozen=True, kw_only=True, tag="step.done"):
    result: Any = None
    tasks: Values = {}
    """In a pipeline of several tasks, the result of each."""
    undo: str | None = None
    """The step or workbook entry that undoes it, should the execution fail."""
    emitted: tuple[str, ...] = ()
    """Additional event names from the playbook (`emit.events`)."""
    undone: str = ""
    """A compensation: the step whose run it undid."""


class StepFailed(StepFact, frozen=True, kw_only=True, tag="step.failed"):
    error: TaskError
    result: Any = None
    emitted: tuple[str, ...] = ()


class StepCancelled(StepFact, frozen=True, kw_only=True, tag="step.cancelled"):
    reason: str = ""


# --- Calls of tools, and what they wrote, reported by workers ----------------------------------


class CallFact(PassFact, frozen=True, kw_only=True):
    task: str
    attempt: int = 1
    action_id: str = ""


class CallStarted(CallFact, frozen=True, kw_only=True):
    kind: str = ""
    page: int = 0


class TaskStarted(CallStarted, frozen=True, kw_only=True, tag="task.started"):
    origin: str = ""
    """The sugar that the task is a part of, where it was not written itself."""


class TaskLogged(CallFact, frozen=True, kw_only=True, tag="task.log"):
    """Lines that a task printed while it ran, for people. No decision depends on them."""

    text: str


class TaskWaiting(CallFact, frozen=True, kw_only=True, tag="task.waiting"):
    """A call has waited since `at` for a place to work at or for an answer, or waits no longer
    (`over`).

    It explains why nothing happens. No decision depends on it.
    """

    what: str
    """In words: a Python process, an answer of api.example.com:443."""
    over: bool = False


class CallDone(CallFact, frozen=True, kw_only=True):
    outcome: Outcome
    page: int = 0
    directive: str = ""
    """What the task's policy made of it: continue, retry, jump, break, fail."""
    log: str = ""
    """What the tool printed, the last part of it."""
    told: int = 0
    """So many characters at its beginning were in `task.log` before."""
    progress: Progress | None = None
    """Where the pipeline goes on; None inside loops, whose unit is the iteration."""


class TaskDone(CallDone, frozen=True, kw_only=True, tag="task.done"):
    pass


class RetryStarted(PassFact, frozen=True, kw_only=True, tag="retry.started"):
    task: str
    attempt: int
    action_id: str = ""
    """Of the call that is made again; a page that comes next is another call."""
    delay: float = 0.0
    page: int = 0
    """The page that comes next, where it is not the same one again."""


class PolicyUnmatched(PassFact, frozen=True, kw_only=True, tag="policy.unmatched"):
    task: str
    status: str
    undefined: Undefined = {}
    """Names that its rules nearly spelt right."""


class CtxPatched(ReportedFact, frozen=True, kw_only=True, tag="ctx.patched"):
    values: Values
    step_run_id: StepRunId | None = None
    step: str = ""
    iteration: int | None = None


class VarsSet(ReportedFact, frozen=True, kw_only=True, tag="vars.set"):
    values: Values
    step_run_id: StepRunId | None = None
    step: str = ""
    removed: tuple[str, ...] = ()
    actor: Actor | None = None
    """The actor, if it was set from outside."""


# --- Loops -------------------------------------------------------------------------------------


class LoopStarted(StepFact, frozen=True, kw_only=True, tag="loop.started"):
    total: int | None = None
    """None for a cursor, which ends when it yields nothing."""
    items: Any = None
    """The elements, or a reference to them; None for a range, whose numbers are computed."""
    begin: int | float = 0
    by: int | float = 1
    """A range: its first number, and the step from each to the next."""
    in_flight: int = 1
    """How many iterations may run at the same time."""
    lanes: int = 1
    """How many chunks may be leased at the same time."""
    size: int = 1
    """Iterations per chunk."""
    segment: int = 100
    """Results per segment, if they are too many for the state."""
    partitioned: bool = False
    """Iterations with the same key run one after another."""
    max_pending: int | None = None
    """A cursor claims no more while this many of its elements have not ended."""


class FrameClaimed(ReportedStepFact, frozen=True, kw_only=True, tag="loop.frame.claimed"):
    """A worker ran a cursor's claim statement: this many iterations begin, or none are left."""

    iterations: int = 0
    error: TaskError | None = None
    """The statement failed repeatedly: the loop cannot continue."""


class IterationsKeyed(ReportedStepFact, frozen=True, kw_only=True, tag="loop.partitioned"):
    """The keys of iterations of a partitioned loop, from `start` on, as digests."""

    start: int = 0
    keys: tuple[str, ...] = ()
    error: TaskError | None = None
    """A key could not be computed: the loop cannot continue."""


class IterationStarted(ReportedStepFact, frozen=True, kw_only=True, tag="loop.iteration.started"):
    iteration: int


class IterationDone(ReportedStepFact, frozen=True, kw_only=True, tag="loop.iteration.done"):
    iteration: int
    result: Any = None
    ctx: Values = {}
    """What the iteration wrote to ctx, for the reducers."""
    next: Routing | None = None
    """A rule ends the loop, and sends its tokens there."""
    suppressed: tuple[str, ...] = ()


class IterationFailed(ReportedStepFact, frozen=True, kw_only=True, tag="loop.iteration.failed"):
    iteration: int
    error: TaskError
    ctx: Values = {}
    next: Routing | None = None
    suppressed: tuple[str, ...] = ()


class ResultsKept(StepFact, frozen=True, kw_only=True, tag="loop.results.kept"):
    """A segment of a loop's results was stored: from now on it is named by its checksum."""

    segment: int
    size: int
    checksum: str


class LoopDone(StepFact, frozen=True, kw_only=True, tag="loop.done"):
    total: int
    success: int
    failed: int


# --- Routing -----------------------------------------------------------------------------------


class NextSelected(StepFact, frozen=True, kw_only=True, tag="next.selected"):
    targets: tuple[str, ...]
    undefined: Undefined = {}
    """Names that guards which did not hold looked for in vain, though others are nearly the same.
    """


class NextUnmatched(StepFact, frozen=True, kw_only=True, tag="next.unmatched"):
    """No arc held: the token ends here."""

    undefined: Undefined = {}
    """Names that the guards did not find."""


# --- Event rules, repetitions and sinks: `case`, `retry`, `poll`, `sink` ------------------------


class CaseEvaluated(PassFact, frozen=True, kw_only=True, tag="case.evaluated"):
    """An event matched rules."""

    trigger_event: str
    matched: tuple[str, ...]
    """In the order of the playbook; `order` is the order in which they are followed."""
    order: tuple[str, ...]
    # Readers rely on these: they are never left out of the record.
    case_mode: str = ""
    eval_mode: str = ""
    page: int = 0
    chain: Chain | None = None
    """Set if a worker has to follow them."""


class CaseUnmatched(PassFact, frozen=True, kw_only=True, tag="case.unmatched"):
    """No rule matched an event, and names in their conditions resemble existing ones."""

    trigger_event: str
    undefined: Undefined


class CaseProcessed(StepFact, frozen=True, kw_only=True, tag="case.processed"):
    """The worker that followed the rules has finished them."""

    trigger_event: str


class BranchSuppressed(PassFact, frozen=True, kw_only=True, tag="case.branch.suppressed"):
    """A branch whose `next` lost, or that was not followed to its end because another's won."""

    branch: str
    winner: str


class StepPatched(ReportedStepFact, frozen=True, kw_only=True, tag="step.patched"):
    """Rules wrote names of the step run, or set its result."""

    local: Values = {}
    yields: tuple[Any, ...] = ()
    """The result, if one was set."""


class NextEvaluated(StepFact, frozen=True, kw_only=True, omit_defaults=False, tag="next.evaluated"):
    """A rule's `next` decided where the tokens of the step go; recorded in full."""

    selected: tuple[Goal, ...]
    policy: NextPolicy = "end_step"
    winner_branch: str = ""
    suppressed_branches: tuple[str, ...] = ()
    routing_committed: bool = True
    delay: float = 0.0
    priority: int = 0


class RetryProcessed(PassFact, frozen=True, kw_only=True, tag="retry.processed"):
    """A call that was attempted more than once has ended."""

    task: str
    status: str
    attempts: int
    action_id: str = ""


class ChainRestarted(PassFact, frozen=True, kw_only=True, tag="chain.restarted"):
    """A task of a chain failed, and the whole chain begins again (`retry.scope: chain`)."""

    branch: str
    attempt: int
    delay: float = 0.0
    progress: Progress | None = None


class PollStarted(PassFact, frozen=True, kw_only=True, tag="poll.started"):
    task: str


class PollIteration(PassFact, frozen=True, kw_only=True, tag="poll.iteration"):
    """A poll that did not find what it waits for."""

    task: str
    number: int
    delay: float = 0.0


class PollFinished(PassFact, frozen=True, kw_only=True, tag="poll.finished"):
    task: str
    status: str
    """`reached`, or `exhausted`, or `error`."""
    number: int


class SinkStarted(CallStarted, frozen=True, kw_only=True, tag="sink.started"):
    pass


class SinkProcessed(CallDone, frozen=True, kw_only=True, tag="sink.processed"):
    pass


# --- Work handed out ---------------------------------------------------------------------------


class CommandLeased(Fact, frozen=True, kw_only=True, tag="command.leased"):
    command_id: CommandId
    step_run_id: StepRunId
    worker: str


class CommandLost(Fact, frozen=True, kw_only=True, tag="command.lost"):
    """The lease lapsed, was given back, or a report arrived under a lease lost before."""

    command_id: CommandId
    step_run_id: StepRunId
    worker: str = ""
    reason: str = ""
    refused: bool = False
    """Its worker reported nevertheless, and the report was refused."""


class CommandPaused(ReportedStepFact, frozen=True, kw_only=True, tag="command.paused"):
    """Its worker learned of the pause: under this command it begins nothing new."""

    held: CommandId


class CommandRequeued(Fact, frozen=True, kw_only=True, tag="command.requeued"):
    """The work of a lost command continues under a new one."""

    command_id: CommandId
    lost: CommandId
    step_run_id: StepRunId
    deliveries: int
    alone: int = 0
    """How many workers died while they ran only this command, since it last made progress."""
    start: int | None = None
    stop: int | None = None
    """A chunk that is lost repeatedly continues with a part; the rest becomes another chunk."""
    chains: tuple[tuple[int, ...], ...] = ()
    """The same for one of a partitioned loop."""


class CommandIssued(Fact, frozen=True, kw_only=True, tag="command.issued"):
    command_id: CommandId
    step_run_id: StepRunId
    start: int | None = None
    stop: int | None = None
    """A chunk of a loop: its iterations."""
    width: int = 1
    """How many of them at once."""
    iteration: int | None = None
    """One suspended iteration continues by itself."""
    chains: tuple[tuple[int, ...], ...] = ()
    """Of a partitioned loop: its iterations, those of a chain one after the other."""
    keys: bool = False
    """It computes the keys of its iterations."""


class CommandClosed(Fact, frozen=True, kw_only=True, tag="command.closed"):
    command_id: CommandId
    step_run_id: StepRunId
    rest: int | None = None
    """A chunk that was not completed: its iterations from here on are handed out again."""


class TimerSet(Fact, frozen=True, kw_only=True, tag="timer.set"):
    timer_id: str
    fires_at: float
    purpose: Literal["token", "wake", "timeout", "deadline", "listener", "child"]
    step_run_id: StepRunId | None = None
    token_id: TokenId | None = None
    iteration: int | None = None
    name: str = ""
    """The name in the playbook (`spec.timers`); for the time limit of a child, the child."""


class TimerFired(Fact, frozen=True, kw_only=True, tag="timer.fired"):
    timer_id: str


class ChildStarted(StepFact, frozen=True, kw_only=True, tag="child.started"):
    child: ExecutionId
    path: str
    iteration: int | None = None


class ChildFinished(Fact, frozen=True, kw_only=True, tag="child.finished"):
    step_run_id: StepRunId
    child: ExecutionId
    status: FinalStatus
    result: Any = None
    error: TaskError | None = None
    iteration: int | None = None
    warnings: tuple[Warned, ...] = ()


# --- External events -----------------------------------------------------------------------------


class SignalReceived(Fact, frozen=True, kw_only=True):
    """An external event. A known id is a repetition of the same event."""

    signal_id: str
    name: str
    """What `event.name` is."""
    data: Any = None
    step: str = ""
    """The step it is addressed to, if only one."""
    actor: Actor | None = None
    """Who sent it."""


class MessageReceived(SignalReceived, frozen=True, kw_only=True, tag="message.received"):
    """Any external event but an approval, of any name."""


class ApprovalReceived(SignalReceived, frozen=True, kw_only=True, tag=APPROVAL):
    """The answer to a form."""

    roles: tuple[str, ...] = ()
    """The roles of the person who answered, at that time."""


class SignalConsidered(Fact, frozen=True, kw_only=True, tag="signal.considered"):
    """A waiting step was offered a signal, or its own timer: each once."""

    signal_id: str
    step_run_id: StepRunId
    step: str
    taken: bool = False
    """One of its rules held."""
    reason: str = ""
    """Why it was not offered."""


Event = (
    ExecutionRequested
    | RequestEvaluated
    | ExecutionForked
    | ExecutionBounded
    | ExecutionQueued
    | WorkflowStarted
    | WorkflowFailing
    | ExecutionPaused
    | ExecutionResumed
    | ExecutionCancelled
    | WorkflowFinished
    | ExecutionProcessed
    | TokenCreated
    | TokenConsumed
    | TokenAbsorbed
    | StepScheduled
    | StepStarted
    | StepSkipped
    | StepWaiting
    | StepResumed
    | StepDone
    | StepFailed
    | StepCancelled
    | TaskStarted
    | TaskLogged
    | TaskWaiting
    | TaskDone
    | RetryStarted
    | QuotaUsed
    | PolicyUnmatched
    | CtxPatched
    | VarsSet
    | LoopStarted
    | FrameClaimed
    | IterationsKeyed
    | IterationStarted
    | IterationDone
    | IterationFailed
    | ResultsKept
    | LoopDone
    | NextSelected
    | NextUnmatched
    | CommandIssued
    | CommandLeased
    | CommandClosed
    | CommandLost
    | CommandPaused
    | CommandRequeued
    | TimerSet
    | TimerFired
    | ChildStarted
    | ChildFinished
    | MessageReceived
    | ApprovalReceived
    | SignalConsidered
    | CaseEvaluated
    | CaseUnmatched
    | CaseProcessed
    | BranchSuppressed
    | StepPatched
    | NextEvaluated
    | RetryProcessed
    | ChainRestarted
    | PollStarted
    | PollIteration
    | PollFinished
    | SinkStarted
    | SinkProcessed
)

encode = msgspec.json.Encoder().encode
NAMES = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Event))
"""All event names."""


@cache
def _decoder() -> msgspec.json.Decoder[Event]:
    # Reading the annotations of all events takes longer than loading them, and few commands read.
    return msgspec.json.Decoder(Event)


def decode(data: bytes | str) -> Event:
    return _decoder().decode(data)
