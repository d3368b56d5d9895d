"""JSON Schema (draft 2020-12) for results: whether a schema is valid, whether a value fits it, and
whether a new version breaks readers of the old one.

Schemas come from users, so they are bounded: `$ref` stays within the document, patterns are RE2,
size and depth are limited, and a check counts the values it visits. A schema is compiled once into
functions; `docs/decisions/0028-own-schema-validator.md` says why this validator is our own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import lru_cache, partial
from typing import Any

import msgspec

from noetl.model.patterns import BadPattern, compiled_pattern
from noetl.model.spelling import did_you_mean
from noetl.model.toolshape import Each, Yielded

BYTES_MAX = 256 * 1024
DEPTH_MAX = 64
LOOKS_MAX = 2_000_000
"""How many values one check may visit. A result of some megabytes has far fewer."""
DATA_DEPTH_MAX = 400

Path = tuple[str | int, ...]
Wrong = tuple[Path, str]
"""A place in the data, and what is wrong there."""
Check = Callable[[Any, Path, "_Looks"], Wrong | None]

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_ANNOTATIONS = {
    *("$schema", "$comment", "title", "description", "default", "examples", "deprecated"),
    *("readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType"),
}
_ONE = {"items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"}
_LISTS = {"prefixItems", "allOf", "anyOf", "oneOf"}
_MAPS = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
_COUNTS = {
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OTHERS = {
    *("type", "enum", "const", "pattern", "uniqueItems", "required", "dependentRequired", "$ref")
}
KEYWORDS = _ANNOTATIONS | _ONE | _LISTS | _MAPS | _COUNTS | _NUMBERS | _OTHERS
_REFUSED = {
    "unevaluatedProperties": "write `additionalProperties`.",
    "unevaluatedItems": "write `items` beside `prefixItems`.",
    "$dynamicRef": "write `$ref`.",
    "$anchor": "refer by a path: `$ref: '#/$defs/name'`.",
    "$id": "a schema is known by its path in the catalog.",
}


class _Looks:
    """How many values a check may still visit."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LOOKS_MAX


class TooMuch(Exception):
    """The value is too large or too deep to be checked against this schema."""


# --- Whether a schema is valid -----------------------------------------------------------------


def problems(schema: Any, *, extended: bool = False) -> Iterator[Wrong]:
    """Everything that is wrong with a schema. An `extended` one may have keywords that JSON Schema
    does not have, for others to read; here they mean nothing.
    """
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError):
        yield (), "a schema is plain JSON."
        return
    if size > BYTES_MAX:
        yield (), f"the schema has {size} bytes; at most {BYTES_MAX} are allowed."
        return
    yield from _problems(schema, (), schema, extended)


def _problems(schema: Any, at: Path, root: Any, extended: bool) -> Iterator[Wrong]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield at, "a schema is a mapping, true or false."
        return
    if len(at) > DEPTH_MAX:
        yield at, f"the schema is nested deeper than {DEPTH_MAX}."
        return
    for key, value in schema.items():
        here = (*at, key)
        if key in _REFUSED:
            yield here, f"`{key}` is not supported: {_REFUSED[key]}"
        elif key not in KEYWORDS:
            if not (extended or str(key).startswith("x-")):
                yield here, f"JSON Schema has no `{key}`.{did_you_mean(str(key), KEYWORDS)}"
        elif problem := _wrong_value(key, value, root):
            yield here, problem
        else:
            for below, part in _below(key, value):
                yield from _problems(part, (*here, *below), root, extended)


def _below(key: str, value: Any) -> Iterator[tuple[Path, Any]]:
    """The schemas under a keyword."""
    if key in _ONE:
        yield (), value
    elif key in _LISTS and isinstance(value, list):
        yield from (((index,), part) for index, part in enumerate(value))
    elif key in _MAPS and isinstance(value, dict):
        yield from (((name,), part) for name, part in value.items())


