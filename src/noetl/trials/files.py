"""Test files: their form, their content, and the playbooks that they test.

`read_trials` reads and checks a text, `check_names` compares its names with those of the playbook,
and `load` does both. `schema` is the JSON Schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Map
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from noetl.dsl import Compiled, compile_beside
from noetl.dsl.grammar import (
    Anything,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Record,
    Schema,
    Shape,
    Span,
    Text,
    Values,
    When,
    is_list,
    is_mapping,
    is_text,
)
from noetl.dsl.nodes import Mapping, Node, is_null, plain, text_of
from noetl.dsl.nodes import Sequence as ListNode
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.schema import DIALECT
from noetl.dsl.walk import bodies, called_playbooks
from noetl.errors import NotFound
from noetl.model.facts import Source
from noetl.model.net import Net
from noetl.model.outcome import ErrorKind
from noetl.model.problems import Place, Problem
from noetl.model.state import Status
from noetl.templates import TemplateRefused, compile_value
from noetl.trials.playbooks import Playbooks, target

# --- What a test file says -----------------------------------------------------------------------


Seconds = float | str


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in a test file."""


class StandInError(Part, frozen=True, kw_only=True):
    """A failure as a tool would report it."""

    kind: ErrorKind = "unknown"
    message: str = "the stand-in fails"
    code: str | int | None = None
    retryable: bool = False
    retry_after: float | None = None
    status: int | None = None
    details: Any = None


class Answer(Part, frozen=True, kw_only=True):
    """What a stand-in answers to a call; texts may be templates over the call."""

    when: str | bool | float | None = None
    times: int | Literal["always"] | None = None
    """How often it can be given. None: once in a list, always by itself."""
    takes: Seconds = 0.0
    result: Any = None
    error: StandInError | None = None
    http: dict[str, Any] | None = None
    pg: dict[str, Any] | None = None
    py: dict[str, Any] | None = None
    sh: dict[str, Any] | None = None


StandIn = Answer | tuple[Answer, ...]


class Signal(Part, frozen=True, kw_only=True):
    """An event from outside."""

    name: str
    data: Any = None
    step: str | None = None
    after: Seconds = 0.0
    """Since the execution was started."""


class Expect(Part, frozen=True, kw_only=True):
    """What must hold at the end. Keys that are left out are not compared, except the status."""

    status: Status | None = None
    """None: FAILED where an error is expected, else COMPLETED."""
    steps: list[str | list[str]] | None = None
    """Every run of a step, in order; a list within stands for steps in any order."""
    arcs: list[str] | None = None
    never: list[str] | None = None
    ctx: dict[str, Any] | None = None
    result: Any = msgspec.UNSET
    results: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    calls: dict[str, int] | None = None
    elapsed: Seconds | None = None


class Trial(Part, frozen=True, kw_only=True):
    """One test."""

    name: str
    workload: dict[str, Any] | None = None
    stand_ins: dict[str, StandIn] | None = None
    keychain: dict[str, Any] | None = None
    signals: list[Signal] | None = None
    expect: Expect | None = None


class TrialFile(Part, frozen=True, kw_only=True):
    """A file of tests of one playbook. Keys beside `tests` apply to all of them."""

    playbook: str
    workload: dict[str, Any] | None = None
    stand_ins: dict[str, StandIn] | None = None
    keychain: dict[str, Any] | None = None
    tests: list[Trial]

    def whole(self, trial: Trial) -> Trial:
        """The test with what all tests share; its own keys win."""
        return msgspec.structs.replace(
            trial,
            workload={**(self.workload or {}), **(trial.workload or {})},
            stand_ins={**(self.stand_ins or {}), **(trial.stand_ins or {})},
            keychain={**(self.keychain or {}), **(trial.keychain or {})},
        )


# --- How it may be written -----------------------------------------------------------------------


ARROW = "->"
_VALUES = Values()


class ArcText(Shape):
    """An arc, by the steps that it joins: `fetch -> end`."""

    def read(self, node: Node, what: str, look: Inspection) -> Node:
        steps = [name.strip() for name in (text_of(node) or "").split(ARROW)]
        if len(steps) != 2 or not all(steps):
            look.wrong_type(node, what, "an arc such as `fetch -> end`")
        return node

    def schema(self) -> Schema:
        return {"type": "string", "pattern": ARROW}


