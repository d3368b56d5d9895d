"""The position of a pipeline and of the chains of its event rules, enough to continue elsewhere.

A worker that takes over after a crash or a wait reads here which calls are over, and repeats none
of them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from noetl.model.net import NextPolicy, Values
from noetl.model.outcome import Outcome, TaskError

Stage = Literal["call", "page", "sink", "iteration", "enter", "exit", "event"]
"""What a chain responds to: a call of the step, its next page, its success, the end of an
iteration, the beginning of the step, its end, or an external event. The server handles the last
three."""
SERVER_STAGES = ("enter", "exit", "event")


class Tries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often one call has been made, and how it differs from its text."""

    attempt: int = 1
    """The number of the next attempt, restarted for each page and each poll."""
    page: int = 0
    """Counts the logical calls that one written call became: pages and polls."""
    calls: int = 0
    """Calls made before the coming one."""
    rounds: int = 0
    """Of those, the ones that succeeded."""
    polls: int = 0
    poll_began: float | None = None
    """By the server's clock."""
    overrides: Values = {}
    """Config that this page changes."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Where a token goes, and what it carries, with every template filled in."""

    step: str
    args: Values = {}
    label: str = ""
    """Which of the playbook's arcs this is."""


class Routing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `next` that a chain has reached."""

    branch: str
    goals: tuple[Goal, ...] = ()
    policy: NextPolicy = "end_step"
    priority: int = 0
    delay: float = 0.0


class Again(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another call that a chain requests: a new page (`call`), or the same one again (`retry`)."""

    overrides: Values = {}
    delay: float = 0.0
    new_page: bool = True


class Chain(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The chains of actions that one event triggered, and their progress."""

    stage: Stage
    event: str = ""
    rules: tuple[str, ...] = ()
    """The branches that were selected, in order."""
    epoch: int = 0
    """When the server received the event: each occurrence has its own."""
    outcome: Outcome | None = None
    """The outcome of the call or the step; a large result as a reference."""
    data: Any = None
    """The data of an external event."""
    tasks: Values = {}
    """At the end of a step with several tasks: the result of each."""
    task: str = ""
    """The task whose call it concerns."""
    position: int = 0
    """The position of that task in the pipeline."""
    call: Tries = Tries()
    """The counters of that call."""
    jumps: int | None = None
    """The jumps before that call: its policy may have jumped since."""
    fails: TaskError | None = None
    """The error of the pipeline, unless a rule changes it."""
    branch: int = 0
    """The current branch, and its next action."""
    action: int = 0
    tries: Tries = Tries()
    """The counters of the task that this action runs."""
    restarts: int = 0
    """How often this branch was restarted."""
    before: Values = {}
    """The step's own names as they were when this branch began."""
    dropped: tuple[str, ...] = ()
    """Selected branches that were not followed, because an earlier one ended the step."""
    losers: tuple[str, ...] = ()
    """Branches that lost before this chain began."""
    routes: tuple[Routing, ...] = ()
    again: Again | None = None
    recovered: bool = False
    """A rule set the step's result although the call failed."""
    error: TaskError | None = None
    skipped: str | None = None
    """Why the step is skipped, if a rule says so."""
    outer: Chain | None = None
    """The chain whose task this one repeats; it continues when this one is over."""

    @property
    def is_over(self) -> bool:
        return self.branch >= len(self.rules)

    @property
    def outermost(self) -> Chain:
        """The chain for the event itself."""
        return self if self.outer is None else self.outer.outermost

    @property
    def place(self) -> tuple[object, ...]:
        """What distinguishes a call of this chain from every other call of the same task."""
        branch = self.rules[self.branch]
        answered = self.task, self.call.calls
        own = (self.stage, self.epoch, *answered, branch, self.action, self.tries.page)
        return own if self.outer is None else (*own, self.outer.call.page, *self.outer.place)


class Progress(Tries, frozen=True, kw_only=True, omit_defaults=True):
    """The position of a pipeline. The counters are those of the task at `position`."""

    position: int = 0
    """Index of the task to run next."""
    cause: str = ""
    """The cause of its call ids, if that is not the run."""
    jumps: int = 0
    passes: int = 0
    """How often it was through, and a `call` had its tasks made again."""
    iter: Values = {}
    local: Values = {}
    results: Values = {}
    """Results of the tasks done so far, by name; large ones as references."""
    previous: Any = None
    pending: Outcome | None = None
    """An outcome from elsewhere (a child execution) for the current task."""
    yields: tuple[Any, ...] = ()
    """The result that a rule set for the step; empty if none did."""
    chain: Chain | None = None
    """The event rules being followed."""
    writes: Values = {}
    """What an iteration has written to ctx so far."""
    inner: Inner | None = None
    """The position in a workbook entry that the current task called."""


class Inner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The position of a workbook entry. A looped one may have begun several passes."""

    waits: int
    """The waiting pass; others that have begun wait for their turn."""
    passes: dict[int, Progress]
    ended: dict[int, Outcome] = {}
    """Completed passes; large results as references."""
    writes: dict[int, Values] = {}
    """What completed passes wrote to ctx, where reducers are to fold it."""
    until: float | None = None
    """When the time of the task that called it is over, by the server's clock."""