def _wrong_value(key: str, value: Any, root: Any) -> str:
    texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    match key:
        case "type":
            named = value if isinstance(value, list) else [value]
            wrong = [one for one in named if one not in TYPES]
            if wrong or not named:
                hint = did_you_mean(str(wrong[0]), TYPES) if wrong else ""
                return f"`type` is one of {', '.join(TYPES)}, or a list of them.{hint}"
        case "required" if not texts:
            return "`required` is a list of names."
        case "enum" if not isinstance(value, list):
            return "`enum` is a list of values."
        case "uniqueItems" if not isinstance(value, bool):
            return "`uniqueItems` is true or false."
        case "pattern" if not isinstance(value, str):
            return "`pattern` is a text."
        case "pattern":
            return _bad_pattern(value)
        case "patternProperties" if isinstance(value, dict):
            return next(filter(None, (_bad_pattern(str(name)) for name in value)), "")
        case "dependentRequired" if not isinstance(value, dict):
            return "`dependentRequired` maps names to lists of names."
        case "$ref":
            if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
                return "`$ref` refers to this document only: `#/$defs/name`. Nothing is fetched."
            if _target(root, value) is None:
                return f"there is nothing at {value[:80]}."
    if key in _COUNTS and (not _is_whole(value) or value < 0):
        return f"`{key}` is a whole number of at least 0."
    if key in _NUMBERS and not _is_number(value):
        return f"`{key}` is a number."
    if key == "multipleOf" and value <= 0:
        return "`multipleOf` is greater than 0."
    if key in _LISTS and not (isinstance(value, list) and value):
        return f"`{key}` is a list of schemas."
    if key in _MAPS and not isinstance(value, dict):
        return f"`{key}` maps names to schemas."
    return ""


def _bad_pattern(pattern: str) -> str:
    try:
        compiled_pattern(pattern)
    except BadPattern as error:
        return f"the pattern cannot be used (RE2): {error}"
    return ""


def _target(root: Any, reference: str) -> Any:
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


# --- Whether a value fits ----------------------------------------------------------------------


