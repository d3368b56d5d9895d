"""The pieces a language's shape is written with.

A shape does two things from one description: it checks a node, reporting what is wrong with
place and remedy, and it tells its JSON Schema. So what editors mark and what `validate` says
cannot drift apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from noetl.dsl import nodes
from noetl.dsl.nodes import Node, Scalar, Sequence
from noetl.dsl.report import Report
from noetl.model.duration import DURATION_PATTERN, RATE_PATTERN, interval, seconds
from noetl.model.toolshape import ToolShape

Schema = dict[str, Any]

_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
TEMPLATE_SCHEMA: Schema = {"type": "string", "pattern": r"\{\{|\{%"}


def has_template(text: str) -> bool:
    """Whether this text is rendered rather than taken as it stands."""
    return "{" in text and _TEMPLATE.search(text) is not None


class Inspection(msgspec.Struct, frozen=True):
    """What a check may look at beside the node itself."""

    report: Report
    tools: Mapping[str, ToolShape]

    def wrong_type(self, node: Node, what: str, expected: str, hint: str = "") -> None:
        self.report.add(
            "wrong-type", f"{what} must be {expected}, not {_kind_of(node)}.{hint}", node.place
        )


def _kind_of(node: Node) -> str:
    match node:
        case nodes.Mapping():
            return "a mapping"
        case Sequence():
            return "a list"
        case Scalar(value=None):
            return "empty"
        case Scalar(value=bool() as value):
            return f"`{str(value).lower()}`"
        case Scalar(value=str() as text):
            return f'the text "{text[:40]}"'
        case _:
            return f"the number {plain_text(node)}"


def plain_text(node: Node) -> str:
    """A scalar as it was written."""
    return node.text if isinstance(node, Scalar) else ""


class Shape:
    """Base of all shapes: one description to check by, to complete by and to read by.

    `what` names the node in messages, e.g. "`mode` of a loop".
    """

    def check(self, node: Node, what: str, look: Inspection) -> None:
        raise NotImplementedError

    def schema(self) -> Schema:
        raise NotImplementedError

    def read(self, node: Node) -> Any:
        """What the node says; None where `check` has something to complain about."""
        return nodes.plain(node)


class Anything(Shape):
    """Data of any form; texts in it may be templates."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        pass

    def schema(self) -> Schema:
        return {}


class Text(Shape):
    """A text. Numbers are refused where they would be guessed at."""

    def __init__(self, *, numbers: bool = False) -> None:
        self._numbers = numbers

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if nodes.text_of(node) is not None:
            return
        if self._numbers and isinstance(node, Scalar) and isinstance(node.value, int | float):
            return
        look.wrong_type(node, what, "a text")

    def schema(self) -> Schema:
        return {"type": ["string", "number"] if self._numbers else "string"}

    def read(self, node: Node) -> str | None:
        return nodes.text_of(node)


class Name(Shape):
    """A name that templates can use: letters, digits and underscores."""

    PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

    def __init__(self, *, hyphens: bool = False) -> None:
        self._pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*") if hyphens else self.PATTERN

    def check(self, node: Node, what: str, look: Inspection) -> None:
        text = nodes.text_of(node)
        if text is None:
            look.wrong_type(node, what, "a name")
        elif not self._pattern.fullmatch(text):
            suggestion = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
            if not suggestion or suggestion[0].isdigit():
                suggestion = f"_{suggestion}"
            look.report.add(
                "bad-name",
                f'{what} is "{text[:60]}"; a name has letters, digits and underscores and does'
                f' not start with a digit, so that templates can use it. Try "{suggestion[:60]}".',
                node.place,
            )

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{self._pattern.pattern}$"}


