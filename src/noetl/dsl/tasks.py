"""Tasks and pipelines: every way to write them, as an ordered tuple of named tasks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Where
from noetl.dsl.configs import check_config, check_keys
from noetl.dsl.grammar import (
    NAME,
    Also,
    Defined,
    Either,
    Inspection,
    ListOf,
    Number,
    OrOlder,
    Placed,
    Record,
    Schema,
    Shape,
    Text,
    define,
    field,
    has_key,
    has_template,
    is_list,
    is_mapping,
)
from noetl.dsl.layers import VALUES, merge, noted_knobs, within
from noetl.dsl.nodes import Mapping, Node, Scalar
from noetl.dsl.policies import (
    WrittenPoll,
    WrittenRetries,
    WrittenSink,
    WrittenTaskSpec,
    retry_rules,
    task_rules,
)
from noetl.dsl.schemas import A_SCHEMA, result_schema
from noetl.dsl.sugar import SUGAR, WrittenChoose, WrittenSugar, WrittenUntil, WrittenWhile, expand
from noetl.model.net import NOOP, PLAYBOOK, WORKBOOK, Amount, Poll, Rule, Select, Task, Values
from noetl.model.problems import Place
from noetl.model.toolshape import CodeProblem, ToolShape

if TYPE_CHECKING:
    from noetl.dsl.rules import WrittenNamedTask

_TO_JSON = re.compile(r"^\s*\{\{[^{}]*\|\s*tojson\s*\}\}\s*$")
"""A text that ends in `| tojson`: a json column takes it as JSON."""

# --- How they are written ------------------------------------------------------------------------


class _Selected(Placed, title="a selected field"):
    path: str | None = field(Text(), "Path inside the result.", required=True)
    as_: str | None = field(NAME, "Name under which it stays readable.")


_SELECT = OrOlder(
    ListOf(OrOlder(_Selected.shape, {"type": "string"}, "Write `{path: …}`."), "{path, as}"),
    {"type": "object"},
    "It has no effect.",
)


class WrittenAssert(Placed, title="an `assert`"):
    """What must be there before and after a call."""

    expects: tuple[str, ...] = field(ListOf(Text(), "names"), "Inputs that must be there.")
    returns: tuple[str, ...] = field(ListOf(Text(), "names"), "Keys that the result must have.")

    def promises(self) -> Values:
        """The knob `assert` of the task concerned; empty if nothing is asserted."""
        found = {"expects": self.expects, "returns": self.returns}
        written = {
            name: filled
            for name, names in found.items()
            if (filled := [one for one in names if one])
        }
        return {"assert": written} if written else {}


class _Output(
    Placed,
    title="an `output`",
    older={
        "output_select": "Write `select`.",
        "store": "It has no effect; leave it out.",
        "preview_max_bytes": "It has no effect; leave it out.",
        "scope": "It has no effect; leave it out.",
    },
):
    schema: Node | None = field(A_SCHEMA, "What the result must look like.")
    select: tuple[_Selected, ...] = field(_SELECT, "Fields that stay inline.")
    inline_max_bytes: int | None = field(
        Number(whole=True, least=0, templates=False),
        "Larger results are kept by reference; can only lower the limit.",
    )


_SHELL = " Commands run with `kind: shell`."
_ELSEWHERE = {
    **dict.fromkeys(("bash", "sh", "command", "cmd", "exec", "run"), _SHELL),
    "script": " Code runs with `kind: python`, commands with `kind: shell`.",
    "event_log": " As a sink it is a `noop` whose args are recorded.",
    **dict.fromkeys(
        ("rest", "api", "request", "requests", "webhook"),
        " Web services are asked with `kind: http`.",
    ),
    "sensor": " A task with `poll` asks until what it waits for is there.",
    **dict.fromkeys(("log", "print", "echo"), " Texts are printed by `kind: python` or `shell`."),
    **dict.fromkeys(
        ("branch", "switch", "if", "condition"),
        " Ways out are arcs: `next: {arcs: [{step, when}]}`.",
    ),
    **dict.fromkeys(
        ("approval", "human", "signal"), " A step with `spec: {form: […]}` waits for a person."
    ),
    **dict.fromkeys(("sleep", "wait"), " A wait is `spec: {delay: …}` of an arc."),
    **dict.fromkeys(
        ("subflow", "subworkflow", "workflow"), " Playbooks are called with `kind: playbook`."
    ),
    **dict.fromkeys(("gcs", "s3", "object_store"), " Objects are kept with `kind: store`."),
    **dict.fromkeys(("docker", "kubernetes", "pod"), " Images run with `kind: container`."),
    **dict.fromkeys(("pg", "postgresql"), ' Did you mean "postgres"?'),
}
"""Kinds that other tools have, and what does the same here."""
_FIELDS_ELSEWHERE = {
    "sql": "command",
    "query": "params",
    "cmd": "command",
    "environment": "env",
    **dict.fromkeys(("working_dir", "workdir", "working_directory"), "cwd"),
    "volumes": "mounts",
    **dict.fromkeys(("data", "content", "message"), "value"),
    "server": "url",
    "from": "source",
    "to": "target",
    **dict.fromkeys(("workload", "inputs"), "payload"),
    **dict.fromkeys(("host", "port", "database", "dbname", "dsn", "connection"), "auth"),
    **dict.fromkeys(("user", "username", "password", "basic_auth"), "auth"),
}
"""Fields that other tools have, and ours for the same; for the kinds that take it."""


class TaskShape(Record):
    """One tool call: the keys every task has, and those of its kind."""

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        if not isinstance(node, Mapping):
            look.wrong_type(node, what, "a mapping with `kind`")
            return None
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
        given: dict[str, Any] = {"config": {}}
        for name, value in node.entries.items():
            is_own = tool is not None and tool.takes(name)
            if tool is not None and is_own:
                check_config(name, value, tool, look)
                if name != "name":
                    given["config"][name] = value
            if name in self.fields and not self.fields[name].older:
                # A key of both is read for the task, too, but the kind decides how it is written.
                seen = look.silent() if is_own else look
                read = self.fields[name].shape.read(value, f"`{name}` of a task", seen)
                if read is not None:
                    given[self.attributes[name]] = read
            elif not is_own and (tool is not None or name in self.removed):
                self.unknown(name, node, look, self._hint(name, tool, look) if tool else "")
        self.check_keys(node, look)
        if tool is not None:
            foreign = {_FIELDS_ELSEWHERE.get(name) for name in node.entries if not tool.takes(name)}
            check_keys(node, tool, foreign, look)
        return self.made(node, given)

    def _hint(self, key: str, tool: ToolShape, look: Inspection) -> str:
        today = [name for name, field in self.fields.items() if not field.older]
        known = [*tool.config.__struct_fields__, *tool.aliases, *today]
        ours = _FIELDS_ELSEWHERE.get(key, "")
        if ours and tool.takes(ours):
            if ours == "auth":
                return " It belongs under `auth`, or into the credential that `auth` names."
            return f" kind {tool.kind} calls it `{ours}`."
        return (
            self.belongs(key)
            or look.report.suggest(key, known)
            or f" kind {tool.kind} has: {', '.join(tool.config.__struct_fields__)}."
        )

    def schema(self) -> Schema:
        """Only what all kinds share; `schema.py` adds each kind's own keys."""
        found = super().schema()
        del found["additionalProperties"]
        return found