class Schema:
    """A compiled schema. It must be valid."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._refs: dict[str, Check] = {}
        self._check = self._compiled(schema)

    def wrong(self, value: Any) -> str | None:
        """What is wrong with a value, with its place; None if it fits."""
        try:
            found = self._check(value, (), _Looks())
        except (TooMuch, RecursionError):
            return "it is too large or too deep to be checked."
        return None if found is None else f"{place_in(found[0])} {found[1]}"

    def _compiled(self, schema: Any) -> Check:
        if schema is True:
            return lambda value, at, looks: None
        if schema is False:
            return lambda value, at, looks: (at, "is not allowed.")
        made = (self._keyword(key, value, schema) for key, value in schema.items())
        checks = [one for one in made if one is not None]

        def check(value: Any, at: Path, looks: _Looks) -> Wrong | None:
            looks.left -= 1
            if looks.left < 0 or len(at) > DATA_DEPTH_MAX:
                raise TooMuch
            return _all(checks, value, at, looks)

        return check

    def _keyword(self, key: str, given: Any, schema: Mapping[str, Any]) -> Check | None:
        match key:
            case "type":
                return partial(_has_type, given if isinstance(given, list) else [given])
            case "enum" | "const":
                return partial(_one_of, given if key == "enum" else [given])
            case "pattern":
                return partial(_matches, compiled_pattern(given), given)
            case "required":
                return partial(_has_keys, given)
            case "dependentRequired":
                return partial(_dependent_keys, given)
            case "uniqueItems" if given:
                return _unique
            case "properties" | "patternProperties" | "additionalProperties":
                first = next(one for one in schema if one in _OBJECT)
                return self._object(schema) if key == first else None
            case "items" | "prefixItems":
                first = next(one for one in schema if one in ("items", "prefixItems"))
                return self._array(schema) if key == first else None
            case "contains":
                least, most = schema.get("minContains", 1), schema.get("maxContains", math.inf)
                return partial(_contains, self._compiled(given), least, most)
            case "propertyNames":
                return partial(_named, self._compiled(given))
            case "dependentSchemas":
                by_name = {name: self._compiled(one) for name, one in given.items()}
                return partial(_dependent, by_name)
            case "allOf":
                return partial(_all, [self._compiled(one) for one in given])
            case "anyOf" | "oneOf":
                choices = [self._compiled(one) for one in given]
                return partial(_any_or_one, choices, key == "oneOf")
            case "not":
                return partial(_none, self._compiled(given))
            case "if":
                return self._condition(schema)
            case "$ref":
                return self._reference(given)
        if key in _NUMBERS:
            return partial(_bound, key, given)
        return partial(_size, key, given) if key in _AMOUNTS else None

    def _reference(self, reference: str) -> Check:
        def check(value: Any, at: Path, looks: _Looks) -> Wrong | None:
            made = self._refs.get(reference)
            if made is None:
                made = self._refs[reference] = self._compiled(_target(self._root, reference))
            looks.left -= 1
            if looks.left < 0:
                raise TooMuch
            return made(value, at, looks)

        return check

    def _object(self, schema: Mapping[str, Any]) -> Check:
        known = {name: self._compiled(one) for name, one in schema.get("properties", {}).items()}
        patterns = [
            (compiled_pattern(name), self._compiled(one))
            for name, one in schema.get("patternProperties", {}).items()
        ]
        written = schema.get("additionalProperties", True)
        others = None if written is True else self._compiled(written)

        def check(value: Any, at: Path, looks: _Looks) -> Wrong | None:
            if not isinstance(value, dict):
                return None
            for name, part in value.items():
                one = known.get(name)
                if one is not None and (found := one(part, (*at, name), looks)) is not None:
                    return found
                is_known = one is not None
                for pattern, below in patterns:
                    if pattern.search(name):
                        is_known = True
                        if (found := below(part, (*at, name), looks)) is not None:
                            return found
                if not is_known and others is not None:
                    if written is False:
                        hint = did_you_mean(name, known)
                        return (*at, name), f"is not in the schema.{hint}"
                    if (found := others(part, (*at, name), looks)) is not None:
                        return found
            return None

        return check

    def _array(self, schema: Mapping[str, Any]) -> Check:
        first = [self._compiled(one) for one in schema.get("prefixItems", ())]
        rest = self._compiled(schema["items"]) if "items" in schema else None

        def check(value: Any, at: Path, looks: _Looks) -> Wrong | None:
            if not isinstance(value, list):
                return None
            for index, part in enumerate(value):
                one = first[index] if index < len(first) else rest
                if one is not None and (found := one(part, (*at, index), looks)) is not None:
                    return found
            return None

        return check

    def _condition(self, schema: Mapping[str, Any]) -> Check:
        when = self._compiled(schema["if"])
        then, otherwise = (self._compiled(schema.get(key, True)) for key in ("then", "else"))

        def check(value: Any, at: Path, looks: _Looks) -> Wrong | None:
            return (then if when(value, at, looks) is None else otherwise)(value, at, looks)

        return check


_OBJECT = ("properties", "patternProperties", "additionalProperties")


@lru_cache(maxsize=1000)
def _from_text(text: bytes) -> Schema:
    return Schema(msgspec.json.decode(text))


def compiled(schema: Any) -> Schema:
    """A valid schema, compiled; equal schemas are compiled once."""
    return _from_text(msgspec.json.encode(schema, order="sorted"))


def place_in(path: Path) -> str:
    """A place in data, as in `orders[3].price`."""
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    return f"`{text.removeprefix('.')[:200]}`" if text else "the value"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


_HAS_TYPE: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": _is_whole,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    return next((name for name in TYPES if _HAS_TYPE[name](value)), type(value).__name__)


# A check takes what its keyword says, then a value, its place, and the looks that are left.


def _has_type(names: list[str], value: Any, at: Path, looks: _Looks) -> Wrong | None:
    for name in names:
        if _HAS_TYPE[name](value):
            return None
    return at, f"is {type_of(value)}, not {' or '.join(names)}."


def _same(one: Any, other: Any) -> bool:
    """Equality in JSON: 1 equals 1.0, and true does not equal 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _one_of(values: list[Any], value: Any, at: Path, looks: _Looks) -> Wrong | None:
    looks.left -= len(values)
    if any(_same(value, one) for one in values):
        return None
    shown = ", ".join(msgspec.json.encode(one).decode()[:40] for one in values[:10])
    return at, f"is not {'one of ' if len(values) > 1 else ''}{shown}."


def _matches(pattern: Any, written: str, value: Any, at: Path, looks: _Looks) -> Wrong | None:
    if not isinstance(value, str) or pattern.search(value):
        return None
    return at, f"does not match {written[:80]}."