class StepName(Shape):
    """The name of a step, or a template that yields one."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if nodes.text_of(node) is None:
            look.wrong_type(node, what, "the name of a step")

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1}


class OneOf(Shape):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def check(self, node: Node, what: str, look: Inspection) -> None:
        text = nodes.text_of(node)
        if text is None:
            look.wrong_type(node, what, f"one of {', '.join(self.words)}")
        elif text not in self.words:
            look.report.add(
                "bad-value",
                f'{what} is "{text[:60]}"; it must be one of {", ".join(self.words)}.'
                + look.report.suggest(text, self.words),
                node.place,
            )

    def schema(self) -> Schema:
        return {"enum": list(self.words)}

    def read(self, node: Node) -> str | None:
        text = nodes.text_of(node)
        return text if text in self.words else None


def one_of(words: Any) -> OneOf:
    """One of the words of a `Literal`, which the net uses for the same thing."""
    return OneOf(*get_args(words))


class Number(Shape):
    """A number within bounds, or a template that yields one."""

    def __init__(
        self,
        *,
        whole: bool = False,
        least: float | None = None,
        most: float | None = None,
        nonzero: bool = False,
        templates: bool = True,
    ) -> None:
        self._whole, self._least, self._most, self._nonzero = whole, least, most, nonzero
        self._templates = templates

    def check(self, node: Node, what: str, look: Inspection) -> None:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and self._templates and has_template(value):
            return
        numeric = int if self._whole else (int, float)
        if not isinstance(value, numeric) or isinstance(value, bool):
            look.wrong_type(node, what, "a whole number" if self._whole else "a number")
        elif self._nonzero and value == 0:
            look.report.add("bad-value", f"{what} must not be 0.", node.place)
        elif self._least is not None and value < self._least:
            look.report.add(
                "bad-value", f"{what} is {value}; it must be at least {self._least:g}.", node.place
            )
        elif self._most is not None and value > self._most:
            look.report.add(
                "bad-value", f"{what} is {value}; it must be at most {self._most:g}.", node.place
            )

    def schema(self) -> Schema:
        number: Schema = {"type": "integer" if self._whole else "number"}
        if self._least is not None:
            number["minimum"] = self._least
        if self._most is not None:
            number["maximum"] = self._most
        if self._nonzero:
            number["not"] = {"const": 0}
        return {"anyOf": [number, TEMPLATE_SCHEMA]} if self._templates else number


class Duration(Shape):
    """Seconds as a number, a text such as `5s`, `1m30s`, `2h`, or a template."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and has_template(value):
            return
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            look.wrong_type(node, what, "a number of seconds or a text such as 30s, 5m, 1h30m")
        elif seconds(value) is None:
            look.report.add(
                "bad-value",
                f'{what} is "{plain_text(node)[:40]}"; write seconds as a number that is not'
                " negative, or a text such as 500ms, 30s, 5m, 1h30m.",
                node.place,
            )

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": DURATION_PATTERN},
                TEMPLATE_SCHEMA,
            ]
        }


class Rate(Shape):
    """A number per time: `10/s`, `100/5m`."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        written = nodes.text_of(node)
        if written is None:
            look.wrong_type(node, what, "a rate such as 10/s or 100/5m")
        elif interval(written) is None:
            look.report.add(
                "bad-value",
                f'{what} is "{written[:40]}"; write how many calls in how long, such as 10/s,'
                " 100/5m or 2.5/s.",
                node.place,
            )

    def schema(self) -> Schema:
        return {"type": "string", "pattern": RATE_PATTERN}


class SharedRate(Shape):
    """A rate of one worker, or with a `key` one that all workers share."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, nodes.Mapping):
            Rate().check(node, what, look)
            return
        record = Record(
            "`rate`",
            {
                "key": Field(
                    Text(), "A name; calls with the same name share the limit.", required=True
                ),
                "limit": Field(Rate(), "The maximum rate of calls, e.g. 10/s.", required=True),
            },
        )
        record.check(node, what, look)
        key = node.get("key")
        if key is not None and has_template(nodes.text_of(key) or ""):
            look.wrong_type(key, "`key` of `rate`", "a name, without a template")

    def schema(self) -> Schema:
        shared = {
            "type": "object",
            "properties": {"key": {"type": "string"}, "limit": Rate().schema()},
            "required": ["key", "limit"],
            "additionalProperties": False,
        }
        return {"anyOf": [Rate().schema(), shared]}


class Flag(Shape):
    """true or false."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not (isinstance(node, Scalar) and isinstance(node.value, bool)):
            look.wrong_type(node, what, "true or false")

    def schema(self) -> Schema:
        return {"type": "boolean"}


class When(Shape):
    """A condition: a template, or a plain value whose truth is plain."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, Scalar) or node.value is None:
            look.wrong_type(node, what, 'a condition such as "{{ ctx.count > 3 }}"')
        elif isinstance(node.value, str) and not has_template(node.value):
            look.report.add(
                "condition-is-text",
                f"{what} has no {{{{ }}}}, so it is a text and never computed."
                f' Write "{{{{ {node.value[:60]} }}}}" if you mean an expression.',
                node.place,
            )

    def schema(self) -> Schema:
        return {"type": ["string", "boolean", "number"]}


