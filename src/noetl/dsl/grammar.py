"""The building blocks of the language's shapes.

A shape describes how something may be written. From this one description come the reading of a node
(with problems, their places and remedies), the value that the compiler uses, and the JSON Schema
for editors, so that these cannot drift apart.

A shape yields words, names, flags and fixed numbers as values, a list as a tuple, a mapping with
known keys as its `Placed` class, and whatever may hold a template as its node, which knows its
place. A value of the wrong type counts as not written. A value that only breaks a rule is yielded
as it stands, so that it is reported once and not reported as missing, too.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, get_args

import msgspec

from noetl.dsl import nodes
from noetl.dsl.expressions import Expressions
from noetl.dsl.nodes import Node, Scalar, Sequence
from noetl.dsl.report import Report
from noetl.model.duration import DURATION_PATTERN, RATE_PATTERN, interval, seconds
from noetl.model.problems import Place
from noetl.model.toolshape import ToolShape

Schema = dict[str, Any]

_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
TEMPLATE_SCHEMA: Schema = {"type": "string", "pattern": r"\{\{|\{%"}


def has_template(text: str) -> bool:
    """Whether the text contains a template."""
    return "{" in text and _TEMPLATE.search(text) is not None


def holds_template(value: object) -> bool:
    """Whether there is a template anywhere in plain data, even a broken one."""
    match value:
        case str():
            return has_template(value)
        case list():
            return any(map(holds_template, value))
        case dict():
            return any(map(holds_template, (*value, *value.values())))
    return False


def templates_in(node: Node | None) -> Iterator[tuple[str, Place]]:
    """Every template in a node, in the order written."""
    match node:
        case Scalar(value=str() as text) if has_template(text):
            yield text, node.place
        case Sequence(items=parts):
            for part in parts:
                yield from templates_in(part)
        case nodes.Mapping(entries=entries):
            for part in entries.values():
                yield from templates_in(part)


class Inspection(msgspec.Struct, frozen=True):
    """What a shape needs besides the node."""

    report: Report
    tools: Mapping[str, ToolShape]
    expressions: Expressions = msgspec.field(default_factory=Expressions)

    def silent(self) -> Inspection:
        """A copy that discards problems."""
        return Inspection(Report(), self.tools, self.expressions)

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
    """Base of all shapes."""

    reads_null = False
    """Whether an empty value is a mistake; otherwise it counts as not written."""

    def nothing(self) -> Any:
        """The value of a key that is not written."""
        return None

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        """What the node says, or None; what is wrong with it is reported.

        `what` names the node in messages, e.g. "`mode` of a loop".
        """
        raise NotImplementedError

    def schema(self) -> Schema:
        raise NotImplementedError


class Anything(Shape):
    """Data of any form; texts in it may be templates."""

    def read(self, node: Node, what: str, look: Inspection) -> Node:
        return node

    def schema(self) -> Schema:
        return {}


class Values(Shape):
    """A mapping with free keys and data of any form."""

    def read(self, node: Node, what: str, look: Inspection) -> nodes.Mapping | None:
        if isinstance(node, nodes.Mapping):
            return node
        look.wrong_type(node, what, "a mapping")
        return None

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": {}}


class Around(Shape):
    """Base of shapes that are another one in all but what they say themselves."""

    def __init__(self, shape: Shape) -> None:
        self._shape, self.reads_null = shape, shape.reads_null

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        return self._shape.read(node, what, look)

    def schema(self) -> Schema:
        return self._shape.schema()


class AsWritten(Around):
    """A shape that yields the node instead of the value: with its place, and for templates."""

    def read(self, node: Node, what: str, look: Inspection) -> Node | None:
        return None if super().read(node, what, look) is None else node


class Text(Shape):
    """A text; with `numbers`, also a number, as it was written.

    `wrong` says what is wrong with a text, to be read behind the name of the key; such a text is
    reported as `code`. `schema` is what the JSON Schema says of it besides.
    """

    def __init__(
        self,
        expected: str = "a text",
        *,
        numbers: bool = False,
        wrong: Callable[[str], str] = lambda text: "",
        code: str = "bad-value",
        schema: Schema | None = None,
    ) -> None:
        self._expected, self._numbers, self._wrong, self._code = expected, numbers, wrong, code
        self._schema = {"type": ["string", "number"] if numbers else "string"} | (schema or {})

    def read(self, node: Node, what: str, look: Inspection) -> str | None:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str):
            if problem := self._wrong(value):
                look.report.add(self._code, f"{what} {problem}", node.place)
            return value
        if self._numbers and isinstance(value, int | float):
            return plain_text(node)
        look.wrong_type(node, what, self._expected)
        return None

    def schema(self) -> Schema:
        return dict(self._schema)


def _name(pattern: str) -> Text:
    def wrong(text: str) -> str:
        if re.fullmatch(pattern, text):
            return ""
        suggestion = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
        if not suggestion or suggestion[0].isdigit():
            suggestion = f"_{suggestion}"
        return (
            f'is "{text[:60]}"; a name has letters, digits and underscores and does'
            f' not start with a digit, so that templates can use it. Try "{suggestion[:60]}".'
        )

    return Text("a name", wrong=wrong, code="bad-name", schema={"pattern": f"^{pattern}$"})


NAME = _name("[A-Za-z_][A-Za-z0-9_]*")
"""A name that templates can use: letters, digits and underscores."""
HYPHENATED_NAME = _name("[A-Za-z_][A-Za-z0-9_-]*")
CATALOG_NAME_MAX = 255
CATALOG_NAME = Text(
    wrong=lambda text: (
        f"has {len(text):,} characters; at most {CATALOG_NAME_MAX} are kept. Write a shorter one."
        if len(text) > CATALOG_NAME_MAX
        else ""
    ),
    schema={"maxLength": CATALOG_NAME_MAX},
)
"""The name or the path of a document. Databases look it up, and their indexes have limits."""
STEP_NAME = AsWritten(Text("the name of a step", schema={"minLength": 1}))
"""The name of a step, or a template that yields one."""


class OneOf(Shape):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def read(self, node: Node, what: str, look: Inspection) -> str | None:
        text = nodes.text_of(node)
        if text in self.words:
            return text
        if text is None:
            look.wrong_type(node, what, f"one of {', '.join(self.words)}")
        else:
            look.report.add(
                "bad-value",
                f'{what} is "{text[:60]}"; it must be one of {", ".join(self.words)}.'
                + look.report.suggest(text, self.words),
                node.place,
            )
        return None

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


def one_of(words: Any) -> OneOf:
    """One of the words of a `Literal` that the net uses."""
    return OneOf(*get_args(words))


class Number(Shape):
    """A number within bounds; with `templates`, or a template that yields one."""

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

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and self._templates and has_template(value):
            return node
        numeric = int if self._whole else (int, float)
        if not isinstance(value, numeric) or isinstance(value, bool):
            look.wrong_type(node, what, "a whole number" if self._whole else "a number")
            return None
        if self._nonzero and value == 0:
            look.report.add("bad-value", f"{what} must not be 0.", node.place)
        elif self._least is not None and value < self._least:
            look.report.add(
                "bad-value", f"{what} is {value}; it must be at least {self._least}.", node.place
            )
        elif self._most is not None and value > self._most:
            look.report.add(
                "bad-value", f"{what} is {value}; it must be at most {self._most}.", node.place
            )
        return node if self._templates else value

    def schema(self) -> Schema:
        number: Schema = {"type": "integer" if self._whole else "number"}
        if self._least is not None:
            number["minimum"] = self._least
        if self._most is not None:
            number["maximum"] = self._most
        if self._nonzero:
            number["not"] = {"const": 0}
        return {"anyOf": [number, TEMPLATE_SCHEMA]} if self._templates else number


WHOLE = Number(whole=True, templates=False)
INTEGER_MAX = 2**31 - 1
"""Databases keep whole numbers up to this."""
PRIORITY = Number(whole=True, least=-INTEGER_MAX, most=INTEGER_MAX, templates=False)
CAPACITY = Number(whole=True, least=1, most=INTEGER_MAX, templates=False)
COUNT = Number(whole=True, least=1, templates=False)
TEMPLATED_COUNT = Number(whole=True, least=1)


class Duration(Shape):
    """Seconds as a number, a text such as `5s`, `1m30s`, `2h`, or a template.

    Without `templates` it is read as seconds: for documents that are not evaluated.
    """

    def __init__(self, *, least: float = 0.0, templates: bool = True) -> None:
        self._least, self._templates = least, templates

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        value = node.value if isinstance(node, Scalar) else None
        is_template = isinstance(value, str) and has_template(value)
        if is_template and self._templates:
            return node
        if is_template or isinstance(value, bool) or not isinstance(value, int | float | str):
            without = "" if self._templates else ", without a template"
            expected = f"a number of seconds or a text such as 30s, 5m, 1h30m{without}"
            look.wrong_type(node, what, expected)
            return None
        length = seconds(value)
        if length is None:
            look.report.add(
                "bad-value",
                f'{what} is "{plain_text(node)[:40]}"; write seconds as a number that is not'
                " negative, or a text such as 500ms, 30s, 5m, 1h30m.",
                node.place,
            )
        elif length < self._least:
            look.report.add("bad-value", f"{what} must be at least {self._least:g} s.", node.place)
        if self._templates:
            return node
        return None if length is None else float(length)

    def schema(self) -> Schema:
        written = [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": DURATION_PATTERN},
        ]
        return {"anyOf": [*written, TEMPLATE_SCHEMA] if self._templates else written}


SPAN = Duration(templates=False)


def _wrong_rate(text: str) -> str:
    if interval(text) is not None:
        return ""
    return f'is "{text[:40]}"; write how many calls in how long, such as 10/s, 100/5m or 2.5/s.'


RATE = AsWritten(
    Text("a rate such as 10/s or 100/5m", wrong=_wrong_rate, schema={"pattern": RATE_PATTERN})
)
"""A number per time: `10/s`, `100/5m`."""


class Flag(Shape):
    """true or false."""

    def read(self, node: Node, what: str, look: Inspection) -> bool | None:
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            return node.value
        look.wrong_type(node, what, "true or false")
        return None

    def schema(self) -> Schema:
        return {"type": "boolean"}


class When(Shape):
    """A condition: a template or a plain value."""

    reads_null = True

    def read(self, node: Node, what: str, look: Inspection) -> Node | None:
        if not isinstance(node, Scalar) or node.value is None:
            look.wrong_type(node, what, 'a condition such as "{{ ctx.count > 3 }}"')
            return None
        text, why = node.value if isinstance(node.value, str) else None, ""
        if text is not None and not has_template(text):
            why = (
                f"has no {{{{ }}}}, so it is a text and never computed."
                f' Write "{{{{ {text[:60]} }}}}" if you mean an expression.'
            )
        elif text is not None and look.expressions.is_put_together(text):
            why = (
                "is a text made of several parts, and a text is true whatever the values in it are."
                ' Write all of it in one pair of braces, such as "{{ ctx.a and ctx.b == 2 }}".'
            )
        if why:
            look.report.add("condition-is-text", f"{what} {why}", node.place)
        return node

    def schema(self) -> Schema:
        return {"type": ["string", "boolean", "number"]}


class ListOf(Shape):
    """A list whose entries all have one shape."""

    def __init__(
        self, item: Shape, what: str, *, filled: bool = False, empty: str = "bad-value"
    ) -> None:
        self._item, self._what, self._filled, self._empty = item, what, filled, empty

    def nothing(self) -> tuple[Any, ...]:
        return ()

    def read(self, node: Node, what: str, look: Inspection) -> tuple[Any, ...]:
        if not isinstance(node, Sequence):
            look.wrong_type(node, what, f"a list of {self._what}")
            return ()
        if self._filled and not node.items:
            look.report.add(self._empty, f"{what} is an empty list.", node.place)
        found = [self._item.read(item, f"an entry of {what}", look) for item in node.items]
        return tuple(one for one in found if one is not None)

    def schema(self) -> Schema:
        found: Schema = {"type": "array", "items": self._item.schema()}
        return found | {"minItems": 1} if self._filled else found


class MapOf(Shape):
    """A mapping with free keys."""

    def __init__(self, value: Shape) -> None:
        self._value = value

    def nothing(self) -> dict[str, Any]:
        return {}

    def read(self, node: Node, what: str, look: Inspection) -> dict[str, Any]:
        if not isinstance(node, nodes.Mapping):
            look.wrong_type(node, what, "a mapping")
            return {}
        return {
            key: self._value.read(value, f"`{key}` of {what}", look)
            for key, value in node.entries.items()
        }

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": self._value.schema()}


class Field(msgspec.Struct, frozen=True):
    """A key of a record."""

    shape: Shape
    help: str = ""
    required: bool = False
    same_as: str | None = None
    """The key of which this is another spelling."""
    older: str = ""
    """For an older form: what to write today. Older forms are rewritten before anything is checked,
    so they are declared for editors only.
    """

    def __get__(self, instance: Placed | None, owner: type[Placed]) -> Any:
        """The value of an attribute of a `Placed` whose key is not written."""
        return self.shape.nothing()


def attribute(key: str) -> str:
    """The name of a key in Python: `in` is `in_`."""
    return f"{key}_" if keyword.iskeyword(key) else key


def field(shape: Shape | type[Placed], about: str = "", *, required: bool = False) -> Any:
    """A key of a `Placed` class."""
    return Field(shape if isinstance(shape, Shape) else shape.shape, about, required)


class Also(msgspec.Struct, frozen=True):
    """Another spelling of a key in the same class, possibly with a shape of its own."""

    main: Any
    shape: Shape | None = None


Order = tuple[tuple[str, ...], tuple[str, ...]]
"""The keys that come first in a mapping, and those that come last."""


class Placed:
    """A mapping of the document as its shape read it, with the place of every value.

    A subclass is the shape: it declares the keys with the types that they are read as, and `title`
    names it in messages. `older` are keys that are older forms, each with what to write today. Keys
    of a base class come after its own, those of `older` in between. `first` and `last` are the keys
    that `noetl fmt` puts first and last; the others stay in the order written. `schema` is what the
    JSON Schema says of it besides.

        class WrittenTimer(Placed, title="a timer"):
            id: str | None = field(Text(), "Name of the timer.", required=True)
            after: Node | None = field(Duration(), "Time since the step started.")
            delay = Also(after)
    """

    declared: ClassVar[dict[str, Field]] = {}
    shape: ClassVar[Record]
    order: ClassVar[Order] = ((), ())
    _spellings: ClassVar[dict[str, list[str]]] = {}

    def __init_subclass__(
        cls,
        *,
        title: str = "",
        older: Mapping[str, str] | None = None,
        removed: Mapping[str, str] | None = None,
        astray: Mapping[str, tuple[str, str]] | None = None,
        record: type[Record] | None = None,
        schema: Schema | None = None,
        first: tuple[str, ...] = (),
        last: tuple[str, ...] = (),
    ) -> None:
        if first or last:
            cls.order = (first, last)
        declared = {name: one for name, one in vars(cls).items() if isinstance(one, Field | Also)}
        names = {id(field): name.rstrip("_") for name, field in declared.items()}
        own: dict[str, Field] = {}
        for name, one in declared.items():
            if isinstance(one, Field):
                own[name.rstrip("_")] = one
            else:
                same = one.shape or one.main.shape
                own[name.rstrip("_")] = Field(same, same_as=names[id(one.main)])
                delattr(cls, name)
        own |= {key: Field(Anything(), older=today) for key, today in (older or {}).items()}
        for base in cls.__bases__:
            own = own | {k: v for k, v in vars(base).get("declared", {}).items() if k not in own}
        cls.declared = own
        cls._spellings = {}
        for name, field in cls.declared.items():
            cls._spellings.setdefault(attribute(field.same_as or name), []).append(name)
        cls.shape = (record or Record)(
            title, cls.declared, removed=removed, astray=astray, makes=cls, schema=schema
        )

    def __init__(
        self, node: nodes.Mapping = nodes.NOTHING, given: Mapping[str, Any] | None = None
    ) -> None:
        self.node = node
        vars(self).update(given or {})

    def __bool__(self) -> bool:
        """Whether it is written at all."""
        return self.node is not nodes.NOTHING

    @property
    def place(self) -> Place:
        return self.node.place

    def check(self, look: Inspection) -> None:
        """Check what concerns more than one key."""

    def node_of(self, attribute: str) -> Node | None:
        """The node of this attribute, under any of its spellings."""
        return nodes.field(self.node, *self._spellings[attribute])

    def place_of(self, attribute: str) -> Place | None:
        """The place of that node."""
        found = self.node_of(attribute)
        return None if found is None else found.place


class Record(Shape):
    """A mapping with known keys. `title` names it in messages: "a step"."""

    def __init__(
        self,
        title: str,
        fields: Mapping[str, Field],
        *,
        removed: Mapping[str, str] | None = None,
        astray: Mapping[str, tuple[str, str]] | None = None,
        makes: Callable[..., Any] | None = None,
        schema: Schema | None = None,
    ) -> None:
        """`makes` is what the mapping is read as: a `Placed` class, or a function that takes plain
        values by key. Without it, the node stays what it is.
        """
        self.title = title
        self.fields = fields
        self.removed = removed or {}
        self.astray = astray or {}
        """Keys that belong elsewhere: key → (problem code, where it belongs)."""
        self._makes, self._schema = makes, schema or {}
        self._placed = isinstance(makes, type) and issubclass(makes, Placed)
        self._nothing = makes() if makes is not None and self._placed else None
        self._main = {key: field.same_as or key for key, field in fields.items()}
        self.attributes = {key: attribute(main) for key, main in self._main.items()}

    def nothing(self) -> Any:
        return self._nothing

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        if not isinstance(node, nodes.Mapping):
            look.wrong_type(node, what, "a mapping", self._how_to_write(node, look))
            return None
        given: dict[str, Any] = {}
        for key, value in node.entries.items():
            field = self.fields.get(key)
            if field is None or field.older:
                self.unknown(key, node, look)
            elif not nodes.is_null(value) or field.required or field.shape.reads_null:
                # An empty value counts as not written, except for a required key.
                read = field.shape.read(value, f"`{key}` of {self.title}", look)
                if read is not None:
                    given[self.attributes[key]] = read
        self.check_keys(node, look)
        found = self.made(node, given)
        if self._placed:
            found.check(look)
        return found

    def _how_to_write(self, node: Node, look: Inspection) -> str:
        """The mapping to write instead, with the value where it certainly belongs: under the one
        required key, or under the key that has it among its words. A guess might compile, and mean
        something else.
        """
        required = [key for key, field in self.fields.items() if field.required]
        first = next(iter(self.fields), "")
        if isinstance(node, Sequence) and first and isinstance(self.fields[first].shape, ListOf):
            return f" Put the list under `{first}:`."
        text = nodes.text_of(node)
        homes = required or [
            key
            for key in self._main_keys()
            if isinstance(shape := self.fields[key].shape, OneOf) and text in shape.words
        ]
        example = dict.fromkeys(required, "…")
        if len(homes) == 1 and text is not None and self._takes(homes[0], node, look):
            example[homes[0]] = _inline(node)
        if not example:
            return self._known_keys()
        pairs = ", ".join(f"{key}: {value}" for key, value in example.items())
        return f" Write `{{{pairs}}}`."

    def _takes(self, key: str, value: Node, look: Inspection) -> bool:
        silent = look.silent()
        self.fields[key].shape.read(value, key, silent)
        return not silent.report.has_errors

    def _main_keys(self) -> list[str]:
        """The keys of today, each in its first spelling."""
        return [
            key for key, field in self.fields.items() if field.same_as is None and not field.older
        ]

    def _known_keys(self) -> str:
        main = self._main_keys()
        return f" It may have: {', '.join(main)}." if main else " It has no keys."

    def made(self, node: nodes.Mapping, given: dict[str, Any]) -> Any:
        """The object for a mapping with these values."""
        if self._makes is None:
            return node
        if self._placed:
            return self._makes(node, given)
        if self._makes is not dict and any(
            field.required and key not in given for key, field in self.fields.items()
        ):
            return None
        return self._makes(
            **{
                key: nodes.plain(value) if isinstance(value, Node) else value
                for key, value in given.items()
            }
        )

    def check_keys(self, node: nodes.Mapping, look: Inspection) -> None:
        """Report missing keys, and keys in two spellings."""
        written = refuse_twice(node, self._main, self.title, look)
        if (self.removed.keys() | self.astray.keys()) & node.entries.keys():
            return  # the old key is the mistake; a missing new one is not a second mistake
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
                + (
                    hint
                    or self.belongs(key)
                    or look.report.suggest(key, known)
                    or self._known_keys()
                ),
                place,
            )

    def belongs(self, key: str) -> str:
        """The hint that a key stands further in, under `spec` or its `policy`; empty if it does
        not.
        """
        return next(
            (
                f" It belongs in `{'.'.join(path)}`: `{_nested(path, key)}`."
                for path, record in self._further_in()
                if key in record.fields and not record.fields[key].older
            ),
            "",
        )

    def _further_in(self) -> Iterator[tuple[tuple[str, ...], Record]]:
        spec = _record_in(self.fields.get("spec"))
        policy = _record_in((spec or self).fields.get("policy"))
        if spec is not None:
            yield ("spec",), spec
        if policy is not None:
            yield ("spec", "policy") if spec is not None else ("policy",), policy

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
        return found | self._schema


def _record_in(field: Field | None) -> Record | None:
    shape = field.shape if field is not None and not field.older else None
    if isinstance(shape, Defined):
        shape = shape.defined
    return shape if isinstance(shape, Record) else None


def _nested(path: tuple[str, ...], key: str) -> str:
    """How a key is written under this path: `spec: {policy: {key: …}}`."""
    *outer, inner = path
    text = f"{inner}: {{{key}: …}}"
    for name in reversed(outer):
        text = f"{name}: {{{text}}}"
    return text


def _described(field: Field) -> Schema:
    if field.older:
        return {"deprecated": True, "description": f"Older form: {field.older}"}
    schema = field.shape.schema()
    if not field.help:
        return schema
    if "$ref" in schema:
        return {"allOf": [schema], "description": field.help}
    return schema | {"description": field.help}


def _inline(node: Node) -> str:
    """A text as written in braces; `…` if that is long or hard to read."""
    text = plain_text(node)
    if re.fullmatch(r"[\w./@+-]{1,40}", text) and not (isinstance(node, Scalar) and node.quoted):
        return text
    return "…" if len(text) > 40 or re.search(r'["\\`\n]', text) else f'"{text}"'


class Either(Shape):
    """One of several shapes, chosen by the form of the node."""

    def __init__(self, expected: str, *choices: tuple[Callable[[Node], bool], Shape]) -> None:
        self._expected = expected
        self._choices = choices

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        for fits, shape in self._choices:
            if fits(node):
                return shape.read(node, what, look)
        look.wrong_type(node, what, self._expected)
        return None

    def schema(self) -> Schema:
        return {"anyOf": [shape.schema() for _, shape in self._choices]}


class Made(Around):
    """A shape whose value is converted."""

    def __init__(self, shape: Shape, make: Callable[[Any], Any]) -> None:
        super().__init__(shape)
        self._make = make

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        found = super().read(node, what, look)
        return None if found is None else self._make(found)


class OrOlder(Around):
    """A shape with an older form, which is rewritten before anything is read and declared for
    editors only.
    """

    def __init__(self, shape: Shape, older: Schema, instead: str = "") -> None:
        super().__init__(shape)
        self._older = older | {"deprecated": True} | ({"description": instead} if instead else {})

    def nothing(self) -> Any:
        return self._shape.nothing()

    def schema(self) -> Schema:
        today = super().schema()
        return {"anyOf": [*today.get("anyOf", [today]), self._older]}


class Defined(Shape):
    """A reference to a shape by name, so that shapes can contain themselves."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def defined(self) -> Shape:
        return DEFINITIONS[self._name]

    def nothing(self) -> Any:
        return self.defined.nothing()

    def read(self, node: Node, what: str, look: Inspection) -> Any:
        return self.defined.read(node, what, look)

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self._name}"}


