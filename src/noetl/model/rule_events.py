"""What happened to event rules, repetitions and sinks: the facts of `case`, `retry` and `poll`."""

from __future__ import annotations

from typing import Any

from noetl.model.chains import Chain, Goal, Progress
from noetl.model.facts import Fact, Reported, Undefined
from noetl.model.ids import StepRunId
from noetl.model.net import NextPolicy, Values
from noetl.model.outcome import Outcome


class CaseEvaluated(Reported, frozen=True, kw_only=True, tag="case.evaluated"):
    """An event matched rules."""

    step_run_id: StepRunId
    step: str
    trigger_event: str
    matched: tuple[str, ...]
    """In the order of the playbook; `order` is the order in which they are followed."""
    order: tuple[str, ...]
    # Never left out of the record: 001 §5.4 promises them.
    case_mode: str = ""
    eval_mode: str = ""
    iteration: int | None = None
    page: int = 0
    chain: Chain | None = None
    """Set if a worker has to follow them."""


class CaseUnmatched(Reported, frozen=True, kw_only=True, tag="case.unmatched"):
    """No rule matched an event, and names in their conditions resemble existing ones."""

    step_run_id: StepRunId
    step: str
    trigger_event: str
    undefined: Undefined
    iteration: int | None = None


class CaseProcessed(Fact, frozen=True, kw_only=True, tag="case.processed"):
    """The worker that followed the rules has finished them."""

    step_run_id: StepRunId
    step: str
    trigger_event: str


class BranchSuppressed(Reported, frozen=True, kw_only=True, tag="case.branch.suppressed"):
    """A branch whose `next` lost, or that was not followed to its end because another's won."""

    step_run_id: StepRunId
    step: str
    branch: str
    winner: str
    iteration: int | None = None


class StepPatched(Reported, frozen=True, kw_only=True, tag="step.patched"):
    """Rules wrote names of the step run, or set its result."""

    step_run_id: StepRunId
    step: str
    local: Values = {}
    yields: tuple[Any, ...] = ()
    """The result, if one was set."""


class NextEvaluated(Fact, frozen=True, kw_only=True, omit_defaults=False, tag="next.evaluated"):
    """A rule's `next` decided where the tokens of the step go; recorded in full (001 §5.4)."""

    step_run_id: StepRunId
    step: str
    selected: tuple[Goal, ...]
    policy: NextPolicy = "end_step"
    winner_branch: str = ""
    suppressed_branches: tuple[str, ...] = ()
    routing_committed: bool = True
    delay: float = 0.0
    priority: int = 0


class RetryProcessed(Reported, frozen=True, kw_only=True, tag="retry.processed"):
    """A call that was attempted more than once has ended."""

    step_run_id: StepRunId
    step: str
    task: str
    status: str
    attempts: int
    action_id: str = ""
    iteration: int | None = None


class ChainRestarted(Reported, frozen=True, kw_only=True, tag="chain.restarted"):
    """A task of a chain failed, and the whole chain begins again (`retry.scope: chain`)."""

    step_run_id: StepRunId
    step: str
    branch: str
    attempt: int
    delay: float = 0.0
    iteration: int | None = None
    progress: Progress | None = None


class PollStarted(Reported, frozen=True, kw_only=True, tag="poll.started"):
    step_run_id: StepRunId
    step: str
    task: str
    iteration: int | None = None


class PollIteration(Reported, frozen=True, kw_only=True, tag="poll.iteration"):
    """A poll that did not find what it waits for."""

    step_run_id: StepRunId
    step: str
    task: str
    number: int
    delay: float = 0.0
    iteration: int | None = None


class PollFinished(Reported, frozen=True, kw_only=True, tag="poll.finished"):
    step_run_id: StepRunId
    step: str
    task: str
    status: str
    """`reached`, or `exhausted`, or `error`."""
    number: int
    iteration: int | None = None


class SinkStarted(Reported, frozen=True, kw_only=True, tag="sink.started"):
    step_run_id: StepRunId
    step: str
    task: str
    kind: str = ""
    attempt: int = 1
    action_id: str = ""
    iteration: int | None = None
    page: int = 0


class SinkProcessed(Reported, frozen=True, kw_only=True, tag="sink.processed"):
    step_run_id: StepRunId
    step: str
    task: str
    outcome: Outcome
    attempt: int = 1
    action_id: str = ""
    iteration: int | None = None
    page: int = 0
    directive: str = ""
    log: str = ""
    told: int = 0
    progress: Progress | None = None


RuleEvent = (
    CaseEvaluated
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