class ListOf(Shape):
    """A list of things of one shape."""

    def __init__(self, item: Shape, what: str, *, filled: bool = False) -> None:
        self._item, self._what, self._filled = item, what, filled

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, Sequence):
            look.wrong_type(node, what, f"a list of {self._what}")
            return
        if self._filled and not node.items:
            look.report.add("bad-value", f"{what} is an empty list.", node.place)
        for item in node.items:
            self._item.check(item, f"an entry of {what}", look)

    def schema(self) -> Schema:
        found: Schema = {"type": "array", "items": self._item.schema()}
        return found | {"minItems": 1} if self._filled else found

    def read(self, node: Node) -> tuple[Any, ...] | None:
        if not isinstance(node, Sequence):
            return None
        found = (self._item.read(item) for item in node.items)
        return tuple(one for one in found if one is not None)


class MapOf(Shape):
    """A mapping with free keys."""

    def __init__(self, value: Shape) -> None:
        self._value = value

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, nodes.Mapping):
            look.wrong_type(node, what, "a mapping")
            return
        for key, value in node.entries.items():
            self._value.check(value, f"`{key}` of {what}", look)

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": self._value.schema()}

    def read(self, node: Node) -> dict[str, Any] | None:
        if not isinstance(node, nodes.Mapping):
            return None
        return {key: self._value.read(value) for key, value in node.entries.items()}


class Field(msgspec.Struct, frozen=True):
    """A key of a record."""

    shape: Shape
    help: str = ""
    required: bool = False
    same_as: str | None = None
    """This key is another spelling of that one."""
    older: str = ""
    """An older form, and what to write today. It is rewritten before anything is checked, so it
    stands here for editors only."""


class Record(Shape):
    """A mapping with known keys. `title` names it in messages: "a step"."""

    def __init__(
        self,
        title: str,
        fields: Mapping[str, Field],
        *,
        removed: Mapping[str, str] | None = None,
        astray: Mapping[str, tuple[str, str]] | None = None,
        makes: Callable[..., Any] = dict,
    ) -> None:
        """`makes` builds the result from the values by key, when the mapping is read."""
        self.title = title
        self.fields = fields
        self.removed = removed or {}
        self.astray = astray or {}
        """Keys that belong elsewhere: key → (problem code, where it belongs)."""
        self._makes = makes

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, nodes.Mapping):
            look.wrong_type(node, what, "a mapping")
            return
        for key, value in node.entries.items():
            field = self.fields.get(key)
            if field is None or field.older:
                self.unknown(key, node, look)
            elif not nodes.is_null(value) or field.required or isinstance(field.shape, When):
                # A key with nothing behind it is as good as none, but not where one must be.
                field.shape.check(value, f"`{key}` of {self.title}", look)
        self.check_keys(node, look)

    def check_keys(self, node: nodes.Mapping, look: Inspection) -> None:
        """Nothing missing, nothing said twice."""
        written: dict[str, str] = {}
        for key in node.entries:
            field = self.fields.get(key)
            if field is None:
                continue
            main = field.same_as or key
            if main in written:
                look.report.add(
                    "conflicting-keys",
                    f"`{key}` and `{written[main]}` of {self.title} are the same thing."
                    " Keep one of them.",
                    node.keys[key],
                )
            written[main] = key
        if (self.removed.keys() | self.astray.keys()) & node.entries.keys():
            return  # the old form is the mistake; what its new form lacks is no second one
        for key, field in self.fields.items():
            if field.required and key not in written:
                look.report.add("missing-key", f"{self.title} needs `{key}`.", node.place)

    def unknown(self, key: str, node: nodes.Mapping, look: Inspection, hint: str = "") -> None:
        place = node.keys[key]
        if key in self.astray:
            code, remedy = self.astray[key]
            look.report.add(code, f"`{key}` does not belong in {self.title}: {remedy}", place)
        elif key in self.removed:
            look.report.add(
                "removed-key",
                f"`{key}` of {self.title} is not part of the language: {self.removed[key]}",
                place,
            )
        else:
            known = [
                name
                for name, field in self.fields.items()
                if name not in node.entries and not field.older
            ]
            look.report.add(
                "unknown-key",
                f"{self.title} has no `{key[:60]}`."
                + (hint or look.report.suggest(key, known) or _known_keys(self.fields)),
                place,
            )

    def schema(self) -> Schema:
        required = [key for key, field in self.fields.items() if field.required]
        aliases = {
            field.same_as: key for key, field in self.fields.items() if field.same_as is not None
        }
        found: Schema = {
            "type": "object",
            "properties": {key: _described(field) for key, field in self.fields.items()},
            "additionalProperties": False,
        }
        plain = [key for key in required if key not in aliases]
        if plain:
            found["required"] = plain
        either = [
            {"anyOf": [{"required": [key]}, {"required": [aliases[key]]}]}
            for key in required
            if key in aliases
        ]
        if either:
            found["allOf"] = either
        return found

    def read(self, node: Node) -> Any:
        given: dict[str, Any] = {}
        for key, value in node.entries.items() if isinstance(node, nodes.Mapping) else ():
            field = self.fields.get(key)
            if field is None or nodes.is_null(value):
                continue
            found = field.shape.read(value)
            if found is not None:
                given[field.same_as or key] = found
        is_whole = all(key in given for key, field in self.fields.items() if field.required)
        return self._makes(**given) if is_whole or self._makes is dict else None


