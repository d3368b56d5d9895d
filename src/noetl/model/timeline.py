"""Answers about an execution over time: its state at a moment, its timeline, loops and calls."""

from __future__ import annotations

from typing import Any, Literal

from noetl.model.answers import Document, ExecutionDocument, FailureDocument

SpanKind = Literal["queue", "run", "backoff", "child", "person", "event"]
Waits = Literal["worker", "child", "form", "event", "timer"] | None
IterationStatus = Literal["running", "done", "failed", "cancelled"]


# --- A moment ----------------------------------------------------------------------------------


class WaitingTokenDocument(Document, frozen=True, kw_only=True):
    """A token that waits at a step."""

    token_id: str
    step: str
    arc: str
    """The arc that it came over, `step#index`."""
    ready_at: str | None
    """A delayed one is not used before."""


class OpenRunDocument(Document, frozen=True, kw_only=True):
    """A run of a step that had not ended."""

    step_run_id: str
    step: str
    number: int
    started: bool
    waits_for: Waits
    """What it waited for; null while a worker ran it. `worker`: none had begun it."""
    children: list[str]
    iterations_open: int
    """Iterations of its loop that were handed out and had not ended."""


class MomentDocument(ExecutionDocument, frozen=True, kw_only=True):
    """An execution as it was after one of its events."""

    seq: int
    """The event."""
    last_seq: int
    """The last event recorded so far."""
    at: str | None
    """When the event happened."""
    event_type: str
    tokens: list[WaitingTokenDocument]
    runs: list[OpenRunDocument]


# --- The timeline ------------------------------------------------------------------------------


class Span(Document, frozen=True, kw_only=True):
    """What a run spent some time on."""

    kind: SpanKind
    """`queue`: waited for a worker; `backoff`: before another try; `person`: for a form."""
    start: str | None
    end: str | None
    """Null while it lasts."""


class LoopMomentDocument(Document, frozen=True, kw_only=True):
    """Iterations that ended within some time."""

    start: str | None
    end: str | None
    done: int
    failed: int


class LoopLine(Document, frozen=True, kw_only=True):
    """A loop in short."""

    total: int | None
    """Null for a cursor that has not reached its end."""
    done: int
    failed: int
    running: int
    bucket_size: int
    """Iterations of each entry of `strip`."""
    strip: list[tuple[int, int, int]]
    """Iterations by number: how many of a bucket are done, failed and running."""
    over_time: list[LoopMomentDocument]
    """When they ended; empty buckets are omitted."""


class RunLine(Document, frozen=True, kw_only=True):
    """One run of a step."""

    step: str
    step_run_id: str
    number: int
    """Counts the runs of the step from 1."""
    seq: int
    """The event that scheduled it."""
    status: str
    scheduled_at: str | None
    started_at: str | None
    ended_at: str | None
    attempts: int
    error: str | None
    children: list[str]
    """Executions that it called; those of a loop's iterations are left out."""
    spans: list[Span]
    loop: LoopLine | None


class Timeline(Document, frozen=True, kw_only=True):
    """Step runs in the order in which they were scheduled."""

    execution_id: str
    seq: int
    """The last event that is in it."""
    runs: list[RunLine]
    next_after: int
    """The `after` of the next page."""
    more: bool


# --- Loops -------------------------------------------------------------------------------------


class IterationDocument(Document, frozen=True, kw_only=True):
    """One iteration."""

    iteration: int
    status: IterationStatus
    started_at: str | None
    ended_at: str | None
    duration_seconds: float | None
    error: str | None
    seq: int
    """The event that ended it; for one that runs or was cancelled the event that began it."""


class IterationErrorDocument(Document, frozen=True, kw_only=True):
    """An error with which iterations failed."""

    message: str
    count: int
    first: int
    """The first iteration that did."""


class IterationPage(Document, frozen=True, kw_only=True):
    """Iterations of a loop by number. Those that have not begun are left out."""

    step: str
    step_run_id: str
    total: int | None
    done: int
    failed: int
    running: int
    errors: list[IterationErrorDocument]
    """Most frequent first."""
    iterations: list[IterationDocument]
    next_after: int
    """The `after` of the next page."""
    more: bool


# --- Calls -------------------------------------------------------------------------------------


class AttemptDocument(Document, frozen=True, kw_only=True):
    """One attempt of a call."""

    attempt: int
    seq: int
    """The event that began it."""
    started_at: str | None
    ended_at: str | None
    duration_seconds: float | None
    status: str
    """`running`, `ok` or `error`."""
    error: FailureDocument | None
    directive: str
    """The directive of the task's policy: continue, retry, jump, break or fail."""
    rule: int | None = None
    """The rule of `rules` that decided, found by evaluating them again; None if none did, or if
    that is unknown. With `fail` it may be a `retry` whose attempts are used up.
    """
    retry_delay: float | None
    """Seconds before the next attempt."""
    output: str
    """The last part of what it printed."""


class CallDocument(Document, frozen=True, kw_only=True):
    """A call of a tool: its input, its attempts, and its outcome."""

    action_id: str
    step: str
    step_run_id: str
    task: str
    kind: str
    iteration: int | None
    page: int
    origin: str
    config: dict[str, Any]
    """As written in the playbook."""
    rendered: dict[str, Any]
    """As passed to the tool, evaluated again, without secrets; keys that cannot be evaluated
    without them are in `unknown`.
    """
    unknown: dict[str, str]
    """Keys of the config that cannot be shown, and why."""
    rules: list[Any]
    """The rules of its policy, in the order in which they are asked."""
    attempts: list[AttemptDocument]
    result: Any
    """Its value, or a reference to it when it is large."""
