"""How tasks may be written: tool calls, pipelines and sugar."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args, get_origin

import msgspec

from noetl.dsl import nodes
from noetl.dsl.accepted import advice, field_types
from noetl.dsl.grammar import (
    Defined,
    Either,
    Field,
    Inspection,
    ListOf,
    Name,
    Number,
    Record,
    Schema,
    Shape,
    Text,
    When,
    define,
    has_key,
    has_template,
    is_list,
    is_mapping,
    older_keys,
)
from noetl.dsl.nodes import Mapping, Node, Scalar
from noetl.dsl.policy_shapes import KNOBS, POLL, TASKS, VALUES, RuleList
from noetl.dsl.schemas import A_SCHEMA
from noetl.model.net import WORKBOOK
from noetl.model.problems import Place
from noetl.model.toolshape import ToolShape

SUGAR = ("choose", "while", "until")


class _SelectList(ListOf):
    """A mapping here is an older form without effect."""

    def schema(self) -> Schema:
        ignored = {"type": "object", "deprecated": True, "description": "It has no effect."}
        return {"anyOf": [super().schema(), ignored]}


class _Selected(Record):
    """A field to keep inline; a path alone is an older form."""

    def schema(self) -> Schema:
        path: Schema = {"type": "string", "deprecated": True, "description": "Write `{path: …}`."}
        return {"anyOf": [super().schema(), path]}


_SELECT = _SelectList(
    _Selected(
        "a selected field",
        {
            "path": Field(Text(), "Path inside the result.", required=True),
            "as": Field(Name(), "Name under which it stays readable."),
        },
    ),
    "{path, as}",
)
_INPUTS = "The task's inputs."
ASSERT = Record(
    "an `assert`",
    {
        "expects": Field(ListOf(Text(), "names"), "Inputs that must be there."),
        "returns": Field(ListOf(Text(), "names"), "Keys that the result must have."),
    },
)
TASK_FIELDS = {
    "name": Field(Text(), "The task's name, for jumps and templates."),
    "kind": Field(Text(), "The tool to run.", required=True),
    "desc": Field(Text(), "What it is for."),
    "description": Field(Text(), same_as="desc"),
    "args": Field(VALUES, _INPUTS),
    "input": Field(VALUES, same_as="args"),
    "with": Field(VALUES, same_as="args"),
    "spec": Field(Defined("task_spec"), "Runtime knobs and policy."),
    "retry": Field(Defined("retry"), "Repeat the call."),
    "poll": Field(POLL, "Call until a condition holds."),
    "set": Field(VALUES, "Write `ctx.x` and `iter.y` after success."),
    "assert": Field(ASSERT, "What must be there before and after the call."),
    "output": Field(
        Record(
            "an `output`",
            {
                "schema": Field(A_SCHEMA, "What the result must look like."),
                "select": Field(_SELECT, "Fields that stay inline."),
                "inline_max_bytes": Field(
                    Number(whole=True, least=0, templates=False),
                    "Larger results are kept by reference; can only lower the limit.",
                ),
            }
            | older_keys(
                output_select="Write `select`.",
                store="It has no effect; leave it out.",
                preview_max_bytes="It has no effect; leave it out.",
                scope="It has no effect; leave it out.",
            ),
        ),
        "What the result must look like, and what to keep of a large one.",
    ),
    "output_select": Field(_SELECT, "Fields of a large result that stay inline."),
} | older_keys(
    timeout="Write `spec: {timeout: …}`.",
    timeout_seconds="Write `spec: {timeout: …}`.",
    set_ctx="Write `set: {ctx.x: …}`.",
    set_iter="Write `set: {iter.x: …}`.",
)
_REMOVED = {
    "eval": "write `spec.policy.rules` with `when` and `then`.",
    "expr": "write the condition as `when`.",
    "pipe": "`tool` is the pipeline: list the tasks there.",
    "type": "write `kind`.",
    "when": "use `spec.policy.rules`, or `choose` in the pipeline.",
}


_SHELL = " Commands run with `kind: shell`."
_ELSEWHERE = {
    **dict.fromkeys(("bash", "sh", "command", "cmd", "exec", "run"), _SHELL),
    "script": " Code runs with `kind: python`, commands with `kind: shell`.",
    "event_log": " As a sink it is a `noop` whose args are recorded.",
    **dict.fromkeys(("rest", "api", "request"), " Web services are asked with `kind: http`."),
    **dict.fromkeys(("sleep", "wait"), " A wait is `spec: {delay: …}` of an arc."),
    **dict.fromkeys(("subflow", "workflow"), " Playbooks are called with `kind: playbook`."),
    **dict.fromkeys(("gcs", "s3", "object_store"), " Objects are kept with `kind: store`."),
    **dict.fromkeys(("pg", "postgresql"), ' Did you mean "postgres"?'),
}
"""Kinds that other tools have, and what does the same here."""


class TaskShape(Record):
    """One tool call: the keys every task has, and those of its kind."""

    def __init__(self) -> None:
        super().__init__("a task", TASK_FIELDS, removed=_REMOVED)

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, Mapping):
            look.wrong_type(node, what, "a mapping with `kind`")
            return
        kind = nodes.text_of(node.get("kind"))
        tool = look.tools.get(kind) if kind is not None else None
        if kind is not None and tool is None:
            look.report.add(
                "unknown-tool",
                f'there is no tool kind "{kind[:60]}".'
                + (_ELSEWHERE.get(kind.lower(), "") or look.report.suggest(kind, look.tools))
                + " Kinds that are not built in come from plug-ins.",
                node.entries["kind"].place,
            )
        for key, value in node.entries.items():
            if tool is not None and tool.takes(key):
                _check_config(key, value, tool, look)
            elif key in self.fields and not self.fields[key].older:
                self.fields[key].shape.check(value, f"`{key}` of a task", look)
            elif tool is not None or key in self.removed:
                self.unknown(key, node, look, self._hint(key, tool, look) if tool else "")
        self.check_keys(node, look)
        if tool is not None:
            _check_spellings(node, tool, look)
            _check_needs(node, tool, look)

    def _hint(self, key: str, tool: ToolShape, look: Inspection) -> str:
        today = [name for name, field in self.fields.items() if not field.older]
        known = [*tool.config.__struct_fields__, *tool.aliases, *today]
        if key in KNOBS:
            return f" It belongs in `spec`: `spec: {{{key}: …}}`."
        return (
            look.report.suggest(key, known)
            or f" kind {tool.kind} has: {', '.join(tool.config.__struct_fields__)}."
        )

    def schema(self) -> Schema:
        """Only what all kinds share; `schema.py` adds each kind's own keys."""
        found = super().schema()
        del found["additionalProperties"]
        return found


