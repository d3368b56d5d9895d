"""From the text of a test file to tests that can run: its playbook, and those that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from noetl.dsl import Compiled
from noetl.dsl.walk import all_tasks, bodies
from noetl.model.net import Net
from noetl.model.problems import Problem
from noetl.trials.model import TrialFile
from noetl.trials.playbooks import Playbooks
from noetl.trials.reading import check_names, read_trials

Compile = Callable[[str], Compiled]
Beside = Callable[[Path], Mapping[str, str]]
"""The playbooks in a folder: path in the catalog → text."""


class Wrong(NamedTuple):
    """Something that is wrong with a file."""

    file: str
    problem: Problem


class Loaded(NamedTuple):
    """A file of tests with what they test."""

    file: TrialFile
    playbooks: Playbooks


def load(name: str, text: str, compile_text: Compile, beside: Beside) -> Loaded | list[Wrong]:
    """The tests, or everything that is wrong with their file or its playbook."""
    found = read_trials(text)
    if found.file is None or found.root is None:
        return [Wrong(name, problem) for problem in found.problems]
    place = Path(name).parent / found.file.playbook
    try:
        playbook = place.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        return [Wrong(name, _unreadable(found.file.playbook, error))]
    compiled = compile_text(playbook)
    if compiled.net is None:
        return [Wrong(str(place), one) for one in compiled.problems if one.severity == "error"]
    children = _children(compiled.net, compile_text, beside(place.parent))
    if isinstance(children, list):
        return children
    playbooks = Playbooks(compiled.net, children)
    problems = check_names(found.root, playbooks.nets)
    if problems:
        return [Wrong(name, problem) for problem in problems]
    return Loaded(found.file, playbooks)


def _unreadable(playbook: str, error: Exception) -> Problem:
    message = f'`playbook` names "{playbook}", which cannot be read: {error}. Name its file.'
    return Problem(code="unreadable-file", severity="error", message=message, line=1, column=1)


def _children(
    net: Net, compile_text: Compile, beside: Mapping[str, str]
) -> dict[str, Net] | list[Wrong]:
    """The playbooks that this one calls, and that those call, as far as they lie beside it."""
    found: dict[str, Net] = {}
    wanted, done = _called(net), {net.path}
    while wanted := wanted - done:
        path = wanted.pop()
        done.add(path)
        if path not in beside:
            continue  # there may be a stand-in for it; if not, the step that calls it says so
        compiled = compile_text(beside[path])
        if compiled.net is None:
            return [Wrong(path, one) for one in compiled.problems if one.severity == "error"]
        found[beside[path]] = compiled.net
        wanted |= _called(compiled.net)
    return found


def _called(net: Net) -> set[str]:
    tasks = [task for body in bodies(net) for task in all_tasks(body)]
    return {str(task.config.get("path")) for task in tasks if task.kind == "playbook"}