class WrittenTask(
    Placed,
    title="a task",
    record=TaskShape,
    first=("name", "kind"),
    last=("args", "input", "with", "spec"),
    older={
        "timeout": "Write `spec: {timeout: …}`.",
        "timeout_seconds": "Write `spec: {timeout: …}`.",
        "set_ctx": "Write `set: {ctx.x: …}`.",
        "set_iter": "Write `set: {iter.x: …}`.",
    },
    removed={
        "eval": "write `spec.policy.rules` with `when` and `then`.",
        "expr": "write the condition as `when`.",
        "pipe": "`tool` is the pipeline: list the tasks there.",
        "type": "write `kind`.",
        "when": "use `spec.policy.rules`, or `choose` in the pipeline.",
        **dict.fromkeys(
            ("retries", "retry_policy", "retryPolicy"), "write `retry: {max_attempts: N}`."
        ),
    },
):
    """One tool call: a mapping with `kind`."""

    name: str | None = field(Text(), "The task's name, for jumps and templates.")
    kind: str | None = field(Text(), "The tool to run.", required=True)
    desc: str | None = field(Text(), "What it is for.")
    description = Also(desc)
    args: Node | None = field(VALUES, "The task's inputs.")
    input = Also(args)
    with_ = Also(args)
    spec: WrittenTaskSpec = field(Defined("task_spec"), "Runtime knobs and policy.")
    retry: WrittenRetries = field(Defined("retry"), "Repeat the call.")
    poll: WrittenPoll = field(WrittenPoll, "Call until a condition holds.")
    set: Node | None = field(VALUES, "Write `ctx.x` and `iter.y` after success.")
    assert_: WrittenAssert = field(WrittenAssert, "What must be there before and after the call.")
    output: _Output = field(
        _Output, "What the result must look like, and what to keep of a large one."
    )
    output_select: tuple[_Selected, ...] = field(
        _SELECT, "Fields of a large result that stay inline."
    )

    config: dict[str, Node]
    """The keys of its kind, as written."""

    def under(self, outer: WrittenNamedTask, look: Inspection) -> WrittenTask:
        """The task with the keys around it, which win, even if they are empty."""
        joined, main = Mapping(self.place), self.shape.attributes
        around = {main.get(name, name) for name in outer.node.entries}
        for name, value in self.node.entries.items():
            if main.get(name, name) not in around:
                joined.put(name, self.node.keys[name], value)
        for name, value in outer.node.entries.items():
            if name != "tool" and not nodes.is_null(value):
                joined.put(name, outer.node.keys[name], value)
        found: WrittenTask = self.shape.read(joined, "a task", look.silent())
        return found