def _check_config(key: str, node: Node, tool: ToolShape, look: Inspection) -> None:
    _check_value(key, node, field_types(tool.config)[tool.aliases.get(key, key)], tool, look)


def _check_value(key: str, node: Node, wanted: Any, tool: ToolShape, look: Inspection) -> None:
    """Check a value as far as it is written out.

    A template stands for a value we cannot know, so where one is refused we take it away and
    look at the rest; what we took away is not missed.
    """
    if isinstance(node, Scalar) and _is_template(node):
        return
    bare = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if get_origin(bare) is dict and isinstance(node, Mapping):
        # Each by itself: msgspec does not say under which free key something is wrong.
        for part in node.entries.values():
            _check_value(key, part, get_args(bare)[1], tool, look)
        return
    value = nodes.plain(node)
    taken: list[list[str | int]] = []
    for _ in range(TEMPLATES_TAKEN_AWAY_MAX):
        try:
            msgspec.convert(value, wanted, strict=True)
        except msgspec.ValidationError as error:
            found = _AT.search(str(error))
            path = found.group(1) if found else ""
            part = _part(node, path)
            if isinstance(part, Scalar) and _is_template(part):
                taken.append(_steps(path))
                value = _without(value, _steps(path))
                continue
            missing = _MISSING_FIELD.match(str(error))
            if missing is None or [*_steps(path), missing.group(1)] not in taken:
                _report_config(key, node, wanted, tool, str(error), look)
        return


