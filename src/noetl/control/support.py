"""What of the language this version can run. The rest is checked and drawn, and refused here.

A playbook that uses it must not run as if it were not there: it fails before its first step.
"""

from __future__ import annotations

from noetl.model.net import Block, Collect, Net, Rule, Run, Step, Task
from noetl.model.outcome import TaskError


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
    if step.sink is not None and not step.tasks:
        return "a `sink` but no tool whose result it could store"
    for rule in step.rules:
        for action in rule.actions:
            if isinstance(action, Run) and any(map(_needs_more, action.task.retries)):
                return f'a `retry` that collects or stores (task "{action.task.name}" of a rule)'
    return None


def _of_body(body: Step | Block) -> str | None:
    if isinstance(body, Block) and body.loop is not None and body.loop.cursor is not None:
        return "a loop over a `cursor`"
    return next((found for task in body.tasks if (found := _of_task(task))), None)


def _of_task(task: Task) -> str | None:
    """A hook is one call: whatever repeats it would be passed over."""
    for hook in (*task.before, *task.after, *task.finally_):
        if hook.poll is not None or hook.retries or hook.rules:
            return f'a hook that is repeated or has a policy (task "{hook.name}")'
        found = _of_task(hook)
        if found is not None:
            return found
    return None


def _needs_more(rule: Rule) -> bool:
    return any(isinstance(action, Collect | Run) for action in rule.actions)
