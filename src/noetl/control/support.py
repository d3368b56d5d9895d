"""What of the language this version can run. The rest is checked and drawn, and refused here.

A playbook that uses it must not run as if it were not there: it fails before its first step.
"""

from __future__ import annotations

from noetl.model.net import (
    Block,
    Break,
    Continue,
    Fail,
    Jump,
    Net,
    Patch,
    Retry,
    Rule,
    Step,
    Task,
)
from noetl.model.outcome import TaskError

RUNNABLE_ACTIONS = (Patch, Continue, Break, Jump, Fail, Retry)


def refusal(net: Net) -> TaskError | None:
    """The reason not to start an execution of this net, if there is one."""
    for step in net.steps:
        found = _of_step(step) or _of_body(step)
        if found is not None:
            return _error(f'step "{step.name}" has {found}')
    for block in net.workbook:
        found = _of_body(block)
        if found is not None:
            return _error(f'workbook entry "{block.name}" has {found}')
    return None


def _error(what: str) -> TaskError:
    return TaskError(
        kind="client_error",
        code="not_in_this_version",
        message=f"{what}, which this version checks and draws but does not run yet."
        " `noetl migrate` rewrites it where the canonical form can say the same.",
    )


def _of_step(step: Step) -> str | None:
    if step.rules:
        return "event rules (`case`)"
    if step.case.wait or step.timers or step.form:
        return "a wait for events (`eval_mode: on_event`)"
    if step.sink is not None:
        return "a `sink`"
    return None


def _of_body(body: Step | Block) -> str | None:
    if body.loop is not None and body.loop.cursor is not None:
        return "a loop over a `cursor`"
    return next((found for task in body.tasks if (found := _of_task(task))), None)


def _of_task(task: Task) -> str | None:
    if task.poll is not None:
        return f'a `poll` (task "{task.name}")'
    if any(_needs_more(rule) for rule in (*task.rules, *task.retries)):
        return f'a `retry` that collects, stores or pages (task "{task.name}")'
    hooks = (*task.before, *task.after, *task.finally_)
    return next((found for hook in hooks if (found := _of_task(hook))), None)


def _needs_more(rule: Rule) -> bool:
    return any(
        not isinstance(action, RUNNABLE_ACTIONS)
        or (isinstance(action, Retry) and bool(action.overrides))
        for action in rule.actions
    )