TEMPLATES_TAKEN_AWAY_MAX = 20
_AT = re.compile(r" - at `(?:key in )?\$(.*)`$")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*?)`")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")


def _report_config(
    key: str, node: Node, wanted: Any, tool: ToolShape, error: str, look: Inspection
) -> None:
    """Say what msgspec found in our words, at the very value it is about."""
    found = _AT.search(error)
    reason = error[: found.start()] if found else error
    part = _part(node, found.group(1)) if found else node
    unknown = _UNKNOWN_FIELD.fullmatch(reason)
    place = _key_place(part, unknown.group(1)) if unknown else None
    if unknown and place is not None:
        name = unknown.group(1)
        look.report.add("unknown-key", f"`{key}` of kind {tool.kind} has no `{name}`.", place)
        return
    lacks = _MISSING_FIELD.match(reason)
    if lacks is not None:
        name = lacks.group(1)
        look.report.add("missing-key", f"`{key}` of kind {tool.kind} needs `{name}`.", part.place)
        return
    code = "wrong-type" if reason.startswith("Expected `") else "bad-value"
    told = f"`{key}` of kind {tool.kind}: {_in_our_words(reason)}."
    more = advice(wanted, _steps(found.group(1)) if found else [])
    look.report.add(code, f"{told} {more}".rstrip(), part.place)


def _key_place(node: Node, key: str) -> Place | None:
    """Where that key stands; below free keys msgspec does not say in which mapping."""
    if isinstance(node, Mapping):
        if key in node.keys:
            return node.keys[key]
        parts = list(node.entries.values())
    else:
        parts = node.items if isinstance(node, nodes.Sequence) else []
    return next((place for part in parts if (place := _key_place(part, key))), None)


def _steps(path: str) -> list[str | int]:
    """msgspec's path as keys and indexes."""
    found = re.findall(r"\.([^.\[]+)|\[(\d+)\]", path)
    return [name or int(index) for name, index in found]


