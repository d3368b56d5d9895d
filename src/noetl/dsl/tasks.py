"""Pipelines: every way to write tasks, as an ordered tuple of named tasks."""

from __future__ import annotations

import re

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import (
    Building,
    Home,
    Where,
    deep,
    entries,
    field,
    items,
    text,
    whole,
)
from noetl.dsl.grammar import has_template
from noetl.dsl.layers import merge, noted_knobs, within
from noetl.dsl.nodes import Mapping, Node, Scalar
from noetl.dsl.policies import policy_of, retry_rules, task_rules
from noetl.dsl.schemas import result_schema
from noetl.dsl.sugar import expand
from noetl.dsl.task_shapes import is_labelled, is_sugar
from noetl.model.net import NOOP, WORKBOOK, Amount, Poll, Rule, Select, Task, Values
from noetl.model.problems import Place
from noetl.model.toolshape import CodeProblem, ToolShape

_TO_JSON = re.compile(r"^\s*\{\{[^{}]*\|\s*tojson\s*\}\}\s*$")
"""A text that a final `| tojson` makes: in a json column it is that JSON."""


class Frame(msgspec.Struct, frozen=True):
    """What a task inherits from where it stands."""

    home: Home
    spec: Values = {}
    retries: tuple[Rule, ...] = ()
    where: Where = Where.TASK
    prefix: str = ""
    """Of generated names, so that those of hooks are their own."""


def pipeline(building: Building, node: Node | None, frame: Frame) -> tuple[Task, ...]:
    """The tasks of a step, a workbook entry, a hook or a branch."""
    if isinstance(node, Mapping) and not is_labelled(node):
        single = f"{frame.prefix}{frame.home.name or frame.home.block}_task"
        return (_single(building, node, single, frame),)
    written = [node] if isinstance(node, Mapping) else items(node)
    tasks: list[Task] = []
    for index, item in enumerate(written):
        here = frame if index == 0 else _later(frame)
        tasks += _entry(building, item, f"{frame.prefix}task_{index}", here)
    return tuple(tasks)


def _later(frame: Frame) -> Frame:
    """Of a task that comes after another: it sees how that one ended."""
    if frame.where is not Where.TASK:
        return frame
    return msgspec.structs.replace(frame, where=Where.LATER)


def _entry(building: Building, node: Node, label: str, frame: Frame) -> list[Task]:
    word = is_sugar(node)
    if word is not None:
        return expand(
            building,
            word,
            node,
            label.replace("task", word, 1) if label.startswith("task_") else f"{label}_{word}",
            frame.home,
            lambda body, prefix: _branch(building, body, prefix, frame),
        )
    if is_labelled(node):
        assert isinstance(node, Mapping)
        [(name, body)] = node.entries.items()
        return [task(building, body, name, frame, node.keys[name])]
    named = field(node, "name")
    name = nodes.text_of(named) or label
    return [task(building, node, name, frame, named.place if named is not None else None)]


def _branch(building: Building, node: Node | None, prefix: str, frame: Frame) -> list[Task]:
    """Tasks inside sugar: generated names carry the prefix, written ones stay as they are."""
    if isinstance(node, Mapping) and not is_labelled(node) and is_sugar(node) is None:
        return _entry(building, node, f"{prefix}_0", frame)
    found: list[Task] = []
    for index, item in enumerate([node] if isinstance(node, Mapping) else items(node)):
        here = frame if index == 0 else _later(frame)
        found += _entry(building, item, f"{prefix}_{index}", here)
    return found


def _single(building: Building, node: Mapping, fallback: str, frame: Frame) -> Task:
    named = field(node, "name")
    # Of a lone workbook call, `name` is the entry it calls.
    calls_by_name = text(node, "kind") == WORKBOOK and field(node, "task") is None
    name = fallback if calls_by_name else nodes.text_of(named) or fallback
    return task(building, node, name, frame, named.place if named is not None else None)


