"""What happened to the calls of tools, as workers report it."""

from __future__ import annotations

from noetl.model.chains import Progress
from noetl.model.facts import Reported, Undefined
from noetl.model.ids import StepRunId
from noetl.model.outcome import Outcome


class TaskStarted(Reported, frozen=True, kw_only=True, tag="task.started"):
    step_run_id: StepRunId
    step: str
    task: str
    kind: str = ""
    attempt: int = 1
    action_id: str = ""
    iteration: int | None = None
    page: int = 0
    origin: str = ""
    """The sugar that the task is a part of, where it was not written itself."""


class TaskLogged(Reported, frozen=True, kw_only=True, tag="task.log"):
    """Lines that a task printed while it ran, for people. No decision depends on them."""

    step_run_id: StepRunId
    step: str
    task: str
    text: str
    attempt: int = 1
    action_id: str = ""
    iteration: int | None = None


class TaskWaiting(Reported, frozen=True, kw_only=True, tag="task.waiting"):
    """A call has waited for a while for a place to work at, or waits no longer (`over`).

    It explains why nothing happens. No decision depends on it.
    """

    step_run_id: StepRunId
    step: str
    task: str
    what: str
    """In words: a Python process."""
    over: bool = False
    attempt: int = 1
    action_id: str = ""
    iteration: int | None = None


class TaskDone(Reported, frozen=True, kw_only=True, tag="task.done"):
    step_run_id: StepRunId
    step: str
    task: str
    outcome: Outcome
    attempt: int = 1
    action_id: str = ""
    iteration: int | None = None
    page: int = 0
    directive: str = ""
    """What the task's policy made of it: continue, retry, jump, break, fail."""
    log: str = ""
    """What the tool printed, the last part of it."""
    told: int = 0
    """So many characters at its beginning were in `task.log` before."""
    progress: Progress | None = None
    """Where the pipeline goes on; None inside loops, whose unit is the iteration."""


class RetryStarted(Reported, frozen=True, kw_only=True, tag="retry.started"):
    step_run_id: StepRunId
    step: str
    task: str
    attempt: int
    action_id: str = ""
    """Of the call that is made again; a page that comes next is another call."""
    delay: float = 0.0
    iteration: int | None = None
    page: int = 0
    """The page that comes next, where it is not the same one again."""


class PolicyUnmatched(Reported, frozen=True, kw_only=True, tag="policy.unmatched"):
    step_run_id: StepRunId
    step: str
    task: str
    status: str
    iteration: int | None = None
    undefined: Undefined = {}
    """Names that its rules nearly spelt right."""