def _part(node: Node, path: str) -> Node:
    """Follow msgspec's path as far as it can be followed."""
    for step in _steps(path):
        if isinstance(node, Mapping) and step in node.entries:
            node = node.entries[str(step)]
        elif isinstance(node, nodes.Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
    return node


def _without(value: Any, path: list[str | int]) -> Any:
    """The value less what lies at the path; a list keeps its other items."""
    head, *rest = path
    if isinstance(value, dict):
        if not rest:
            return {key: part for key, part in value.items() if key != head}
        return {key: _without(part, rest) if key == head else part for key, part in value.items()}
    if not rest:
        return [part for index, part in enumerate(value) if index != head]
    return [_without(part, rest) if index == head else part for index, part in enumerate(value)]


def _is_template(node: Scalar) -> bool:
    return isinstance(node.value, str) and has_template(node.value)


def _in_our_words(message: str) -> str:
    if " matching regex " in message:
        return "it is not written as it must be"
    return (
        message.replace("Expected `", "it must be `")
        .replace("Invalid enum value", "it cannot be")
        .replace("Invalid value", "it cannot be")
        .replace(", got `", ", not `")
        .replace("`str`", "a text")
        .replace("`object`", "a mapping")
        .replace("`array`", "a list")
        .replace("`int`", "a whole number")
        .replace("`float`", "a number")
        .replace("`bool`", "true or false")
        .replace("`null`", "empty")
    )


def _holds_template(node: Node) -> bool:
    match node:
        case Scalar(value=str() as text):
            return has_template(text)
        case nodes.Sequence(items=items):
            return any(_holds_template(item) for item in items)
        case Mapping(entries=entries):
            return any(_holds_template(value) for value in entries.values())
    return False


def _check_spellings(node: Mapping, tool: ToolShape, look: Inspection) -> None:
    written: dict[str, str] = {}
    for key in node.entries:
        main = tool.aliases.get(key, key)
        if main in written:
            look.report.add(
                "conflicting-keys",
                f"`{key}` and `{written[main]}` of kind {tool.kind} are the same thing."
                " Keep one of them.",
                node.keys[key],
            )
        written[main] = key


def _check_needs(node: Mapping, tool: ToolShape, look: Inspection) -> None:
    if tool.kind == WORKBOOK:
        return  # the entry may also be named by the task's own name; checks.py looks
    written = {tool.aliases.get(key, key) for key in node.entries}
    for group in tool.needs:
        if not written.intersection(group):
            look.report.add(
                "missing-key",
                f"kind {tool.kind} needs {' or '.join(f'`{name}`' for name in group)}.",
                node.place,
            )


TASK: TaskShape = TaskShape()


def _sugar(title: str) -> Field:
    return Field(
        Record(
            title,
            {
                "when": Field(When(), "The condition.", required=True),
                "max": Field(Number(whole=True, least=1, templates=False), "Most rounds."),
                "do": Field(TASKS, "The tasks.", required=True),
            },
        )
    )


class ChooseRule(Record):
    """A branch of `choose`: `{when, do}`, or the closing `{else: [tasks]}`."""

    def __init__(self) -> None:
        super().__init__(
            "a branch of `choose`",
            {
                "when": Field(When(), "The condition."),
                "do": Field(TASKS, "The tasks."),
                "else": Field(TASKS, "The tasks when no branch held."),
            },
        )

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        if isinstance(node, Mapping):
            keys = set(node.entries) & {"when", "do", "else"}
            if keys not in ({"when", "do"}, {"else"}):
                look.report.add(
                    "bad-rule", "a branch has `when` and `do`, or only `else`.", node.place
                )


_SUGAR_NAME = Field(Name(), "Start of the generated labels.")
SUGAR_ENTRY = {
    "choose": Record("a `choose`", {"choose": Field(RuleList(ChooseRule())), "name": _SUGAR_NAME}),
    "while": Record("a `while`", {"while": _sugar("a `while`"), "name": _SUGAR_NAME}),
    "until": Record("an `until`", {"until": _sugar("an `until`"), "name": _SUGAR_NAME}),
}


def is_labelled(node: Node) -> bool:
    """`label: {kind: …}`, the other way to name a task."""
    return (
        isinstance(node, Mapping)
        and len(node.entries) == 1
        and "kind" not in node.entries
        and has_key("kind")(next(iter(node.entries.values())))
    )


class LabelledTask(Shape):
    """`label: {kind: …}`."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        assert isinstance(node, Mapping)
        [(_, task)] = node.entries.items()
        TASK.check(task, what, look)

    def schema(self) -> Schema:
        return {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": Defined("task").schema(),
            "propertyNames": {"not": {"enum": [*SUGAR, "kind", "name"]}},
        }


def is_sugar(node: Node) -> str | None:
    """Which sugar this pipeline entry is, if it is one."""
    if isinstance(node, Mapping) and not is_labelled(node) and "kind" not in node.entries:
        return next((word for word in SUGAR if word in node.entries), None)
    return None


def _fits_sugar(word: str) -> Any:
    return lambda node: is_sugar(node) == word


ENTRY = Either(
    "a task",
    *((_fits_sugar(word), shape) for word, shape in SUGAR_ENTRY.items()),
    (is_labelled, LabelledTask()),
    (lambda _: True, Defined("task")),
)
PIPELINE: Shape = Either(
    "a task such as {kind: noop}, or a list of tasks",
    (is_list, ListOf(ENTRY, "tasks", filled=True)),
    (is_labelled, LabelledTask()),
    (is_mapping, Defined("task")),
)

define("task", TASK)
define("tasks", PIPELINE)
