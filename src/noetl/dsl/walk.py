"""Ways through a net that several checks take."""

from __future__ import annotations

from collections.abc import Iterator

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


def pipelines(net: Net) -> Iterator[tuple[str, tuple[Task, ...]]]:
    """Every pipeline with the name of what it belongs to; hooks are pipelines of their own."""
    for body in bodies(net):
        yield body.name, body.tasks
        for task in all_tasks(body):
            for hook in (task.before, task.after, task.finally_):
                if hook:
                    yield body.name, hook


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


def called_playbooks(net: Net) -> set[str]:
    """Paths of the playbooks that a net calls, as far as it writes them out."""
    found = {
        task.config.get("path")
        for body in bodies(net)
        for task in all_tasks(body)
        if task.kind == PLAYBOOK
    }
    return {path for path in found if isinstance(path, str) and "{{" not in path}


def all_actions(body: Step | Block) -> Iterator[AnyAction]:
    """Every action of every rule."""
    if isinstance(body, Step):
        yield from _rule_actions(body.rules)
    for task in all_tasks(body):
        yield from _rule_actions((*task.rules, *task.retries))


def _rule_tasks(rules: tuple[Rule, ...]) -> list[Task]:
    return [action.task for action in _rule_actions(rules) if isinstance(action, Run)]


def _rule_actions(rules: tuple[Rule, ...]) -> Iterator[AnyAction]:
    for rule in rules:
        yield from rule.actions


def patches(body: Step | Block) -> Iterator[Patch]:
    """Everything that writes ctx, iter or local names while the body runs."""
    for action in all_actions(body):
        if isinstance(action, Patch):
            yield action
    for task in all_tasks(body):
        if task.patch is not None:
            yield task.patch
    if isinstance(body, Step) and body.patch is not None:
        yield body.patch


def ways_out(step: Step) -> Iterator[Arc | Target]:
    """Every arc and every target of a rule's `next`."""
    yield from step.router.arcs
    for action in all_actions(step):
        if isinstance(action, Route):
            yield from action.targets