def task(
    building: Building,
    node: Node,
    name: str,
    frame: Frame,
    name_place: Place | None = None,
) -> Task:
    """One tool call as written in a mapping with `kind`."""
    home = frame.home
    kind = text(node, "kind") or ""
    spec = merge(frame.spec, noted_knobs(building, field(node, "spec"), home))
    policy = policy_of(node)
    before = msgspec.structs.replace(frame, retries=())
    after = msgspec.structs.replace(before, where=Where.HOOK)
    timeout = spec.pop("timeout", None)
    spec |= promises(field(node, "assert"))
    if field(node, "table") is not None:
        spec |= _made_by_tojson(field(node, "args", "input", "with"), field(node, "rows"))
    inline_max = whole(field(node, "output"), "inline_max_bytes")
    if inline_max is None:
        inline_max = building.inline_max
    if inline_max is not None:
        spec["inline_max_bytes"] = inline_max
    made = Task(
        name=name,
        kind=kind,
        config=_config(building, node, name, building.tools.get(kind), frame),
        inputs=building.values(field(node, "args", "input", "with"), frame.where, home),
        rules=task_rules(building, policy, home),
        retries=retry_rules(building, field(node, "retry"), home) or frame.retries,
        poll=_poll(building, field(node, "poll"), home),
        before=_hook(building, policy, "before", name, before),
        after=_hook(building, policy, "after", name, after),
        finally_=_hook(building, policy, "finally", name, after),
        patch=building.patch(field(node, "set"), Where.AFTER, home),
        select=_select(field(node, "output_select") or deep(node, "output", "select")),
        schema=result_schema(building, field(node, "output")),
        timeout=_bounded_timeout(building, timeout, node),
        max_jumps=_max_jumps(building, spec.pop("max_jumps", None), node),
        spec=spec,
    )
    kind_node = field(node, "kind")
    building.mark(
        made,
        node.place,
        name=name_place,
        kind=kind_node.place if kind_node is not None else None,
        task=_place(field(node, "task", "name")),
        args=_place(field(node, "args", "input", "with", "payload")),
    )
    return made


def _made_by_tojson(inputs: Node | None, rows: Node | None = None) -> Values:
    """Which values for a table are texts that a final `| tojson` makes, by column."""
    found: Values = {}
    if made := _json_texts(inputs):
        found["json_inputs"] = made
    if of_rows := {str(n): made for n, row in enumerate(items(rows)) if (made := _json_texts(row))}:
        found["json_rows"] = of_rows
    return found


def _json_texts(node: Node | None) -> list[str]:
    written = entries(node).items()
    return sorted(name for name, value in written if _TO_JSON.search(nodes.text_of(value) or ""))


def promises(node: Node | None) -> Values:
    """`assert` as a knob of the task that it holds for."""
    found = {
        key: [name for item in items(field(node, key)) if (name := nodes.text_of(item))]
        for key in ("expects", "returns")
    }
    written = {key: names for key, names in found.items() if names}
    return {"assert": written} if written else {}


def _hook(
    building: Building, policy: Node | None, hook: str, name: str, frame: Frame
) -> tuple[Task, ...]:
    """Tasks around a task; their generated names carry its name."""
    named = msgspec.structs.replace(frame, prefix=f"{name}_{hook}_")
    return pipeline(building, field(policy, hook), named)


def _place(node: Node | None) -> Place | None:
    return node.place if node is not None else None


def _config(
    building: Building, node: Node, name: str, tool: ToolShape | None, frame: Frame
) -> Values:
    """The tool's own fields in their main spelling."""
    if tool is None:
        return {}
    found: Values = {}
    for key, value in entries(node).items():
        if tool.takes(key) and key != "name":
            found[tool.aliases.get(key, key)] = building.value(value, frame.where, frame.home)
    if tool.kind == WORKBOOK and "task" not in found:
        found["task"] = text(node, "name") or name
    _warn_of_templates_in_code(building, node, tool)
    if tool.code_check is not None:
        _check_code(building, node, tool, f"{frame.home.name or frame.home.block}.{name}")
    return {key: found[key] for key in sorted(found)}


def _warn_of_templates_in_code(building: Building, node: Node, tool: ToolShape) -> None:
    for key, value in entries(node).items():
        if tool.aliases.get(key, key) not in tool.code_fields:
            continue
        for part in items(value) or [value]:
            code = nodes.text_of(part)
            if code is not None and _is_mixed(code) and has_template(code):
                building.report.add(
                    "template-in-code",
                    f"`{key}` of kind {tool.kind} has templates inside program text, where a value"
                    f" can change the program. Pass values through `{tool.code_inputs}`.",
                    part.place,
                )


