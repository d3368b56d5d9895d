"""Where a pipeline and the chains of its event rules stand, enough to go on elsewhere.

A worker that takes over after a crash or a wait reads here which calls are over, and makes none of
them again.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from noetl.model.net import NextPolicy, Values
from noetl.model.outcome import Outcome, TaskError

Stage = Literal["call", "page", "sink", "iteration", "enter", "exit", "event"]
"""What a chain answers: a call of the step, its next page, its success, the end of an iteration,
the beginning of the step, its end, or something the world said. The last three are heard by the
server."""
SERVER_STAGES = ("enter", "exit", "event")


class Tries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often one call has been made, and how it differs from what is written."""

    attempt: int = 1
    """The number of the coming try, counted anew for each page and each look of a poll."""
    page: int = 0
    """Counts the logical calls that one written call became: pages, and looks of a poll."""
    calls: int = 0
    """Calls made before the coming one."""
    rounds: int = 0
    """Of those, the ones that succeeded."""
    polls: int = 0
    poll_began: float | None = None
    overrides: Values = {}
    """Config that this page changes."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Where a token goes, and what it carries, with every template filled in."""

    step: str
    args: Values = {}
    label: str = ""
    """Which of the playbook's ways out this is."""


class Routing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `next` that a chain has reached."""

    branch: str
    goals: tuple[Goal, ...] = ()
    policy: NextPolicy = "end_step"
    priority: int = 0
    delay: float = 0.0


class Again(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another call that a chain asked for: a new page (`call`), or the same once more (`retry`)."""

    overrides: Values = {}
    delay: float = 0.0
    new_page: bool = True


class Chain(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The chains of actions that one event set off, and how far they have come."""

    stage: Stage
    event: str
    rules: tuple[str, ...]
    """The branches that were selected, in order."""
    epoch: int = 0
    """When the server heard the event: each time it happens is a time of its own."""
    outcome: Outcome | None = None
    """What the call, or the step, came to; a large result as a reference."""
    data: Any = None
    """What came with an external event."""
    tasks: Values = {}
    """The end of a step of several tasks: the result of each."""
    task: str = ""
    """The task whose call it is about."""
    position: int = 0
    """Where in the pipeline that task stands."""
    call: Tries = Tries()
    """The counters of that call."""
    fails: TaskError | None = None
    """What the pipeline ends with, unless a rule says otherwise."""
    branch: int = 0
    """The branch that is under way, and its action that comes next."""
    action: int = 0
    tries: Tries = Tries()
    """The counters of the task that this action runs."""
    restarts: int = 0
    """How often this branch has been begun again."""
    before: Values = {}
    """The step's own names as they were when this branch began."""
    dropped: tuple[str, ...] = ()
    """Branches that were selected and not followed, because one before them ended the step."""
    losers: tuple[str, ...] = ()
    """Branches that lost before this chain began."""
    routes: tuple[Routing, ...] = ()
    again: Again | None = None
    recovered: bool = False
    """A rule said what the step yields although the call failed."""
    error: TaskError | None = None
    skipped: str | None = None
    """Why the step is skipped, if a rule said that it is."""
    outer: Chain | None = None
    """The chain whose task is repeated by this one; it goes on when this one is over."""

    @property
    def is_over(self) -> bool:
        return self.branch >= len(self.rules)

    @property
    def outermost(self) -> Chain:
        """The chain that answers the event itself."""
        return self if self.outer is None else self.outer.outermost

    @property
    def place(self) -> tuple[object, ...]:
        """What tells a call of this chain from every other call of the same task."""
        branch = self.rules[self.branch]
        own = (self.stage, self.epoch, branch, self.action, self.tries.page)
        return own if self.outer is None else (*own, self.outer.call.page, *self.outer.place)


class Progress(Tries, frozen=True, kw_only=True, omit_defaults=True):
    """Where a pipeline stands. The counters are those of the task at `position`."""

    position: int = 0
    """Index of the task to run next."""
    cause: str = ""
    """What its calls are named after, if that is not the run."""
    jumps: int = 0
    iter: Values = {}
    local: Values = {}
    results: Values = {}
    """Results of the tasks done so far, by name; large ones as references."""
    previous: Any = None
    pending: Outcome | None = None
    """An outcome that arrived from elsewhere (a child execution) for the task under way."""
    yields: tuple[Any, ...] = ()
    """What a rule said that the step yields; empty if none did."""
    chain: Chain | None = None
    """Event rules that are being followed."""
    writes: Values = {}
    """What an iteration has written to ctx so far."""
    inner: Inner | None = None
    """The task under way called a workbook entry, and that is where it waits."""

    @property
    def innermost(self) -> Progress:
        """Where the call is made that is waited for."""
        return self if self.inner is None else self.inner.passes[self.inner.waits].innermost


class Inner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a workbook entry stands. Of a looped one several passes may have begun."""

    waits: int
    """The pass that waits; the others that have begun wait for their turn."""
    passes: dict[int, Progress]
    ended: dict[int, Outcome] = {}
    """Passes that are through; large results as references."""