def _has_keys(names: list[str], value: Any, at: Path, looks: _Looks) -> Wrong | None:
    for name in names if isinstance(value, dict) else ():
        if name not in value:
            return at, f"lacks `{name}`."
    return None


def _dependent_keys(
    by_name: dict[str, list[str]], value: Any, at: Path, looks: _Looks
) -> Wrong | None:
    for name, needed in by_name.items() if isinstance(value, dict) else ():
        for other in needed if name in value else ():
            if other not in value:
                return at, f"has `{name}` and lacks `{other}`."
    return None


def _contains(
    inner: Check, least: float, most: float, value: Any, at: Path, looks: _Looks
) -> Wrong | None:
    if not isinstance(value, list):
        return None
    count = sum(inner(part, at, looks) is None for part in value)
    if least <= count <= most:
        return None
    return at, f"has {count} elements that fit `contains`."


def _named(inner: Check, value: Any, at: Path, looks: _Looks) -> Wrong | None:
    for name in value if isinstance(value, dict) else ():
        if (found := inner(name, at, looks)) is not None:
            return at, f'has the name "{name[:60]}", which {found[1]}'
    return None


def _dependent(by_name: dict[str, Check], value: Any, at: Path, looks: _Looks) -> Wrong | None:
    for name, one in by_name.items() if isinstance(value, dict) else ():
        if name in value and (found := one(value, at, looks)) is not None:
            return found
    return None


def _frozen(value: Any) -> Any:
    """A hashable value that is equal for equal JSON."""
    if isinstance(value, dict):
        return frozenset((key, _frozen(part)) for key, part in value.items())
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return (value, isinstance(value, bool))


def _unique(value: Any, at: Path, looks: _Looks) -> Wrong | None:
    if not isinstance(value, list):
        return None
    looks.left -= len(value)
    seen: set[Any] = set()
    for index, part in enumerate(value):
        frozen = _frozen(part)
        if frozen in seen:
            return (*at, index), "occurs twice."
        seen.add(frozen)
    return None


_AMOUNTS: dict[str, tuple[type[Sized], str]] = {
    **dict.fromkeys(("minLength", "maxLength"), (str, "characters")),
    **dict.fromkeys(("minItems", "maxItems"), (list, "elements")),
    **dict.fromkeys(("minProperties", "maxProperties"), (dict, "keys")),
}


def _size(key: str, bound: Any, value: Any, at: Path, looks: _Looks) -> Wrong | None:
    kind, what = _AMOUNTS[key]
    if not isinstance(value, kind):
        return None
    amount, is_least = len(value), key.startswith("min")
    if amount >= bound if is_least else amount <= bound:
        return None
    return at, f"has {amount} {what}; the {'minimum' if is_least else 'maximum'} is {bound}."


_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "multipleOf": lambda value, of: _is_multiple(value, of),
}


def _bound(key: str, bound: Any, value: Any, at: Path, looks: _Looks) -> Wrong | None:
    if not _is_number(value) or _BOUNDS[key](value, bound):
        return None
    return at, f"is {value}, which breaks `{key}: {bound}`."


def _is_multiple(value: float, of: float) -> bool:
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    quotient = value / of
    return math.isfinite(quotient) and quotient == round(quotient)


def _all(checks: list[Check], value: Any, at: Path, looks: _Looks) -> Wrong | None:
    for one in checks:
        if (found := one(value, at, looks)) is not None:
            return found
    return None


def _any_or_one(
    checks: list[Check], exactly: bool, value: Any, at: Path, looks: _Looks
) -> Wrong | None:
    nearest: Wrong | None = None
    fits = 0
    for one in checks:
        found = one(value, at, looks)
        if found is None:
            fits += 1
            if not exactly:
                return None
        elif nearest is None or len(found[0]) > len(nearest[0]):
            nearest = found
    if fits == 1:
        return None
    if fits:
        return at, f"fits {fits} schemas of `oneOf`, not one."
    return nearest


def _none(inner: Check, value: Any, at: Path, looks: _Looks) -> Wrong | None:
    return (at, "is what `not` excludes.") if inner(value, at, looks) is None else None


# --- What a schema tells about a value ---------------------------------------------------------


