"""How a test file may be written: the check with places and remedies, and the JSON Schema."""

from __future__ import annotations

from typing import get_args

from noetl.dsl.grammar import (
    Anything,
    Duration,
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
    When,
    has_template,
    is_list,
    is_mapping,
    is_text,
)
from noetl.dsl.nodes import Mapping, Node, is_null, text_of
from noetl.dsl.schema import DIALECT
from noetl.model.duration import DURATION_PATTERN
from noetl.model.outcome import ErrorKind
from noetl.model.state import Status

ARROW = "->"
_VALUES = MapOf(Anything())


class Length(Duration):
    """A duration that is written out: nothing could fill in a template here."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if has_template(text_of(node) or ""):
            look.wrong_type(node, what, "seconds or a text such as 30s, 5m, 1h30m")
        else:
            super().check(node, what, look)

    def schema(self) -> Schema:
        written = {"type": "string", "pattern": DURATION_PATTERN}
        return {"anyOf": [{"type": "number", "minimum": 0}, written]}


class ArcText(Shape):
    """An arc, by the steps that it joins: `fetch -> end`."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        steps = [name.strip() for name in (text_of(node) or "").split(ARROW)]
        if len(steps) != 2 or not all(steps):
            look.wrong_type(node, what, "an arc such as `fetch -> end`")

    def schema(self) -> Schema:
        return {"type": "string", "pattern": ARROW}


class Filled(Record):
    """A record whose keys all say something, but for those of free data."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        for key, value in node.entries.items() if isinstance(node, Mapping) else ():
            field = self.fields.get(key)
            if field is not None and is_null(value) and not isinstance(field.shape, Anything):
                look.wrong_type(value, f"`{key}` of {self.title}", "a value, or left out")


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
            "The code of whoever reports it.",
        ),
        "retryable": Field(Flag(), "Whether another try may help. Default false."),
        "retry_after": Field(Number(least=0, templates=False), "Seconds to wait."),
        "status": Field(Number(whole=True, templates=False), "The HTTP status."),
        "details": Field(Anything(), "Whatever else it says."),
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
        "takes": Field(Length(), "How long the call takes."),
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
        "after": Field(Length(), "How long after the start. Default: at once."),
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
        "elapsed": Field(Length(), "How long it took, to the second."),
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
        "signals": Field(ListOf(_SIGNAL, "signals"), "What the world says meanwhile."),
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