class WrittenLabel(msgspec.Struct, frozen=True):
    """`label: {kind: …}`, the other way to name a task."""

    name: str
    name_place: Place
    task: WrittenTask


WrittenEntry = WrittenTask | WrittenLabel | WrittenSugar
WrittenTasks = tuple[WrittenEntry, ...] | WrittenTask | WrittenLabel | None


def is_labelled(node: Node) -> bool:
    """`label: {kind: …}`, the other way to name a task."""
    return (
        isinstance(node, Mapping)
        and len(node.entries) == 1
        and "kind" not in node.entries
        and has_key("kind")(next(iter(node.entries.values())))
    )


class _LabelShape(Shape):
    def read(self, node: Node, what: str, look: Inspection) -> WrittenLabel:
        assert isinstance(node, Mapping)
        [(name, body)] = node.entries.items()
        task = WrittenTask.shape.read(body, what, look)
        return WrittenLabel(name, node.keys[name], task)

    def schema(self) -> Schema:
        return {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": Defined("task").schema(),
            "propertyNames": {"not": {"enum": [*SUGAR, "kind", "name"]}},
        }


def _is_sugar(word: str) -> Any:
    """A test for pipeline entries that are this sugar."""
    return lambda node: has_key(word)(node) and not is_labelled(node) and not has_key("kind")(node)


define("task", WrittenTask.shape)
PIPELINE = define(
    "tasks",
    Either(
        "a task such as {kind: noop}, or a list of tasks",
        (
            is_list,
            ListOf(
                Either(
                    "a task",
                    (_is_sugar("choose"), WrittenChoose.shape),
                    (_is_sugar("while"), WrittenWhile.shape),
                    (_is_sugar("until"), WrittenUntil.shape),
                    (is_labelled, _LabelShape()),
                    (lambda _: True, Defined("task")),
                ),
                "tasks",
                filled=True,
            ),
        ),
        (is_labelled, _LabelShape()),
        (is_mapping, Defined("task")),
    ),
)

# --- What they become ----------------------------------------------------------------------------


class Frame(msgspec.Struct, frozen=True):
    """What a task inherits from its surroundings."""

    spec: Values = {}
    retries: tuple[Rule, ...] = ()
    where: Where = Where.TASK
    prefix: str = ""
    """The prefix of generated names, which keeps those of hooks apart."""


def pipeline(building: Building, written: WrittenTasks, frame: Frame) -> tuple[Task, ...]:
    """The tasks of a step, a workbook entry, a hook or a branch."""
    if isinstance(written, WrittenTask):
        fallback = f"{frame.prefix}{building.home.label}_task"
        # `name` of a lone workbook call is the entry that it calls.
        calls_by_name = written.kind == WORKBOOK and nodes.field(written.node, "task") is None
        name = fallback if calls_by_name else written.name or fallback
        return (task(building, written, name, frame, written.place_of("name")),)
    return tuple(_entries(building, written, f"{frame.prefix}task", frame))


