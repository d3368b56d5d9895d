"""What a tool's field takes, in words: the advice of a message about a wrong value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec


@cache
def field_types(config: type[msgspec.Struct]) -> dict[str, Any]:
    """The type of each field; cached, because msgspec derives them on every call."""
    return {found.name: found.type for found in msgspec.structs.fields(config)}


def advice(wanted: Any, path: Sequence[str | int]) -> str:
    """What may stand at that path in a value of that type, if one sentence can say it."""
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
    """The types one by one; one with notes both with them and bare."""
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