def _check_code(building: Building, node: Node, tool: ToolShape, label: str) -> None:
    """Note where code begins, and report what can be told of it without running it."""
    assert tool.code_check is not None
    for key, value in entries(node).items():
        code = nodes.text_of(value)
        if tool.aliases.get(key, key) not in tool.code_fields or code is None:
            continue
        assert isinstance(value, Scalar)
        first = value.place.line + value.block
        building.code_lines[label] = first
        problem = tool.code_check(code) if not has_template(code) else None
        if problem is not None:
            building.report.add(
                "code-syntax",
                f"the {tool.kind} code cannot be run: {problem.message}.",
                _place_in_code(building, value, code, problem),
            )


def _place_in_code(building: Building, value: Scalar, code: str, problem: CodeProblem) -> Place:
    """The place in the document of a place in a code that stands there line by line."""
    if not value.block:
        return value.place
    line = value.place.line + problem.line
    written, document = code.splitlines(), building.text.splitlines()
    column = problem.column
    if problem.line <= len(written) and line <= len(document):
        column += max(0, document[line - 1].find(written[problem.line - 1]))
    return Place(line, column)


def _is_mixed(code: str) -> bool:
    """A text that is one template as a whole is chosen code, not pasted values."""
    stripped = code.strip()
    return not (stripped.startswith("{{") and stripped.endswith("}}") and stripped.count("{{") == 1)


def _poll(building: Building, node: Node | None, home: Home) -> Poll | None:
    if node is None:
        return None
    until = building.condition(field(node, "until"), Where.RETRY, home)
    interval = building.amount(field(node, "interval"), Where.TASK, home)
    return Poll(
        until=True if until is None else until,
        interval=5 if interval is None else interval,
        max_attempts=building.amount(field(node, "max_attempts"), Where.TASK, home),
        deadline=building.amount(field(node, "deadline"), Where.TASK, home),
    )


def _select(node: Node | None) -> tuple[Select, ...]:
    return tuple(
        Select(path=path, name=text(item, "as") or path.rpartition(".")[2])
        for item in items(node)
        if (path := text(item, "path"))
    )


def _bounded_timeout(building: Building, asked: object, node: Node) -> object:
    limit = building.limits.timeout
    place = _place(deep(node, "spec", "timeout")) or node.place
    if isinstance(asked, int | float):
        return within(building, asked, limit, "the timeout", place)
    if isinstance(asked, dict):
        return {
            key: within(building, value, limit, f"the {key} timeout", place)
            for key, value in asked.items()
        }
    return limit if asked is None else asked


def _max_jumps(building: Building, asked: Amount | None, node: Node) -> Amount:
    place = _place(deep(node, "spec", "max_jumps")) or node.place
    limit = building.limits.max_jumps
    if asked is None:
        return min(100_000, limit) if limit is not None else 100_000
    found = within(building, asked, limit, "max_jumps", place)
    return asked if found is None else found


def nothing(building: Building, name: str, place: Place) -> Task:
    """Stands for a task whose tool was not written; that has been reported."""
    made = Task(name=name, kind=NOOP)
    building.mark(made, place)
    return made


def sink_task(building: Building, node: Node, name: str, home: Home, spec: Values) -> Task:
    """`sink: {tool, args}`: a task whose inputs are the sink's args."""
    frame = Frame(
        home=home,
        spec=spec,
        where=Where.SINK,
        retries=retry_rules(building, field(node, "retry"), home),
    )
    tool = field(node, "tool")
    if tool is None:
        return nothing(building, name, node.place)
    made = task(building, tool, text(tool, "name") or name, frame)
    inputs = building.values(field(node, "args"), Where.SINK, home)
    spec = made.spec
    if field(tool, "table") is not None:
        spec = {**spec, **_made_by_tojson(field(node, "args"))}
    whole = msgspec.structs.replace(made, inputs=merge(made.inputs, inputs), spec=spec)
    building.mark(whole, tool.place, kind=_place(field(tool, "kind")))
    return whole