def yielded(schema: Any, root: Any = None, depth: int = 0) -> Yielded:
    """The keys of a value that fits; None where the schema does not list them all."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > DEPTH_MAX:
        return None
    if "$ref" in schema:
        return yielded(_target(root, schema["$ref"]), root, depth + 1)
    if _BRANCHES & schema.keys():
        return None
    if isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
        return Each(yielded(schema["items"], root, depth + 1))
    is_listed = schema.get("additionalProperties", False) is False
    if "properties" in schema and is_listed and "patternProperties" not in schema:
        parts = schema["properties"].items()
        return {name: yielded(part, root, depth + 1) for name, part in parts}
    return None


_BRANCHES = {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"}


# --- Whether a new version breaks its readers --------------------------------------------------


def breaks(old: Any, new: Any) -> Iterator[Wrong]:
    """What readers who rely on `old` lose with `new`.

    Readers rely on which keys are always present and which values they may meet. So a new version
    may demand more (more required keys, fewer types, tighter bounds) and may add keys; it may not
    demand less. Combinations of schemas are compared as a whole: if they differ, they break.
    """
    yield from _breaks(old, new, (), old, new, set())


def _breaks(
    old: Any, new: Any, at: Path, old_root: Any, new_root: Any, seen: set[tuple[int, int]]
) -> Iterator[Wrong]:
    if (id(old), id(new)) in seen:
        return
    seen.add((id(old), id(new)))
    old, new = _resolved(old, old_root), _resolved(new, new_root)
    if not isinstance(old, dict) or new is False:
        return  # the old schema promised nothing, or nothing fits the new one
    if new is True:
        new = {}
    yield from _value_breaks(old, new, at)
    lost = [name for name in old.get("required", ()) if name not in new.get("required", ())]
    properties = new.get("properties", {})
    for name in lost:
        yield (*at, name), "is no longer required."
    for name, part in old.get("properties", {}).items():
        if name not in properties:
            if name not in lost:
                yield (*at, name), "is no longer in the schema."
        else:
            yield from _breaks(part, properties[name], (*at, name), old_root, new_root, seen)
    others = [new.get("additionalProperties", True)]
    others += [part for name, part in properties.items() if name not in old.get("properties", {})]
    for key, place, inside in (
        ("items", 0, [new.get("items", True)]),
        ("additionalProperties", "*", others),
    ):
        for part in inside if isinstance(old.get(key), dict) else ():
            yield from _breaks(old[key], part, (*at, place), old_root, new_root, seen)
    for key in sorted(_WHOLE & (old.keys() | new.keys())):
        if key in old and old[key] != new.get(key):
            yield at, f"has a different `{key}`, which cannot be compared."


_WHOLE = _BRANCHES | {
    *("patternProperties", "prefixItems", "contains", "propertyNames", "pattern"),
    *("dependentRequired", "multipleOf", "uniqueItems"),
}


def _resolved(schema: Any, root: Any) -> Any:
    """The schema that `$ref` stands for, with what is written beside it."""
    for _ in range(DEPTH_MAX):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = _target(root, schema["$ref"])
        if beside and isinstance(schema, dict):
            schema = {**schema, **beside}
    return schema


def _value_breaks(old: dict[str, Any], new: dict[str, Any], at: Path) -> Iterator[Wrong]:
    promised, given = _values(old), _values(new)
    had, has = _types(old), _types(new) if given is None else set(map(type_of, given))
    if more := sorted(has - had - ({"integer"} if "number" in had else set())):
        yield at, f"may be {' or '.join(more)} now, not only {' or '.join(sorted(had))}."
    if promised is not None:
        if given is None:
            yield at, "may have values that were not listed before."
        elif other := [one for one in given if not any(_same(one, had) for had in promised)]:
            yield at, f"may be {msgspec.json.encode(other[0]).decode()[:40]} now."
    for key in sorted((_COUNTS | _NUMBERS) - {"multipleOf"}):
        if key not in old:
            continue
        bound, is_least = new.get(key), key.startswith(("min", "exclusiveMin"))
        if bound is None or (bound < old[key] if is_least else bound > old[key]):
            yield at, f"has a weaker `{key}`."


def _types(schema: dict[str, Any]) -> set[str]:
    written = schema.get("type", list(TYPES))
    found = set(written if isinstance(written, list) else [written])
    return found | {"integer"} if "number" in found else found


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")