def _described(field: Field) -> Schema:
    if field.older:
        return {"deprecated": True, "description": f"Older form: {field.older}"}
    schema = field.shape.schema()
    if not field.help:
        return schema
    if "$ref" in schema:
        return {"allOf": [schema], "description": field.help}
    return schema | {"description": field.help}


def _known_keys(fields: Mapping[str, Field]) -> str:
    main = [key for key, field in fields.items() if field.same_as is None and not field.older]
    return f" It may have: {', '.join(main)}." if main else " It has no keys."


class Either(Shape):
    """One of several shapes, told apart by the look of the node alone."""

    def __init__(self, expected: str, *choices: tuple[Callable[[Node], bool], Shape]) -> None:
        self._expected = expected
        self._choices = choices

    def check(self, node: Node, what: str, look: Inspection) -> None:
        for fits, shape in self._choices:
            if fits(node):
                shape.check(node, what, look)
                return
        look.wrong_type(node, what, self._expected)

    def schema(self) -> Schema:
        return {"anyOf": [shape.schema() for _, shape in self._choices]}

    def read(self, node: Node) -> Any:
        return next((shape.read(node) for fits, shape in self._choices if fits(node)), None)


class Made(Shape):
    """A shape whose value is made into another."""

    def __init__(self, shape: Shape, make: Callable[[Any], Any]) -> None:
        self._shape, self._make = shape, make
        self.check, self.schema = shape.check, shape.schema  # type: ignore[method-assign]

    def read(self, node: Node) -> Any:
        found = self._shape.read(node)
        return None if found is None else self._make(found)


class Defined(Shape):
    """Refers to a shape by name, so that shapes can contain themselves."""

    def __init__(self, name: str) -> None:
        self._name = name

    def check(self, node: Node, what: str, look: Inspection) -> None:
        DEFINITIONS[self._name].check(node, what, look)

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self._name}"}

    def read(self, node: Node) -> Any:
        return DEFINITIONS[self._name].read(node)


def older_keys(**instead: str) -> dict[str, Field]:
    """Keys of a record that are older forms, each with what to write today."""
    return {key: Field(Anything(), older=today) for key, today in instead.items()}


DEFINITIONS: dict[str, Shape] = {}
"""Shapes that others refer to by name; in the JSON Schema they stand under `$defs`."""


def define(name: str, shape: Shape) -> Defined:
    """Give a shape a name, and refer to it by that."""
    DEFINITIONS[name] = shape
    return Defined(name)


def is_text(node: Node) -> bool:
    return nodes.text_of(node) is not None


def is_scalar(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is not None


def is_list(node: Node) -> bool:
    return isinstance(node, Sequence)


def is_mapping(node: Node) -> bool:
    return isinstance(node, nodes.Mapping)


def has_key(*keys: str) -> Callable[[Node], bool]:
    """Fits mappings that have one of these keys."""
    return lambda node: isinstance(node, nodes.Mapping) and any(k in node.entries for k in keys)