class Filled(Record):
    """A record whose keys must have a value, except those with free data."""

    def read(self, node: Node, what: str, look: Inspection) -> Node:
        super().read(node, what, look)
        for key, value in node.entries.items() if isinstance(node, Mapping) else ():
            field = self.fields.get(key)
            if field is not None and is_null(value) and not isinstance(field.shape, Anything):
                look.wrong_type(value, f"`{key}` of {self.title}", "a value, or left out")
        return node


_ERROR = Filled(
    "the error of a stand-in",
    {
        "kind": Field(OneOf(*get_args(ErrorKind)), "What kind of error. Default unknown."),
        "message": Field(Text(), "What it says."),
        "code": Field(
            Either(
                "a text or a whole number",
                (is_text, Text()),
                (lambda _: True, Number(whole=True, templates=False)),
            ),
            "The code of the error.",
        ),
        "retryable": Field(Flag(), "Whether another try may help. Default false."),
        "retry_after": Field(Number(least=0, templates=False), "Seconds to wait."),
        "status": Field(Number(whole=True, templates=False), "The HTTP status."),
        "details": Field(Anything(), "Other details of the error."),
    },
)
_ANSWER = Filled(
    "a stand-in",
    {
        "when": Field(When(), "Only for calls for which this holds."),
        "times": Field(
            Either(
                "a whole number, or always",
                (is_text, OneOf("always")),
                (lambda _: True, Number(whole=True, least=1, templates=False)),
            ),
            "How often it can be given. Default: once in a list, always by itself.",
        ),
        "takes": Field(Span(), "How long the call takes."),
        "result": Field(Anything(), "What the call yields."),
        "error": Field(_ERROR, "How the call fails."),
        "http": Field(_VALUES, "`outcome.http`: status, headers."),
        "pg": Field(_VALUES, "`outcome.pg`: code, sqlstate."),
        "py": Field(_VALUES, "`outcome.py`: exception_type."),
        "sh": Field(_VALUES, "`outcome.sh`: exit_code."),
    },
)
_STAND_INS = MapOf(
    Either(
        "an answer, or a list of answers: one for each call",
        (is_list, ListOf(_ANSWER, "answers", filled=True)),
        (is_mapping, _ANSWER),
    )
)
_SIGNAL = Filled(
    "a signal",
    {
        "name": Field(Text(), "Of the event, e.g. approval.received.", required=True),
        "data": Field(Anything(), "What it says."),
        "step": Field(Text(), "The step that it is for. Default: whichever waits for it."),
        "after": Field(Span(), "How long after the start. Default: at once."),
    },
)
_EXPECT = Filled(
    "`expect`",
    {
        "status": Field(
            OneOf(*get_args(Status)),
            "How it ends. Default COMPLETED, or FAILED with `error`; RUNNING: it waits for ever.",
        ),
        "steps": Field(
            ListOf(
                Either(
                    "a step, or a list of steps that run in any order",
                    (is_text, Text()),
                    (is_list, ListOf(Text(), "steps")),
                ),
                "steps",
            ),
            "Every run of a step, in order; a list within: in any order.",
        ),
        "arcs": Field(ListOf(ArcText(), "arcs"), "Arcs that must have been taken."),
        "never": Field(ListOf(Text(), "steps and arcs"), "What must not have happened."),
        "ctx": Field(_VALUES, "Values in ctx at the end."),
        "result": Field(Anything(), "The result of the execution."),
        "results": Field(_VALUES, "Results of steps."),
        "error": Field(_VALUES, "The error; its message need only contain the text."),
        "calls": Field(
            MapOf(Number(whole=True, least=0, templates=False)), "How often tasks were called."
        ),
        "elapsed": Field(Span(), "How long it took, to the second."),
    },
)
_SHARED = {
    "workload": Field(_VALUES, "Merged over the playbook's workload."),
    "stand_ins": Field(_STAND_INS, "By step or step.task: what answers instead of the tool."),
    "keychain": Field(_VALUES, "Values or fields of keychain entries."),
}
_TRIAL = Filled(
    "a test",
    {
        "name": Field(Text(), "What must hold, as a sentence.", required=True),
        **_SHARED,
        "signals": Field(ListOf(_SIGNAL, "signals"), "External events."),
        "expect": Field(_EXPECT, "What must hold in the end."),
    },
)
TRIAL_FILE = Filled(
    "a test file",
    {
        "playbook": Field(Text(), "The playbook's file, seen from this one.", required=True),
        **_SHARED,
        "tests": Field(ListOf(_TRIAL, "tests", filled=True), "The tests.", required=True),
    },
)