DEFINITIONS: dict[str, Shape] = {}
"""Shapes that others refer to by name; in the JSON Schema they stand under `$defs`."""


def define(name: str, shape: Shape) -> Defined:
    """Name a shape. Returns the reference to it."""
    DEFINITIONS[name] = shape
    return Defined(name)


def refuse_twice(
    node: nodes.Mapping, main: Mapping[str, str], title: str, look: Inspection
) -> set[str]:
    """Report keys in two spellings. Returns what is written, each in its main spelling."""
    written: dict[str, str] = {}
    for key, value in node.entries.items():
        if key not in main or (main[key] in written and nodes.is_null(value)):
            continue
        known = written.get(main[key])
        if known is not None and not nodes.is_null(node.entries[known]):
            look.report.add(
                "conflicting-keys",
                f"`{key}` and `{known}` of {title} are the same thing. Keep one of them.",
                node.keys[key],
            )
        written[main[key]] = key
    return set(written)


def refuse_both(
    node: nodes.Mapping, one: tuple[str, ...], other: tuple[str, ...], what: str, look: Inspection
) -> None:
    """Report a mapping with keys of both groups, which say the same thing."""
    written = nodes.written(node)
    both = [[key for key in keys if key in written] for keys in (one, other)]
    if all(both):
        first, second = sorted((both[0][0], both[1][0]), key=lambda key: node.keys[key])
        look.report.add(
            "conflicting-keys",
            f"`{first}` and `{second}` both say {what}. Keep one of them.",
            node.keys[second],
        )


def warn_unused(node: nodes.Mapping, keys: Iterable[str], why: str, look: Inspection) -> None:
    """Report the keys of a mapping that others in it leave without effect."""
    for key in keys:
        if not nodes.is_null(node.entries.get(key)):
            look.report.add("unused-key", f"`{key}` has no effect {why}", node.keys[key])


def is_text(node: Node) -> bool:
    return nodes.text_of(node) is not None


def is_scalar(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is not None


def is_list(node: Node) -> bool:
    return isinstance(node, Sequence)


def is_mapping(node: Node) -> bool:
    return isinstance(node, nodes.Mapping)


def has_key(*keys: str) -> Callable[[Node], bool]:
    """A test for mappings with one of these keys."""
    return lambda node: isinstance(node, nodes.Mapping) and any(k in node.entries for k in keys)
