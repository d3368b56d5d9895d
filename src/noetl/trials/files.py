"""Test files: their form, their content, and the playbooks that they test.

`read_trials` reads and checks a text, `check_names` compares its names with those of the playbook,
and `load` does both. `schema` is the JSON Schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Map
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from noetl.dsl import Compiled, compile_beside
from noetl.dsl.grammar import (
    COUNT,
    SPAN,
    WHOLE,
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
    Text,
    Values,
    When,
    is_list,
    is_mapping,
    is_text,
    one_of,
)
from noetl.dsl.nodes import Mapping, Node, entries, is_null, items, plain, text_of
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

# --- How it may be written -----------------------------------------------------------------------


ARROW = "->"
Seconds = float | str
VALUES = Values()


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


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in a test file. A field says how it may be written, and what it is for."""

    @classmethod
    def shape(cls, title: str) -> Filled:
        """The mapping that is read as this class."""
        fields = msgspec.structs.fields(cls)
        return Filled(
            title,
            {
                one.name: msgspec.structs.replace(one.type.__metadata__[0], required=one.required)
                for one in fields
            },
        )


# --- What a test file says -----------------------------------------------------------------------


class StandInError(Part, frozen=True, kw_only=True):
    """A failure as a tool would report it."""

    kind: Annotated[ErrorKind, Field(one_of(ErrorKind), "What kind of error. Default unknown.")] = (
        "unknown"
    )
    message: Annotated[str, Field(Text(), "What it says.")] = "the stand-in fails"
    code: Annotated[
        str | int | None,
        Field(
            Either("a text or a whole number", (is_text, Text()), (lambda _: True, WHOLE)),
            "The code of the error.",
        ),
    ] = None
    retryable: Annotated[bool, Field(Flag(), "Whether another try may help. Default false.")] = (
        False
    )
    retry_after: Annotated[
        float | None, Field(Number(least=0, templates=False), "Seconds to wait.")
    ] = None
    status: Annotated[int | None, Field(WHOLE, "The HTTP status.")] = None
    details: Annotated[Any, Field(Anything(), "Other details of the error.")] = None


class Answer(Part, frozen=True, kw_only=True):
    """What a stand-in answers to a call; texts may be templates over the call."""

    when: Annotated[
        str | bool | float | None, Field(When(), "Only for calls for which this holds.")
    ] = None
    times: Annotated[
        int | Literal["always"] | None,
        Field(
            Either(
                "a whole number, or always", (is_text, OneOf("always")), (lambda _: True, COUNT)
            ),
            "How often it can be given. Default: once in a list, always by itself.",
        ),
    ] = None
    takes: Annotated[Seconds, Field(SPAN, "How long the call takes.")] = 0.0
    result: Annotated[Any, Field(Anything(), "What the call yields.")] = None
    error: Annotated[
        StandInError | None,
        Field(StandInError.shape("the error of a stand-in"), "How the call fails."),
    ] = None
    usage: Annotated[Any, Field(Anything(), "`outcome.meta.usage`, e.g. tokens.")] = None
    http: Annotated[dict[str, Any] | None, Field(VALUES, "`outcome.http`: status, headers.")] = None
    pg: Annotated[dict[str, Any] | None, Field(VALUES, "`outcome.pg`: code, sqlstate.")] = None
    py: Annotated[dict[str, Any] | None, Field(VALUES, "`outcome.py`: exception_type.")] = None
    sh: Annotated[dict[str, Any] | None, Field(VALUES, "`outcome.sh`: exit_code.")] = None


StandIn = Answer | tuple[Answer, ...]
ANSWER = Answer.shape("a stand-in")


class Signal(Part, frozen=True, kw_only=True):
    """An event from outside."""

    name: Annotated[str, Field(Text(), "Of the event, e.g. approval.received.")]
    data: Annotated[Any, Field(Anything(), "What it says.")] = None
    step: Annotated[
        str | None, Field(Text(), "The step that it is for. Default: whichever waits for it.")
    ] = None
    after: Annotated[Seconds, Field(SPAN, "How long after the start. Default: at once.")] = 0.0


