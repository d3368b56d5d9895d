"""The check of a task's config against the type that its tool declares."""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from noetl.dsl import nodes
from noetl.dsl.grammar import Inspection, has_template, refuse_twice, warn_unused
from noetl.dsl.nodes import Mapping, Node, Scalar
from noetl.model.net import WORKBOOK
from noetl.model.problems import Place
from noetl.model.toolshape import ToolShape

TEMPLATES_TAKEN_AWAY_MAX = 20
_AT = re.compile(r" - at `(?:key in )?\$(.*)`$")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*?)`")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")


def check_config(key: str, node: Node, tool: ToolShape, look: Inspection) -> None:
    """One key of the tool's own."""
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


def _report_config(
    key: str, node: Node, wanted: Any, tool: ToolShape, error: str, look: Inspection
) -> None:
    """Report what msgspec found in our words, at the value concerned."""
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
    message = f"`{key}` of kind {tool.kind}: {_in_our_words(reason)}."
    more = advice(wanted, _steps(found.group(1)) if found else [])
    look.report.add(code, f"{message} {more}".rstrip(), part.place)


def _key_place(node: Node, key: str) -> Place | None:
    """The place of that key; below free keys msgspec does not name the mapping."""
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
    """The value without what is at the path; a list keeps its other items."""
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


def check_keys(node: Mapping, tool: ToolShape, look: Inspection) -> None:
    """Report keys of the tool that are missing, written in two spellings, or without effect beside
    the others.
    """
    main = {key: tool.aliases.get(key, key) for key in node.entries}
    written = refuse_twice(node, main, f"kind {tool.kind}", look)
    # A workbook entry may also be named by the task's own name; checks.py looks.
    for group in tool.needs if tool.kind != WORKBOOK else ():
        if not written & set(group):
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
            if main[key] in group
            and not nodes.is_null(value)
            and not (isinstance(value, Scalar) and _is_template(value))
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


# --- What a field takes, in words -----------------------------------------------------------------


@cache
def field_types(config: type[msgspec.Struct]) -> dict[str, Any]:
    """The type of each field; cached, because msgspec derives them on every call."""
    return {found.name: found.type for found in msgspec.structs.fields(config)}


def advice(wanted: Any, path: Sequence[str | int]) -> str:
    """What is allowed at that path in a value of that type, if one sentence can say it."""
    types = [wanted]
    for step in path:
        flat = list(_alternatives(types))
        tags = [one for one in flat if _is_record(one) and one.__struct_config__.tag_field == step]
        if tags:
            return _one_of([one.__struct_config__.tag for one in tags])
        types = [below for one in flat for below in _below(one, step)]
    flat = list(_alternatives(types))
    words = [word for one in flat if get_origin(one) is Literal for word in get_args(one)]
    if words:
        return _one_of(words)
    examples = [
        example
        for one in flat
        if get_origin(one) is Annotated
        for meta in get_args(one)[1:]
        if isinstance(meta, msgspec.Meta)
        for example in meta.examples or ()
    ]
    return f"Write it like {examples[0]}." if examples else ""


def _one_of(words: Sequence[Any]) -> str:
    *others, last = map(str, words)
    return f"Write {', '.join(others)} or {last}." if others else f"Write {last}."


def _alternatives(types: Sequence[Any]) -> Iterator[Any]:
    """The members of a union; an annotated type both with and without its annotation."""
    for one in types:
        if get_origin(one) in (Union, UnionType):
            yield from _alternatives(get_args(one))
        else:
            yield one
            if get_origin(one) is Annotated:
                yield from _alternatives(get_args(one)[:1])


def _below(one: Any, step: str | int) -> list[Any]:
    if _is_record(one):
        found = field_types(one).get(str(step))
        return [] if found is None else [found]
    held = get_args(one) if get_origin(one) in (tuple, list) else ()
    return list(held[:1]) if isinstance(step, int) else []


def _is_record(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, msgspec.Struct)