def schema() -> Schema:
    """The JSON Schema of a test file."""
    return {"$schema": DIALECT, "title": "NoETL playbook tests", **TRIAL_FILE.schema()}


# --- Reading it ----------------------------------------------------------------------------------


class Read(NamedTuple):
    """The result of reading a text; `root` is for checks that need the playbook as well."""

    file: TrialFile | None
    root: Mapping | None
    problems: tuple[Problem, ...]


def read_trials(text: str) -> Read:
    """Never raises for bad input: the problems say what is wrong."""
    report = Report()
    root = read(text, report)
    if root is None:
        return Read(None, None, tuple(map(_of_a_test_file, report.problems(None))))
    TRIAL_FILE.read(root, "a test file", Inspection(report, {}))
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
    """Report names that the playbook does not have; a misspelt step would go unnoticed.

    The first of the nets is the playbook that is tested.
    """
    report = Report()
    # A workbook entry that compensates a step runs under its own name.
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


# --- With its playbooks --------------------------------------------------------------------------


Compile = Callable[[str], Compiled]
Beside = Callable[[Path], Map[str, str]]
"""The playbooks in a folder: path in the catalog → text."""


class Wrong(NamedTuple):
    """Something that is wrong with a file."""

    file: str
    problem: Problem


class PlaybookTrials(NamedTuple):
    """A file of tests, and the playbooks that they test."""

    file: TrialFile
    playbooks: Playbooks


def load(
    name: str, text: str, compile_text: Compile, beside: Beside
) -> PlaybookTrials | list[Wrong]:
    """The tests, or everything that is wrong with their file or its playbook."""
    found = read_trials(text)
    if found.file is None:
        return [Wrong(name, problem) for problem in found.problems]
    place = Path(name).parent / found.file.playbook
    try:
        playbook = place.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        return [Wrong(name, _unreadable(found.file.playbook, error))]
    return _with_playbook(name, found, str(place), playbook, compile_text, beside(place.parent))


def load_for(playbook: str, text: str, compile_text: Compile) -> PlaybookTrials | list[Wrong]:
    """The same for the text of a playbook, whatever file the tests name."""
    return _with_playbook("tests", read_trials(text), "playbook", playbook, compile_text, {})


def _with_playbook(
    name: str, found: Read, place: str, playbook: str, compile_text: Compile, beside: Map[str, str]
) -> PlaybookTrials | list[Wrong]:
    if found.file is None or found.root is None:
        return [Wrong(name, problem) for problem in found.problems]
    compiled = compile_beside(playbook, compile_text, beside)
    if compiled.net is None or compiled.unresolved:
        wrong = [one for one in compiled.problems if one.severity == "error"]
        wrong += [one for one in compiled.problems if one.code == "unknown-schema"]
        return [Wrong(place, one) for one in wrong]
    children = _children(compiled.net, compile_text, beside)
    if isinstance(children, list):
        return children
    source = Source(name=place, code_lines=dict(compiled.code_lines))
    playbooks = Playbooks(compiled.net, children, source)
    problems = check_names(found.root, playbooks.nets)
    if problems:
        return [Wrong(name, problem) for problem in problems]
    return PlaybookTrials(found.file, playbooks)


def _unreadable(playbook: str, error: Exception) -> Problem:
    message = f'`playbook` names "{playbook}", which cannot be read: {error}. Name its file.'
    return Problem(code="unreadable-file", severity="error", message=message, line=1, column=1)


def _children(
    net: Net, compile_text: Compile, beside: Map[str, str]
) -> dict[str, Net] | list[Wrong]:
    """The playbooks that this one calls, directly or through others, if they are beside it."""
    found: dict[str, Net] = {}
    wanted, done = called_playbooks(net), {net.path}
    while wanted := wanted - done:
        path = wanted.pop()
        done.add(path)
        if path not in beside:
            continue  # a stand-in may answer for it; otherwise the step that calls it fails
        compiled = compile_text(beside[path])
        if compiled.net is None:
            return [Wrong(path, one) for one in compiled.problems if one.severity == "error"]
        found[beside[path]] = compiled.net
        wanted |= called_playbooks(compiled.net)
    return found