def _entries(building: Building, written: WrittenTasks, prefix: str, frame: Frame) -> list[Task]:
    """Tasks in a row: generated names carry the prefix, written ones stay as they are."""
    found: list[Task] = []
    for index, entry in enumerate(written if isinstance(written, tuple) else (written,)):
        if index == 1 and frame.where is Where.TASK:
            # A later task sees the outcome of the one before it.
            frame = msgspec.structs.replace(frame, where=Where.LATER)
        found += _entry(building, entry, f"{prefix}_{index}", frame)
    return found


def _entry(
    building: Building, written: WrittenEntry | None, label: str, frame: Frame
) -> list[Task]:
    match written:
        case None:
            return []
        case WrittenLabel():
            return [task(building, written.task, written.name, frame, written.name_place)]
        case WrittenTask():
            name = written.name or label
            return [task(building, written, name, frame, written.place_of("name"))]
    return expand(
        building, written, label, lambda body, prefix: _entries(building, body, prefix, frame)
    )


def task(
    building: Building,
    written: WrittenTask,
    name: str,
    frame: Frame,
    name_place: Place | None = None,
) -> Task:
    """One tool call as written in a mapping with `kind`."""
    kind = written.kind or ""
    spec = merge(frame.spec, noted_knobs(building, written.spec))
    policy = written.spec.policy
    before = msgspec.structs.replace(frame, retries=())
    after = msgspec.structs.replace(before, where=Where.HOOK)
    timeout = spec.pop("timeout", None)
    spec |= written.assert_.promises()
    if nodes.field(written.node, "table") is not None:
        spec |= _made_by_tojson(written.args, nodes.field(written.node, "rows"))
    inline_max = written.output.inline_max_bytes
    if inline_max is None:
        inline_max = building.inline_max
    if inline_max is not None:
        spec["inline_max_bytes"] = inline_max

    def hook(word: str, tasks: WrittenTasks, around: Frame) -> tuple[Task, ...]:
        """Tasks around the task; their generated names carry its name."""
        named = msgspec.structs.replace(around, prefix=f"{name}_{word}_")
        return pipeline(building, tasks, named)

    with building.inside(hands_over=kind in (PLAYBOOK, WORKBOOK)):
        config = _config(building, written, name, building.tools.get(kind), frame)
        inputs = building.values(written.args, frame.where)
    made = Task(
        name=name,
        kind=kind,
        config=config,
        inputs=inputs,
        rules=task_rules(building, policy),
        retries=retry_rules(building, written.retry) or frame.retries,
        poll=_poll(building, written.poll),
        before=hook("before", policy.before, before),
        after=hook("after", policy.after, after),
        finally_=hook("finally", policy.finally_, after),
        patch=building.patch(written.set, Where.AFTER),
        select=_select(written.output_select or written.output.select),
        schema=result_schema(building, written.output.schema),
        timeout=_bounded_timeout(building, timeout, written),
        max_jumps=_max_jumps(building, spec.pop("max_jumps", None), written),
        spec=spec,
    )
    building.mark(
        made,
        written.place,
        name=name_place,
        kind=written.place_of("kind"),
        task=_place(nodes.field(written.node, "task", "name")),
        args=written.place_of("args") or _place(nodes.field(written.node, "payload")),
        path=_place(nodes.field(written.node, "path")),
        return_step=_place(nodes.field(written.node, "return_step")),
    )
    return made


def _made_by_tojson(inputs: Node | None, rows: Node | None = None) -> Values:
    """Which values for a table are texts that a final `| tojson` makes, by column."""
    found: Values = {}
    if made := _json_texts(inputs):
        found["json_inputs"] = made
    if of_rows := {
        str(n): made for n, row in enumerate(nodes.items(rows)) if (made := _json_texts(row))
    }:
        found["json_rows"] = of_rows
    return found


def _json_texts(node: Node | None) -> list[str]:
    written = nodes.entries(node).items()
    return sorted(name for name, value in written if _TO_JSON.search(nodes.text_of(value) or ""))


def _place(node: Node | None) -> Place | None:
    return node.place if node is not None else None


def _config(
    building: Building, written: WrittenTask, name: str, tool: ToolShape | None, frame: Frame
) -> Values:
    """The tool's own fields in their main spelling."""
    if tool is None:
        return {}
    found: Values = {}
    for key, value in written.config.items():
        main = tool.aliases.get(key, key)
        if main in found and nodes.is_null(value):
            continue  # an empty key says nothing beside its other spelling
        found[main] = building.value(value, frame.where)
        if main in tool.code_fields:
            _warn_of_templates_in_code(building, key, value, tool)
            _check_code(building, value, tool, f"{building.home.label}.{name}")
    if tool.kind == WORKBOOK and "task" not in found:
        found["task"] = written.name or name
    return {key: found[key] for key in sorted(found)}


