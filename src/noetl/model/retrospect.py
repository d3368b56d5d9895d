"""Answers about what was recorded: why a step ran, what a fork would do, how two executions differ.
One struct per document, as in `answers`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from noetl.model.answers import Document, WaitDocument
from noetl.model.problems import Problem

# --- Why, and why not --------------------------------------------------------------------------


class ReadDocument(Document, frozen=True, kw_only=True):
    """A value that a condition read."""

    name: str
    defined: bool = True
    value: Any | UnsetType = UNSET
    """Left out where it is long; `text` shows its beginning."""
    text: str = ""
    meant: str = ""
    """For an undefined name: the existing name that was probably meant."""


class ConditionDocument(Document, frozen=True, kw_only=True):
    """A guard of an arc, or an admission rule, evaluated again on the data of that moment."""

    source: str
    """The step whose end evaluated it; for admission, the step itself."""
    target: str
    arc: str = ""
    """`step#index`, as in `token.created`; empty for admission."""
    guard: str | None = None
    """As written; None: it always holds."""
    verdict: Literal["fired", "false", "not_asked", "not_for_failures", "error", "allow", "deny"]
    """`not_asked`: an arc before it fired, and the step takes only one arc."""
    seq: int
    """The event at which it was evaluated."""
    reads: list[ReadDocument] = []
    error: str = ""


class PlacedTokenDocument(Document, frozen=True, kw_only=True):
    """A token that a run began with."""

    token_id: str
    seq: int
    """The event that placed it."""
    source: str
    """The step that sent it; empty for the first token of an execution."""
    arc: str = ""


class StepWhyDocument(Document, frozen=True, kw_only=True):
    """Why a step ran, or why it did not."""

    step: str
    at_seq: int
    """The moment in question."""
    outcome: Literal["ran", "running", "waiting", "skipped", "cancelled", "not_run"]
    text: str
    """The answer for people, in a sentence."""
    run: int | None = None
    """The run of the step in question; the last one up to that moment."""
    seq: int | None = None
    """The event by which it ran or was skipped."""
    tokens: list[PlacedTokenDocument] = []
    conditions: list[ConditionDocument] = []
    """What decided it."""


class WhyDocument(Document, frozen=True, kw_only=True):
    """What an unfinished execution waits for, most immediate first."""

    execution_id: str
    status: str
    waits_for: list[WaitDocument]
    step: StepWhyDocument | None = None
    """Why the step in question ran, or did not."""


# --- Forks -------------------------------------------------------------------------------------


class ForkedCalls(Document, frozen=True, kw_only=True):
    """The recorded calls of one task, and their fate in a fork."""

    step: str
    task: str
    reused: int
    """Their outcomes count; they are not made again."""
    again: int
    """They were made after that event, or had not ended: if the fork goes the same way, they are
    repeated.
    """
    iterations: list[int] = []
    """In a loop, the first few iterations whose calls are repeated."""


class ForkPlanDocument(Document, frozen=True, kw_only=True):
    """What a fork reuses, and what it repeats."""

    source: str
    seq: int
    reused_upto: int
    """The last event of the source that counts."""
    iteration: int | None
    version: int | None
    reused: int
    again: int
    calls: list[ForkedCalls]
    goes_on: list[str]
    """The steps from which it continues."""


class ForkDocument(Document, frozen=True, kw_only=True):
    """A fork; of a dry run only the plan."""

    plan: ForkPlanDocument
    execution_id: str | None = None
    """The new execution; None in a dry run."""
    status: str | None = None
    path: str | None = None
    version: int | None = None


# --- What if -----------------------------------------------------------------------------------


class Divergence(Document, frozen=True, kw_only=True):
    """The first step run after which a playbook would have gone another way."""

    step: str
    run: int
    text: str
    recorded: list[str] = []
    """Where its tokens went."""
    now: list[str] = []
    """Where they would go."""


class WhatIfExecution(Document, frozen=True, kw_only=True):
    """One recorded execution under another playbook."""

    execution_id: str
    verdict: Literal["same", "different", "unknown"]
    """`unknown`: it makes a call for which nothing is recorded before it goes another way."""
    text: str
    status: str
    """How it ended."""
    now: str | None = None
    """How it would have ended."""
    where: Divergence | None = None


class WhatIfDocument(Document, frozen=True, kw_only=True):
    """Recorded executions under another playbook, with recorded outcomes instead of tools."""

    path: str
    digest: str
    same: int
    different: int
    unknown: int
    executions: list[WhatIfExecution]


# --- Tests -------------------------------------------------------------------------------------


class TestDifference(Document, frozen=True):
    """One thing that is not as a test expects."""

    what: str
    expected: Any
    found: Any


class TestDocument(Document, frozen=True, kw_only=True):
    """A test that was run."""

    name: str
    passed: bool
    status: str
    """How its execution ended."""
    elapsed_seconds: float
    """Of virtual time."""
    steps: list[str]
    complaints: list[str]
    """Why it could not be carried out."""
    differences: list[TestDifference]


class TestsDocument(Document, frozen=True, kw_only=True):
    """The outcome of the tests of a playbook."""

    passed: int
    failed: int
    problems: list[Problem]
    """Problems of the texts; then no test was run."""
    tests: list[TestDocument]


# --- Two executions side by side -----------------------------------------------------------------


class ComparedDocument(Document, frozen=True, kw_only=True):
    """One of two executions that are compared."""

    execution_id: str
    path: str
    version: int | None
    digest: str
    status: str
    duration_seconds: float | None


class Difference(Document, frozen=True, kw_only=True):
    """Something that is not the same in both."""

    what: Literal[
        "playbook", "workload", "status", "only_a", "only_b", "outcome", "result", "route"
    ]
    text: str
    step: str = ""
    run: int | None = None
    iteration: int | None = None
    task: str = ""
    attempt: int | None = None
    a: Any = None
    b: Any = None
    seq_a: int | None = None
    seq_b: int | None = None


class StepTimes(Document, frozen=True, kw_only=True):
    """How often a step ran in each, and for how long."""

    step: str
    runs_a: int
    runs_b: int
    seconds_a: float
    seconds_b: float


class DiffDocument(Document, frozen=True, kw_only=True):
    """Two executions, aligned by step, run, iteration, task and attempt."""

    a: ComparedDocument
    b: ComparedDocument
    same: bool
    differences: list[Difference]
    """The first one in the order of events is on top."""
    more: bool
    """There are more than are listed."""
    steps: list[StepTimes]


# --- The critical path ---------------------------------------------------------------------------


class CriticalRun(Document, frozen=True, kw_only=True):
    """A step run on the critical path, and what its time went to."""

    step: str
    run: int
    step_run_id: str
    seq: int
    start: str | None
    end: str | None
    seconds: float
    before: float
    """Seconds between the end of the run before it and its own beginning: a delayed token."""
    by_kind: dict[str, float]
    """Seconds by activity: queue, run, backoff, child, person, event."""


class CriticalPath(Document, frozen=True, kw_only=True):
    """The chain of step runs that determined the duration of an execution."""

    execution_id: str
    status: str
    seconds: float
    by_kind: dict[str, float]
    runs: list[CriticalRun]
    """In the order of time."""
