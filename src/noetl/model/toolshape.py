"""What the language knows of a tool kind: enough to check a task, nothing about running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from noetl.model.older_forms import Form


class CodeProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A program text that cannot be run: why, and where in it, counted from 1."""

    message: str
    line: int = 1
    column: int = 1


class Each(msgspec.Struct, frozen=True):
    """A list of any length of which each element has this shape."""

    element: Yielded


Yielded = Mapping[str, "Yielded"] | Each | None
"""What is known of a value before anything has run: its keys and what lies below them, or that it
is a list; None: nothing is known.
"""


Path = list[str | int]
"""The way to a place in a config, by keys and indexes."""
ANY = "..."
"""In a path: some key of a mapping; msgspec does not say which."""

ViewName = Literal["plain", "answer", "rows"]
"""How templates read a result: by its own keys; as the answer of a web service, also by the keys of
its body; as rows, also by index and by statement.
"""


def yielded_by(value: object) -> Yielded:
    """What a literal says of itself: the keys of mappings."""
    if isinstance(value, dict):
        return {str(key): yielded_by(part) for key, part in value.items()}
    return None


class ToolShape(msgspec.Struct, frozen=True, kw_only=True):
    """The written form of one tool kind."""

    kind: str
    summary: str
    """One line for people: what it does."""
    config: type[msgspec.Struct]
    """What a task may write beside `kind`; unknown fields are refused.

    A field's type is the type *after* templates are rendered; its help is the `description` of
    its `Meta`.
    """
    aliases: Mapping[str, str] = {}
    """Other spelling → field of `config`."""
    claims: bool = False
    """Whether a statement of this kind may claim the rows of a cursor: what it returns is committed
    with what it changes, or not at all."""
    needs: tuple[tuple[str, ...], ...] = ()
    """Groups of fields of which at least one must be written, e.g. `(("code", "script"),)`."""
    only_one: tuple[tuple[str, ...], ...] = ()
    """Groups of fields of which at most one may have a value, e.g. `(("json", "body"),)`."""
    idle_without: Mapping[str, str] = {}
    """Field → the field without which it has no effect, e.g. `{"rows": "table"}`."""
    needs_when: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {}
    """Field → value of it → groups of fields beside it of which one must then have a value, e.g.
    `{"op": {"put": (("key",), ("value", "file"))}}`; `target.mode` is a field below `target`."""
    code_fields: tuple[str, ...] = ()
    """Fields that hold program text, where a template is legal but bound parameters are better."""
    code_check: Callable[[str], CodeProblem | None] | None = None
    """What is wrong with such a text as a program, as far as it can be told without running it."""
    code_inputs: str = "args"
    """What to recommend instead of a template in a code field."""
    view: ViewName = "plain"
    """How templates read its results."""
    yields: Callable[[Mapping[str, Any]], Yielded] | None = None
    """What a task with this config certainly yields; None for whatever is not certain."""
    reads_context: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether a task with this config may read `context`, which shows everything; None: never."""
    tells: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = None
    """What people recognise a call by, in the order it is read, e.g. method and URL; None: by the
    first of the usual fields (`path`, `code`, `url`, …) that is written.
    """
    credential: Callable[[Mapping[str, Any]], Any] | None = None
    """What a config names as a credential elsewhere than under `auth`."""
    older: Form | None = None
    """Puts older ways to write this kind into today's words."""
    deprecated: Mapping[str, str] = {}
    """Keys that `older` reads, and what to write instead; shown in the JSON Schema."""

    older_shapes: Mapping[str, dict[str, Any]] = {}
    """JSON Schema of older ways to write the value of a key that is still there."""

    def default(self, field: str) -> Any:
        """The value of a field that is not written."""
        [found] = [one for one in msgspec.structs.fields(self.config) if one.name == field]
        return found.default

    def takes(self, key: str) -> bool:
        """Whether a task of this kind may write this key; a kind's own field wins over one that
        all tasks have.
        """
        return key in self.config.__struct_fields__ or key in self.aliases

    def misfit(self, path: Path, reason: str) -> str:
        """Say what does not fit at that place of the config, why, and what would. `path` begins
        with a key of the kind, in any spelling; `reason` is what msgspec said.
        """
        where = f"kind {self.kind}"
        if path:
            shown = "".join(
                f".{step}" if isinstance(step, str) and step != ANY else f"[{step}]"
                for step in path
            )
            where = f"`{shown[1:]}` of {where}"
        if (unknown := UNKNOWN_FIELD.fullmatch(reason)) is not None:
            return f"{where} has no `{unknown[1]}`."
        if (lacks := MISSING_FIELD.match(reason)) is not None:
            return f"{where} needs `{lacks[1]}`."
        ours = [self.aliases.get(str(step), step) for step in path[:1]]
        advice = _advice(self.config, [*ours, *path[1:]])
        return f"{where}: {_in_our_words(reason)}. {advice}".rstrip()


# --- What msgspec says of a config that does not fit ----------------------------------------------

MISSING_FIELD = re.compile(r"Object missing required field `(.*?)`")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
_AT = re.compile(r" - at (?:`key` in )?`\$(.*)`$")
_TYPES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_IN_WORDS = {
    "str": "a text",
    "object": "a mapping",
    "array": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "empty",
}


def told(error: msgspec.ValidationError) -> tuple[Path, str]:
    """The place that msgspec names, as keys and indexes, and what it says of it."""
    said = str(error)
    found = _AT.search(said)
    if found is None:
        return [], said
    steps = re.findall(r"\.([^.\[\]]+)|\[(?:(\d+)|\.{3})\]", found[1])
    return [name or (int(index) if index else ANY) for name, index in steps], said[: found.start()]


def _in_our_words(reason: str) -> str:
    if " matching regex " in reason:
        return "it is not written as it must be"
    said = (
        reason.replace("Expected `", "it must be `")
        .replace("Invalid enum value", "it cannot be")
        .replace("Invalid value", "it cannot be")
        .replace(", got `", ", not `")
    )
    ours = _TYPES.sub(_types_in_words, said)
    return ours.replace("a whole number, not a number", "a whole number, not one with a fraction")


def _types_in_words(found: re.Match[str]) -> str:
    names = found[1].split(" | ")
    # What may be left out may be empty, and what may be a number may be a whole one.
    idle = {"null"} | ({"int"} if "float" in names else set())
    *others, last = [
        _IN_WORDS.get(name, name) for name in names if name not in idle or names == [name]
    ]
    return f"{', '.join(others)} or {last}" if others else last


@cache
def field_types(config: type[msgspec.Struct]) -> dict[str, Any]:
    """The type of each field; cached, because msgspec derives them on every call."""
    return {found.name: found.type for found in msgspec.structs.fields(config)}


def _advice(wanted: Any, path: Path) -> str:
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
    if get_origin(one) is dict:
        return [get_args(one)[1]]
    held = get_args(one) if get_origin(one) in (tuple, list) else ()
    return list(held[:1]) if isinstance(step, int) else []


def _is_record(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, msgspec.Struct)