def _warn_of_templates_in_code(building: Building, key: str, value: Node, tool: ToolShape) -> None:
    for part in nodes.items(value) or [value]:
        code = nodes.text_of(part)
        if code is not None and _is_mixed(code) and has_template(code):
            building.report.add(
                "template-in-code",
                f"`{key}` of kind {tool.kind} has templates inside program text, where a value"
                f" can change the program. Pass values through `{tool.code_inputs}`.",
                part.place,
            )


def _check_code(building: Building, value: Node, tool: ToolShape, label: str) -> None:
    """Record where code begins, and report what a check without running it finds."""
    code = nodes.text_of(value)
    if tool.code_check is None or code is None:
        return
    assert isinstance(value, Scalar)
    building.code_lines[label] = value.place.line + value.block
    problem = tool.code_check(code) if not has_template(code) else None
    if problem is not None:
        building.report.add(
            "code-syntax",
            f"the {tool.kind} code cannot be run: {problem.message}.",
            _place_in_code(building, value, code, problem),
        )


def _place_in_code(building: Building, value: Scalar, code: str, problem: CodeProblem) -> Place:
    """The place in the document of a place in a block of code."""
    if not value.block:
        return value.place
    line = value.place.line + problem.line
    written, document = code.splitlines(), building.text.splitlines()
    column = problem.column
    if problem.line <= len(written) and line <= len(document):
        column += max(0, document[line - 1].find(written[problem.line - 1]))
    return Place(line, column)


def _is_mixed(code: str) -> bool:
    """A text that is just one template selects code; it does not paste values into code."""
    stripped = code.strip()
    return not (stripped.startswith("{{") and stripped.endswith("}}") and stripped.count("{{") == 1)


def _poll(building: Building, written: WrittenPoll) -> Poll | None:
    if not written:
        return None
    until = building.condition(written.until, Where.RETRY)
    interval = building.amount(written.interval, Where.TASK)
    return Poll(
        until=True if until is None else until,
        interval=5 if interval is None else interval,
        max_attempts=building.amount(written.max_attempts, Where.TASK),
        deadline=building.amount(written.deadline, Where.TASK),
    )


def _select(written: tuple[_Selected, ...]) -> tuple[Select, ...]:
    return tuple(
        Select(path=one.path, name=one.as_ or one.path.rpartition(".")[2])
        for one in written
        if one.path
    )


def _bounded_timeout(building: Building, asked: object, written: WrittenTask) -> object:
    limit = building.limits.timeout
    place = written.spec.place_of("timeout") or written.place
    if isinstance(asked, dict):
        return {
            key: within(building, value, limit, f"the {key} timeout", place)
            for key, value in asked.items()
        }
    return within(building, asked, limit, "the timeout", place, default=limit)


def _max_jumps(building: Building, asked: Amount | None, written: WrittenTask) -> Amount:
    place = written.spec.place_of("max_jumps") or written.place
    limit = building.limits.max_jumps
    found: Amount = within(building, asked, limit, "max_jumps", place, default=100_000)
    return found


def nothing(building: Building, name: str, place: Place) -> Task:
    """Stands for a task without a tool, which has been reported."""
    made = Task(name=name, kind=NOOP)
    building.mark(made, place)
    return made


def sink_task(building: Building, written: WrittenSink, name: str, spec: Values) -> Task:
    """`sink: {tool, args}`: a task whose inputs are the sink's args."""
    retries = retry_rules(building, written.retry)
    frame = Frame(spec=spec, where=Where.SINK, retries=retries)
    tool = written.tool
    if not tool:
        return nothing(building, name, written.place)
    made = task(building, tool, tool.name or name, frame)
    inputs = building.values(written.args, Where.SINK)
    spec = made.spec
    if nodes.field(tool.node, "table") is not None:
        spec = {**spec, **_made_by_tojson(written.args)}
    whole = msgspec.structs.replace(made, inputs=merge(made.inputs, inputs), spec=spec)
    building.mark(whole, tool.place, kind=tool.place_of("kind"))
    return whole
