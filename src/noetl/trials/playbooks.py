"""The playbooks of a test: the one that is tested, those it calls, and how a test runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from noetl.model.net import KeychainEntry, Net, Step, Task
from noetl.trials.targets import Target, path_of

BY_THE_WORKER = ("playbook", "workbook")
"""Kinds that no tool runs, so a stand-in for them is a kind of its own."""
ANY_SECRET = "stand-in"  # noqa: S105  it opens nothing


class Playbooks(NamedTuple):
    """The playbook that is tested, and those that it calls."""

    net: Net
    children: Mapping[str, Net]
    """By text."""

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
        return msgspec.structs.replace(
            net,
            keychain=tuple(_harmless(entry, secrets) for entry in net.keychain),
            executor=msgspec.structs.replace(net.executor, pool=None),
            steps=tuple(_handed_over(step, path, targets) for step in net.steps),
        )

    children = {text: made(child) for text, child in playbooks.children.items()}
    return Playbooks(made(playbooks.net), children)


def _harmless(entry: KeychainEntry, secrets: Mapping[str, Any]) -> KeychainEntry:
    if entry.name not in secrets and entry.kind == "static":
        return entry
    value = secrets.get(entry.name, ANY_SECRET)
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
