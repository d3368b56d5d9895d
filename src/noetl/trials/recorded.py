"""Runs a playbook against recorded executions: recorded outcomes replace its tools.

Store, engine and worker are the usual ones, on virtual time (`trials.world`). A call is answered
with the next recorded outcome of the same task, step and iteration, and takes as long as it took
then. A call without a record ends the comparison, because its outcome is unknown.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from noetl.control.recordings import Recording
from noetl.dsl.walk import all_tasks
from noetl.errors import NoetlError
from noetl.model import refs
from noetl.model.events import (
    ApprovalReceived,
    ExecutionRequested,
    FrameClaimed,
    MessageReceived,
    NextSelected,
    SinkProcessed,
    StepFailed,
    StepScheduled,
    StepSkipped,
    TaskDone,
    WorkflowFinished,
    decode,
)
from noetl.model.net import NOOP, PLAYBOOK, Net
from noetl.model.outcome import Outcome, failed
from noetl.model.retrospect import Divergence, WhatIfExecution
from noetl.tools.base import Tool, ToolContext
from noetl.trials.files import Signal
from noetl.trials.playbooks import Playbooks, Target, adapted
from noetl.trials.stand_ins import standing_in
from noetl.trials.world import Surroundings, World

PURE = frozenset({NOOP})
"""Kinds that yield what the playbook writes and touch nothing: these are evaluated again."""
Key = tuple[str, str, int | None]
"""Step, task, iteration."""


Calls = dict[Key, deque[Outcome]]
"""The outcomes of the recorded calls of an execution, to be given again in order."""


async def calls_of(recording: Recording) -> Calls:
    """Those that have ended. Raises NotFound if a large result is not there."""
    calls: Calls = {}
    owner = recording.head.execution_id
    for fact in recording.facts:
        if not isinstance(fact, TaskDone | SinkProcessed):
            continue
        outcome = fact.outcome
        asking = refs.real(outcome.result, owner, refs.UNSEALED)
        result = await refs.fetched(asking, recording.body)
        made = calls.setdefault((fact.step, fact.task, fact.iteration), deque())
        made.append(msgspec.structs.replace(outcome, result=result))
    return calls


NOT_RECORDED = "not_recorded"
"""The code of the error that such a call ends with."""


class RecordedTools:
    """Gives the recorded outcome of each call; nothing else is called but what is pure."""

    def __init__(self, calls: Calls, world: World) -> None:
        self._calls = calls
        self._world = world
        self.unknown: Key | None = None
        """The first call for which nothing is recorded."""

    async def call(self, tool: Tool, config: Any, context: ToolContext) -> Outcome:
        key = (context.step, context.task, context.iteration)
        waiting = self._calls.get(key)
        found = waiting.popleft() if waiting else None
        if tool.kind in PURE and tool.run is not None:
            return await tool.run(config, context)
        if found is not None:
            await self._world.clock.sleep(found.meta.duration)
            return found
        self.unknown = self.unknown or key
        what = f"nothing is recorded for {_named(key)}"
        self._world.stop.complain(key, what)
        return failed("client_error", what, code=NOT_RECORDED)


def _named(key: Key) -> str:
    step, task, iteration = key
    return f"{step}.{task}" + ("" if iteration is None else f" (iteration {iteration})")


# --- What would have happened --------------------------------------------------------------------


class Replayed(NamedTuple):
    """How an execution went: its facts, and what stopped it if something did."""

    facts: list[Any]
    status: str
    unknown: Key | None


async def replay(recording: Recording, net: Net, around: Surroundings) -> Replayed:
    """Run the playbook in a system of its own, in a VirtualLoop, with recorded outcomes."""
    first = recording.facts[0]
    assert isinstance(first, ExecutionRequested)
    calls = await calls_of(recording)
    tested = adapted(Playbooks(net, {}), _handed_over(net), {})
    async with World.opened(around, first.at) as world:
        recorded = RecordedTools(calls, world)
        tools = standing_in(around.tools, recorded.call)
        start = partial(world.start, tested, first.payload)
        async with world.played(tools, start, _signals(recording, first.at)) as execution_id:
            state = await world.orchestrator.state(execution_id)
            rows = await world.events(execution_id)
    facts = list(takewhile(_is_known, (decode(row.body) for row in rows)))
    return Replayed(facts=facts, status=state.status, unknown=recorded.unknown)


def _is_known(fact: Any) -> bool:
    """Not the end of a call that is not recorded: what follows from that is no way to go."""
    done = isinstance(fact, TaskDone | SinkProcessed)
    return not done or fact.outcome.error is None or fact.outcome.error.code != NOT_RECORDED


def _handed_over(net: Net) -> list[Target]:
    """Calls of other playbooks are answered by their recorded outcome, too."""
    return [
        Target("", step.name, task.name)
        for step in net.steps
        for task in all_tasks(step)
        if task.kind == PLAYBOOK
    ]


def _signals(recording: Recording, begun: float) -> list[Signal]:
    return [
        Signal(
            name=fact.name, data=fact.data, step=fact.step or None, after=max(0.0, fact.at - begun)
        )
        for fact in recording.facts
        if isinstance(fact, MessageReceived | ApprovalReceived)
    ]


async def compared(recording: Recording, net: Net, around: Surroundings) -> WhatIfExecution:
    """Whether the playbook would have gone another way, and where."""
    head = recording.head

    def told(verdict: Any, why: str = "", **more: Any) -> WhatIfExecution:
        return WhatIfExecution(
            execution_id=head.execution_id, verdict=verdict, text=why, status=head.status, **more
        )

    if any(isinstance(fact, FrameClaimed) for fact in recording.facts):
        return told("unknown", "the rows that a cursor claimed are not in the record")
    try:
        again = await replay(recording, net, around)
    except NoetlError as error:
        return told("unknown", str(error))
    divergence = _divergence(recording.facts, again.facts, ended=again.unknown is None)
    if divergence is not None:
        return told("different", divergence.text, now=again.status, where=divergence)
    if again.unknown is not None:
        why = f"it goes the same way until {_named(again.unknown)}, for which nothing is recorded"
        if head.status in ("RUNNING", "PAUSED", "PENDING", "CANCELLED"):
            return told("same", "it goes the same way, as far as it was recorded")
        return told("unknown", why, now=again.status)
    if again.status != head.status and head.status in ("COMPLETED", "FAILED"):
        why = f"it would have been {again.status} instead of {head.status}"
        return told("different", why, now=again.status)
    return told("same", "it goes the same way", now=again.status)


class _Run(NamedTuple):
    """The outcome of a step run."""

    targets: tuple[str, ...] | None
    failed: bool


def _runs(facts: list[Any]) -> dict[tuple[str, int], _Run]:
    """Step runs in the order in which they ended or were skipped, by step and number."""
    keys: dict[str, tuple[str, int]] = {}
    found: dict[tuple[str, int], _Run] = {}
    skipped: dict[str, int] = {}
    for fact in facts:
        match fact:
            case StepScheduled():
                keys[fact.step_run_id] = (fact.step, fact.number)
                found[fact.step, fact.number] = _Run(None, failed=False)
            case StepSkipped() if fact.step_run_id not in keys:
                skipped[fact.step] = skipped.get(fact.step, 0) + 1
                found[fact.step, -skipped[fact.step]] = _Run(("skipped",), failed=False)
            case StepFailed() if fact.step_run_id in keys:
                key = keys[fact.step_run_id]
                found[key] = found[key]._replace(failed=True)
            case NextSelected() if fact.step_run_id in keys:
                key = keys[fact.step_run_id]
                found[key] = found[key]._replace(targets=tuple(fact.targets))
            case _:
                pass
    return found


def _divergence(recorded: list[Any], now: list[Any], *, ended: bool) -> Divergence | None:
    """The first step run after which they differ."""
    before, after = _runs(recorded), _runs(now)
    for key, was in before.items():
        step, number = key
        new = after.get(key)
        if new is None:
            if ended and _is_over(recorded):
                return Divergence(
                    step=step, run=number, text=f"`{step}` would not have run", recorded=["ran"]
                )
            continue
        is_known = new.targets is not None or new.failed or ended
        if is_known and (was.targets, was.failed) != (new.targets, new.failed):
            return Divergence(
                step=step,
                run=number,
                text=f"after `{step}` it goes {_way(new)}; recorded: {_way(was)}",
                recorded=list(was.targets or ()),
                now=list(new.targets or ()),
            )
    for key in after:
        if key not in before and _is_over(recorded):
            step, number = key
            return Divergence(step=step, run=number, text=f"`{step}` would have run", now=["ran"])
    return None


def _is_over(facts: list[Any]) -> bool:
    return any(isinstance(fact, WorkflowFinished) and fact.status != "CANCELLED" for fact in facts)


def _way(run: _Run) -> str:
    if run.targets == ("skipped",):
        return "nowhere: it is skipped"
    if run.targets:
        return "to " + ", ".join(f"`{target}`" for target in run.targets)
    return "nowhere: it fails" if run.failed else "nowhere"
