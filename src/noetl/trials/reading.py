"""A test file's text → the tests, or everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from noetl.dsl.grammar import Inspection
from noetl.dsl.nodes import Mapping, Node, plain, text_of
from noetl.dsl.nodes import Sequence as ListNode
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.walk import bodies
from noetl.errors import NotFound
from noetl.model.net import Net
from noetl.model.problems import Place, Problem
from noetl.templates import TemplateRefused, compile_value
from noetl.trials.model import TrialFile
from noetl.trials.shapes import ARROW, TRIAL_FILE
from noetl.trials.targets import target


class Read(NamedTuple):
    """What became of a text; `root` is for checks that need the playbook as well."""

    file: TrialFile | None
    root: Mapping | None
    problems: tuple[Problem, ...]


def read_trials(text: str) -> Read:
    """Never raises for bad input: the problems say what is wrong."""
    report = Report()
    root = read(text, report)
    if root is None:
        return Read(None, None, tuple(map(_of_a_test_file, report.problems(None))))
    TRIAL_FILE.check(root, "a test file", Inspection(report, {}))
    for answer in _answers(root):
        _check_templates(answer, report)
    if report.has_errors:
        return Read(None, root, report.problems(root))
    return Read(msgspec.convert(plain(root), TrialFile), root, ())


def _of_a_test_file(problem: Problem) -> Problem:
    if problem.code != "not-a-playbook":
        return problem
    message = "a test file is a mapping that has `playbook` and `tests`."
    return msgspec.structs.replace(problem, message=message)


def check_names(root: Mapping, nets: Sequence[Net]) -> tuple[Problem, ...]:
    """Whatever the tests name must be in the playbook: a misspelt step would never be missed.

    The first of the nets is the playbook that is tested.
    """
    report = Report()
    # A workbook entry runs in a step's place where it undoes what the step did.
    steps = {body.name for body in bodies(nets[0])}
    entries = {entry.name for net in nets for entry in net.keychain}
    for name, place in _steps(root):
        if name not in steps:
            hint = report.suggest(name, steps) or f" It has: {', '.join(sorted(steps))}."
            report.add("unknown-step", f'the playbook has no step "{name}".{hint}', place)
    for name, place in _keys_of(root, "keychain"):
        if name not in entries:
            hint = report.suggest(name, entries)
            report.add("bad-value", f'the keychain has no entry "{name}".{hint}', place)
    calls = [key for expect in _expects(root) for key in _keys(expect.get("calls"))]
    for name, place in [*_keys_of(root, "stand_ins"), *calls]:
        try:
            target(name, nets)
        except NotFound as error:
            report.add("unknown-task", str(error), place)
    return report.problems(root)


# --- Ways through the document -----------------------------------------------------------------


def _parts(root: Mapping) -> Iterator[Mapping]:
    """The file itself, and its tests."""
    yield root
    yield from _tests(root)


def _tests(root: Mapping) -> Iterator[Mapping]:
    return (node for node in _items(root.get("tests")) if isinstance(node, Mapping))


def _expects(root: Mapping) -> Iterator[Mapping]:
    found = (test.get("expect") for test in _tests(root))
    return (node for node in found if isinstance(node, Mapping))


def _items(node: Node | None) -> list[Node]:
    return node.items if isinstance(node, ListNode) else []


def _keys(node: Node | None) -> list[tuple[str, Place]]:
    return list(node.keys.items()) if isinstance(node, Mapping) else []


def _keys_of(root: Mapping, name: str) -> Iterator[tuple[str, Place]]:
    for part in _parts(root):
        yield from _keys(part.get(name))


def _answers(root: Mapping) -> Iterator[Node]:
    for part in _parts(root):
        written = part.get("stand_ins")
        if isinstance(written, Mapping):
            for node in written.entries.values():
                yield from _items(node) or [node]


def _steps(root: Mapping) -> Iterator[tuple[str, Place]]:
    """Every place where a step is named."""
    for test in _tests(root):
        for signal in _items(test.get("signals")):
            if isinstance(signal, Mapping):
                yield from _words(signal.get("step"))
    for expect in _expects(root):
        for node in _items(expect.get("steps")):
            for one in _items(node) or [node]:
                yield from _words(one)
        for arc in [*_items(expect.get("arcs")), *_items(expect.get("never"))]:
            yield from _words(arc)
        yield from _keys(expect.get("results"))


def _words(node: Node | None) -> Iterator[tuple[str, Place]]:
    """The step, or the two steps of an arc."""
    text = text_of(node)
    if node is not None and text is not None:
        for name in text.split(ARROW):
            yield name.strip(), node.place


def _check_templates(answer: Node, report: Report) -> None:
    try:
        compile_value(plain(answer))
    except TemplateRefused as refusal:
        for problem in refusal.problems:
            report.add(
                problem.code, f"a template of this stand-in: {problem.message}", answer.place
            )