class Expect(Part, frozen=True, kw_only=True):
    """What must hold at the end. Keys that are left out are not compared, except the status."""

    status: Annotated[
        Status | None,
        Field(
            one_of(Status),
            "How it ends. Default COMPLETED, or FAILED with `error`; RUNNING: it waits for ever.",
        ),
    ] = None
    steps: Annotated[
        list[str | list[str]] | None,
        Field(
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
    ] = None
    arcs: Annotated[
        list[str] | None, Field(ListOf(ArcText(), "arcs"), "Arcs that must have been taken.")
    ] = None
    never: Annotated[
        list[str] | None, Field(ListOf(Text(), "steps and arcs"), "What must not have happened.")
    ] = None
    ctx: Annotated[dict[str, Any] | None, Field(VALUES, "Values in ctx at the end.")] = None
    result: Annotated[Any, Field(Anything(), "The result of the execution.")] = msgspec.UNSET
    results: Annotated[dict[str, Any] | None, Field(VALUES, "Results of steps.")] = None
    error: Annotated[
        dict[str, Any] | None, Field(VALUES, "The error; its message need only contain the text.")
    ] = None
    calls: Annotated[
        dict[str, int] | None,
        Field(MapOf(Number(whole=True, least=0, templates=False)), "How often tasks were called."),
    ] = None
    elapsed: Annotated[Seconds | None, Field(SPAN, "How long it took, to the second.")] = None


Workload = Annotated[dict[str, Any] | None, Field(VALUES, "Merged over the playbook's workload.")]
StandInsByTask = Annotated[
    dict[str, StandIn] | None,
    Field(
        MapOf(
            Either(
                "an answer, or a list of answers: one for each call",
                (is_list, ListOf(ANSWER, "answers", filled=True)),
                (is_mapping, ANSWER),
            )
        ),
        "By step or step.task: what answers instead of the tool.",
    ),
]
Keychain = Annotated[dict[str, Any] | None, Field(VALUES, "Values or fields of keychain entries.")]


class Trial(Part, frozen=True, kw_only=True):
    """One test."""

    name: Annotated[str, Field(Text(), "What must hold, as a sentence.")]
    workload: Workload = None
    stand_ins: StandInsByTask = None
    keychain: Keychain = None
    signals: Annotated[
        list[Signal] | None, Field(ListOf(Signal.shape("a signal"), "signals"), "External events.")
    ] = None
    expect: Annotated[
        Expect | None, Field(Expect.shape("`expect`"), "What must hold in the end.")
    ] = None


class TrialFile(Part, frozen=True, kw_only=True):
    """A file of tests of one playbook. Keys beside `tests` apply to all of them."""

    playbook: Annotated[str, Field(Text(), "The playbook's file, seen from this one.")]
    workload: Workload = None
    stand_ins: StandInsByTask = None
    keychain: Keychain = None
    tests: Annotated[
        list[Trial], Field(ListOf(Trial.shape("a test"), "tests", filled=True), "The tests.")
    ]

    def whole(self, trial: Trial) -> Trial:
        """The test with what all tests share; its own keys win."""
        return msgspec.structs.replace(
            trial,
            workload={**(self.workload or {}), **(trial.workload or {})},
            stand_ins={**(self.stand_ins or {}), **(trial.stand_ins or {})},
            keychain={**(self.keychain or {}), **(trial.keychain or {})},
        )


TRIAL_FILE = TrialFile.shape("a test file")


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
    secrets = {entry.name for net in nets for entry in net.keychain}
    for name, place in _steps(root):
        if name not in steps:
            hint = report.suggest(name, steps) or f" It has: {', '.join(sorted(steps))}."
            report.add("unknown-step", f'the playbook has no step "{name}".{hint}', place)
    for name, place in _keys_of(root, "keychain"):
        if name not in secrets:
            hint = report.suggest(name, secrets)
            report.add("bad-value", f'the keychain has no entry "{name}".{hint}', place)
    calls = [key for expect in _expects(root) for key in _keys(expect.get("calls"))]
    for name, place in [*_keys_of(root, "stand_ins"), *calls]:
        try:
            target(name, nets)
        except NotFound as error:
            report.add("unknown-task", str(error), place)
    return report.problems(root)


def _tests(root: Mapping) -> Iterator[Mapping]:
    return (node for node in items(root.get("tests")) if isinstance(node, Mapping))


def _expects(root: Mapping) -> Iterator[Mapping]:
    found = (test.get("expect") for test in _tests(root))
    return (node for node in found if isinstance(node, Mapping))


def _keys(node: Node | None) -> list[tuple[str, Place]]:
    return list(node.keys.items()) if isinstance(node, Mapping) else []


def _keys_of(root: Mapping, name: str) -> Iterator[tuple[str, Place]]:
    for part in (root, *_tests(root)):
        yield from _keys(part.get(name))


def _answers(root: Mapping) -> Iterator[Node]:
    for part in (root, *_tests(root)):
        for node in entries(part.get("stand_ins")).values():
            yield from items(node) or [node]


def _steps(root: Mapping) -> Iterator[tuple[str, Place]]:
    """Every place where a step is named."""
    for test in _tests(root):
        for signal in items(test.get("signals")):
            yield from _words(entries(signal).get("step"))
    for expect in _expects(root):
        for node in items(expect.get("steps")):
            for one in items(node) or [node]:
                yield from _words(one)
        for arc in [*items(expect.get("arcs")), *items(expect.get("never"))]:
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
