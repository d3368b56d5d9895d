"""The playbooks of a test: which task a name means, and what is changed in them for the test.

A test names a task by `step`, `step.task` or `path/of/playbook:step.task`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from noetl.dsl.walk import all_tasks, bodies
from noetl.errors import NotFound
from noetl.model.facts import Source
from noetl.model.net import PLAYBOOK, WORKBOOK, KeychainEntry, Net, Step, Task
from noetl.model.spelling import did_you_mean
from noetl.templates import compile_value
from noetl.tools.registry import tools

CLAIM = "claim"
"""The task that asks for the next rows of a loop over a cursor."""


class Target(NamedTuple):
    """A task of a playbook."""

    path: str
    """Of a playbook that the tested one calls; empty for that one itself."""
    step: str
    task: str

    def __str__(self) -> str:
        place = f"{self.step}.{self.task}"
        return f"{self.path}:{place}" if self.path else place


def target(written: str, nets: Sequence[Net]) -> Target:
    """The one task that is meant; raises NotFound, saying which there are.

    The first of the nets is the playbook that is tested; its own path need not be written.
    """
    path, _, place = written.rpartition(":")
    net = next((net for net in nets if net.path == path), None) if path else nets[0]
    if net is None:
        hint = did_you_mean(path, [net.path for net in nets])
        raise NotFound(f'no playbook "{path}" is called from files beside this one.{hint}')
    name, has_task, task = place.partition(".")
    step = next((step for step in net.steps if step.name == name), None)
    if step is None:
        hint = did_you_mean(name, [step.name for step in net.steps])
        raise NotFound(f'the playbook has no step "{name}".{hint}')
    found = _named(task, name, set(_tasks(step, net))) if has_task else _only(step)
    return Target(path_of(net.path, nets), name, found)


def path_of(path: str, nets: Sequence[Net]) -> str:
    """The path that targets in this playbook have."""
    return "" if path == nets[0].path else path


def _named(task: str, step: str, known: set[str]) -> str:
    if task in known:
        return task
    hint = did_you_mean(task, known) or f" It has: {', '.join(sorted(known)) or 'none'}."
    raise NotFound(f'step "{step}" has no task "{task}".{hint}')


def _only(step: Step) -> str:
    """The only task of the step, or else the only one that reaches outside."""
    tasks = [task.name for task in step.tasks]
    outside = [task.name for task in step.tasks if not _is_harmless(task.kind)]
    for choice in (tasks, outside):
        if len(choice) == 1:
            return choice[0]
    if not tasks:
        raise NotFound(f'step "{step.name}" has no tool, so there is nothing to stand in for.')
    choices = ", ".join(f"{step.name}.{task}" for task in tasks)
    raise NotFound(f'step "{step.name}" has several tasks; say which one: {choices}.')


def _is_harmless(kind: str) -> bool:
    tool = tools().get(kind)
    return tool is not None and tool.is_harmless


def _tasks(step: Step, net: Net) -> Iterator[str]:
    """Every task that may run while the step does."""
    own = list(all_tasks(step))
    yield from (task.name for task in own)
    if step.loop is not None and step.loop.cursor is not None:
        yield CLAIM
    if step.compensate is not None or any(task.kind == WORKBOOK for task in own):
        yield from (task.name for block in net.workbook for task in all_tasks(block))


BY_THE_WORKER = (PLAYBOOK, WORKBOOK)
"""Kinds that no tool runs, so a stand-in for them is a kind of its own."""
ANY_SECRET = "stand-in"  # noqa: S105  it opens nothing


class Playbooks(NamedTuple):
    """The playbook that is tested, and those that it calls."""

    net: Net
    children: Mapping[str, Net]
    """By text."""
    source: Source | None = None
    """The file of the one that is tested."""

    @property
    def nets(self) -> Sequence[Net]:
        return (self.net, *self.children.values())


def adapted(
    playbooks: Playbooks, targets: Collection[Target], secrets: Mapping[str, Any]
) -> Playbooks:
    """The same, but with harmless secrets, with calls that no tool makes handed to stand-ins, and
    for a worker that serves every pool.
    """

    def made(net: Net) -> Net:
        path = path_of(net.path, playbooks.nets)
        fields = _fields_of_secrets(net)
        return msgspec.structs.replace(
            net,
            keychain=tuple(_harmless(entry, secrets, fields) for entry in net.keychain),
            executor=msgspec.structs.replace(net.executor, pool=None),
            steps=tuple(_handed_over(step, path, targets) for step in net.steps),
        )

    children = {text: made(child) for text, child in playbooks.children.items()}
    return Playbooks(made(playbooks.net), children, playbooks.source)


def _fields_of_secrets(net: Net) -> dict[str, dict[str, str]]:
    """By entry of the keychain: a placeholder for each field that a template reads."""
    found: dict[str, dict[str, str]] = {}
    for body in bodies(net):
        for task in all_tasks(body):
            for path in compile_value([task.config, task.inputs]).reads:
                if path[0] == "keychain" and len(path) > 2:
                    found.setdefault(path[1], {})[path[2]] = ANY_SECRET
    return found


def _harmless(
    entry: KeychainEntry, secrets: Mapping[str, Any], fields: Mapping[str, dict[str, str]]
) -> KeychainEntry:
    if entry.name not in secrets and entry.kind == "static":
        return entry
    value = secrets.get(entry.name, fields.get(entry.name, ANY_SECRET))
    config = {"data": value} if isinstance(value, dict) else {"value": value}
    return KeychainEntry(name=entry.name, kind="static", config=config)


def _handed_over(step: Step, path: str, targets: Collection[Target]) -> Step:
    def made(task: Task) -> Task:
        if task.kind not in BY_THE_WORKER or Target(path, step.name, task.name) not in targets:
            return task
        return msgspec.structs.replace(task, kind=kind_for(task.kind))

    return msgspec.structs.replace(step, pool=None, tasks=tuple(map(made, step.tasks)))


def kind_for(kind: str) -> str:
    """The kind of a stand-in for a call that no tool makes."""
    return f"{kind}_stand_in"
