"""Every task and action of a net, wherever it stands: in a pipeline, a hook, a rule or a sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from noetl.model.net import (
    PLAYBOOK,
    AnyAction,
    Arc,
    Block,
    Net,
    Patch,
    Route,
    Rule,
    Run,
    Step,
    Target,
    Task,
)


def bodies(net: Net) -> Iterator[Step | Block]:
    """Everything that has tasks: steps, then workbook entries."""
    yield from net.steps
    yield from net.workbook


def all_tasks(body: Step | Block) -> Iterator[Task]:
    """Every task of a step or workbook entry: each of the pipeline, followed by its hooks and the
    tasks of its rules; then the step's sink and the tasks of its rules.
    """
    stack = [*body.tasks]
    if isinstance(body, Step):
        stack += [*([] if body.sink is None else [body.sink]), *_rule_tasks(body.rules)]
    stack.reverse()
    while stack:
        task = stack.pop()
        yield task
        within = (*task.before, *task.after, *task.finally_)
        stack += reversed((*within, *_rule_tasks((*task.rules, *task.retries))))


def _rule_tasks(rules: tuple[Rule, ...]) -> list[Task]:
    return [action.task for rule in rules for action in rule.actions if isinstance(action, Run)]


def called_playbooks(net: Net) -> set[str]:
    """The paths of the playbooks that a net calls, except those that a template computes."""
    paths = {
        task.config.get("path")
        for body in bodies(net)
        for task in all_tasks(body)
        if task.kind == PLAYBOOK
    }
    return {path for path in paths if isinstance(path, str) and "{{" not in path}


class Parts(NamedTuple):
    """The tasks and rule actions of a step or workbook entry, collected once for all checks."""

    body: Step | Block
    tasks: list[Task]
    actions: list[AnyAction]
    """Of every rule."""

    @property
    def pipelines(self) -> Iterator[tuple[Task, ...]]:
        """Its own pipeline, and each hook as a pipeline of its own."""
        yield self.body.tasks
        for task in self.tasks:
            yield from filter(None, (task.before, task.after, task.finally_))

    @property
    def patches(self) -> Iterator[Patch]:
        """Everything that writes ctx, iter or local names while the body runs."""
        yield from (action for action in self.actions if isinstance(action, Patch))
        yield from (task.patch for task in self.tasks if task.patch is not None)
        if isinstance(self.body, Step) and self.body.patch is not None:
            yield self.body.patch

    @property
    def ways_out(self) -> Iterator[Arc | Target]:
        """Every arc of a step, and every target of a rule's `next`."""
        if isinstance(self.body, Step):
            yield from self.body.router.arcs
        for action in self.actions:
            if isinstance(action, Route):
                yield from action.targets


def parts_of(body: Step | Block) -> Parts:
    """Collect the parts of a step or workbook entry."""
    tasks = list(all_tasks(body))
    rules = [rule for task in tasks for rule in (*task.rules, *task.retries)]
    if isinstance(body, Step):
        rules = [*body.rules, *rules]
    return Parts(body, tasks, [action for rule in rules for action in rule.actions])
