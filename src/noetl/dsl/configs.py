"""The check of a task's config against the type that its tool declares."""

from __future__ import annotations

from collections import abc
from typing import Annotated, Any, get_args, get_origin

import msgspec

from noetl.dsl import nodes
from noetl.dsl.grammar import Inspection, has_template, refuse_twice, warn_unused
from noetl.dsl.nodes import Mapping, Node
from noetl.model.net import WORKBOOK
from noetl.model.problems import Place
from noetl.model.toolshape import (
    MISSING_FIELD,
    UNKNOWN_FIELD,
    Path,
    ToolShape,
    field_types,
    told,
)

TEMPLATES_TAKEN_AWAY_MAX = 20


def check_config(key: str, node: Node, tool: ToolShape, look: Inspection) -> None:
    """One key of the tool's own."""
    _check_value([key], node, field_types(tool.config)[tool.aliases.get(key, key)], tool, look)


def _check_value(at: Path, node: Node, wanted: Any, tool: ToolShape, look: Inspection) -> None:
    """Check a value as far as it is written out.

    A template stands for a value we cannot know, so where one is refused we take it away and
    look at the rest; what we took away is not missed.
    """
    if _is_template(node):
        return
    bare = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if get_origin(bare) is dict and isinstance(node, Mapping):
        # Each by itself: msgspec does not say under which free key something is wrong.
        for name, part in node.entries.items():
            _check_value([*at, name], part, get_args(bare)[1], tool, look)
        return
    value = nodes.plain(node)
    taken: list[Path] = []
    for _ in range(TEMPLATES_TAKEN_AWAY_MAX):
        try:
            msgspec.convert(value, wanted, strict=True)
        except msgspec.ValidationError as error:
            path, reason = told(error)
            part = _part(node, path)
            if _is_template(part):
                taken.append(path)
                value = _without(value, path)
                continue
            missing = MISSING_FIELD.match(reason)
            if missing is None or [*path, missing.group(1)] not in taken:
                _report_config([*at, *path], part, reason, tool, look)
        return


def _report_config(at: Path, part: Node, reason: str, tool: ToolShape, look: Inspection) -> None:
    """Report what msgspec found in our words, at the value concerned."""
    unknown = UNKNOWN_FIELD.fullmatch(reason)
    place = _key_place(part, unknown.group(1)) if unknown else None
    if unknown:
        code = "unknown-key"
    elif MISSING_FIELD.match(reason):
        code = "missing-key"
    else:
        code = "wrong-type" if reason.startswith("Expected `") else "bad-value"
    look.report.add(code, tool.misfit(at, reason), place or part.place)


def _key_place(node: Node, key: str) -> Place | None:
    """The place of that key; below free keys msgspec does not name the mapping."""
    if isinstance(node, Mapping):
        if key in node.keys:
            return node.keys[key]
        parts = list(node.entries.values())
    else:
        parts = node.items if isinstance(node, nodes.Sequence) else []
    return next((place for part in parts if (place := _key_place(part, key))), None)


def _part(node: Node, path: Path) -> Node:
    """Follow msgspec's path as far as it can be followed."""
    for step in path:
        if isinstance(node, Mapping) and step in node.entries:
            node = node.entries[str(step)]
        elif isinstance(node, nodes.Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
    return node


def _without(value: Any, path: Path) -> Any:
    """The value without what is at the path; a list keeps its other items."""
    head, *rest = path
    if isinstance(value, dict):
        if not rest:
            return {key: part for key, part in value.items() if key != head}
        return {key: _without(part, rest) if key == head else part for key, part in value.items()}
    if not rest:
        return [part for index, part in enumerate(value) if index != head]
    return [_without(part, rest) if index == head else part for index, part in enumerate(value)]


def _is_template(node: Node) -> bool:
    return has_template(nodes.text_of(node) or "")


def check_keys(
    node: Mapping, tool: ToolShape, foreign: abc.Set[str | None], look: Inspection
) -> None:
    """Report keys of the tool that are missing, written in two spellings, or without effect beside
    the others. `foreign` are those that stand there under a name of another program.
    """
    main = {key: tool.aliases.get(key, key) for key in node.entries}
    written = refuse_twice(node, main, f"kind {tool.kind}", look)
    # A workbook entry may also be named by the task's own name; checks.py looks.
    for group in tool.needs if tool.kind != WORKBOOK else ():
        if not (written | foreign) & set(group):
            look.report.add(
                "missing-key",
                f"kind {tool.kind} needs {' or '.join(f'`{name}`' for name in group)}.",
                node.place,
            )
    for group in tool.only_one:
        # A template may yield nothing, which is as if the key were not there.
        certain = [
            key
            for key, value in node.entries.items()
            if main[key] in group and not nodes.is_null(value) and not _is_template(value)
        ]
        if len({main[key] for key in certain}) > 1:
            first, second, *_ = certain
            look.report.add(
                "conflicting-keys",
                f"`{second}` and `{first}` of kind {tool.kind} exclude each other. Keep one of"
                " them.",
                node.keys[second],
            )
    for field, other in tool.idle_without.items():
        if other not in written:
            idle = [key for key in node.entries if main[key] == field]
            warn_unused(node, idle, f"without `{other}`.", look)
    for field, needed in tool.needs_when.items():
        if tool.idle_without.get(field) in (None, *written):
            _check_needed(node, field, needed, tool, look)


def _check_needed(
    node: Mapping,
    field: str,
    needed: abc.Mapping[str, tuple[tuple[str, ...], ...]],
    tool: ToolShape,
    look: Inspection,
) -> None:
    """Report what the value of a field needs beside it and does not have."""
    *above, last = field.split(".")
    for part in above:
        below = node.entries.get(part)
        if not isinstance(below, Mapping):
            return
        node = below
    aliases = {} if above else tool.aliases
    given = {aliases.get(key, key): key for key in nodes.written(node)}
    if last in given:
        place = node.keys[given[last]]
        value = nodes.text_of(node.entries[given[last]])
        says, remedy = f"`{field}: {value}` of kind {tool.kind}", f"Write it beside `{last}`."
    else:
        place = node.place
        value = None if above else tool.default(last)
        says = f"`{last}: {value}`, the default of kind {tool.kind},"
        remedy = f"Write it, or another `{last}`."
    for group in needed.get(value or "", ()):
        if not given.keys() & set(group):
            names = " or ".join(f"`{name}`" for name in group)
            look.report.add("missing-key", f"{says} needs {names}. {remedy}", place)
