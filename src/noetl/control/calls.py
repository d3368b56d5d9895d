"""One call of a tool, put together from what was recorded of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from noetl.control import documents
from noetl.control.documents import moment
from noetl.control.records import events
from noetl.control.task_logs import text_of
from noetl.dsl.walk import all_tasks
from noetl.engine.pipeline.calls import hook_cause
from noetl.errors import NotFound
from noetl.model.events import RetryStarted, TaskDone, TaskLogged, TaskStarted, decode
from noetl.model.ids import ExecutionId, derive
from noetl.model.net import Block, DirectiveKind, Rule, Step, Task
from noetl.model.outcome import Outcome
from noetl.model.timeline import AttemptDocument
from noetl.store.log import mark
from noetl.templates.views import OutcomeView, ResultView, view

if TYPE_CHECKING:
    from noetl.engine.program import Program
    from noetl.store.log import Log

TYPES = ("task.started", "task.done", "task.log", "retry.started")
JUMPS_TRIED = 10
"""A call's id counts the jumps of its pipeline; hooks rarely jump."""


class Call(NamedTuple):
    """What the log says of a call."""

    started: TaskStarted
    seq: int
    """The event that began its first try."""
    attempts: list[AttemptDocument]
    result: Any
    outcomes: dict[int, Outcome]
    """By try."""


async def recorded(log: Log, execution_id: ExecutionId, action_id: str, *, after: int = 0) -> Call:
    """The call of this id, looked for after an event. Raises NotFound."""
    named = mark(action_id=action_id)
    first: tuple[TaskStarted, int] | None = None
    tries: dict[int, dict[str, Any]] = {}
    result: Any = None
    async for row in events(log, execution_id, after=after, types=TYPES):
        if named not in row.body:
            continue
        fact = decode(row.body)
        if getattr(fact, "action_id", "") != action_id:
            continue
        match fact:
            case TaskStarted():
                first = first or (fact, row.seq)
                tries[fact.attempt] = {"seq": row.seq, "started": fact.at, "output": ""}
            case TaskLogged():
                if fact.attempt in tries:
                    tries[fact.attempt]["output"] += fact.text
            case TaskDone():
                found = tries.setdefault(fact.attempt, {"seq": row.seq, "output": ""})
                found["output"] += text_of(fact)
                found |= {"done": fact}
                result = fact.outcome.result if fact.outcome.status == "ok" else None
            case RetryStarted():
                if fact.attempt - 1 in tries:
                    tries[fact.attempt - 1]["delay"] = fact.delay
    if first is None:
        raise NotFound(f"execution {execution_id} has made no call {action_id[:80]}.")
    attempts = [_attempt(number, found) for number, found in sorted(tries.items())]
    outcomes = {number: found["done"].outcome for number, found in tries.items() if "done" in found}
    return Call(*first, attempts, result, outcomes)


def _attempt(number: int, found: dict[str, Any]) -> AttemptDocument:
    done: TaskDone | None = found.get("done")
    begun: float | None = found.get("started")
    if begun is None and done is not None:
        begun = done.outcome.meta.started_at or None
    took = None if done is None or begun is None else round(max(done.at - begun, 0.0), 6)
    return AttemptDocument(
        attempt=number,
        seq=found["seq"],
        started_at=moment(begun),
        ended_at=None if done is None else moment(done.at),
        duration_seconds=took,
        status="running" if done is None else done.outcome.status,
        error=None if done is None else documents.error(done.outcome.error),
        directive="" if done is None else done.directive,
        retry_delay=found.get("delay"),
        output=found["output"],
    )


class WrittenTask(NamedTuple):
    """What the playbook says of a call: the tool's config, and the rules that judge outcomes."""

    config: dict[str, Any]
    rules: tuple[Rule, ...]
    """In the order in which they are tried."""

    @property
    def conditions(self) -> list[str | bool]:
        """The condition of each rule; an `else` always holds."""
        return [True if rule.when is None else rule.when for rule in self.rules]

    def matched(self, held: list[Any], directive: str) -> int | None:
        """The number of the rule that led to a directive, given which conditions held.

        A `retry` whose tries are used up holds no longer, and then no `else` does either: if no
        other rule holds, it is the one that led to the failure.
        """
        exhausted: int | None = None
        for number, (rule, holds) in enumerate(zip(self.rules, held, strict=True)):
            if not holds or (exhausted is not None and rule.when is None):
                continue
            last = type(rule.actions[-1]).__struct_config__.tag if rule.actions else "continue"
            said = last if last in get_args(DirectiveKind) else "continue"
            if said == directive:
                return number
            if said != "retry":
                return None
            exhausted = number if exhausted is None else exhausted
        return exhausted if directive == "fail" else None


async def written_task(
    log: Log, execution_id: ExecutionId, program: Program, call: Call
) -> WrittenTask:
    """The task of a call, wherever in its step or in the workbook it stands; empty if unknown."""
    step, name = call.started.step, call.started.task
    bodies: list[Step | Block] = [*program.net.workbook]
    if step in program.steps:
        bodies.insert(0, program.steps[step].step)
    # Of several tasks with one name, those of pipelines come first.
    tasks = [task for body in bodies for task in (*body.tasks, *all_tasks(body))]
    named = [task for task in tasks if task.name == name]
    if not named:
        return WrittenTask({}, ())
    task = named[0]
    if any(other is not task for other in named):
        task = await _hook_task(log, execution_id, tasks, call) or task
    args = {"args": task.inputs} if task.inputs else {}
    return WrittenTask({**task.config, **args}, (*task.retries, *task.rules))


async def _hook_task(
    log: Log, execution_id: ExecutionId, tasks: list[Task], call: Call
) -> Task | None:
    """The task of a call that a hook made: its id is derived from the call that has the hook."""
    started = call.started
    async for row in events(log, execution_id, types=("task.started",), step=started.step):
        if row.seq >= call.seq:
            break
        outer = decode(row.body)
        assert isinstance(outer, TaskStarted)
        if (outer.step_run_id, outer.iteration) != (started.step_run_id, started.iteration):
            continue
        for task in tasks:
            hooks = {"before": task.before, "after": task.after, "finally": task.finally_}
            for hook, inner_tasks in hooks.items() if task.name == outer.task else ():
                cause = hook_cause(outer.action_id, hook, outer.attempt)
                ids = {derive(cause, started.task, started.page, n) for n in range(JUMPS_TRIED)}
                for inner in inner_tasks if started.action_id in ids else ():
                    if inner.name == started.task:
                        return inner
    return None


def names_of(seen_as: type[ResultView], outcome: Outcome, attempt: int) -> dict[str, object]:
    """The names under which rules see the outcome of a try."""
    envelope = msgspec.to_builtins(outcome)
    shown = OutcomeView(seen_as, envelope)
    names: dict[str, object] = {"outcome": shown, "output": shown, "this": envelope}
    names["_attempt"] = attempt
    if outcome.is_ok:
        return names | dict.fromkeys(("result", "response"), view(seen_as, outcome.result))
    return names | {"error": envelope["error"]}
