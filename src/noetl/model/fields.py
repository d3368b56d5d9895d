"""Typed fields: questions of forms and inputs of playbooks, and whether values fit them.

Values come from terminals, browsers and programs, so text is converted to the type of its field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import msgspec

from noetl.model.net import FieldType, FormField, Values
from noetl.model.patterns import BadPattern, compiled_pattern
from noetl.model.spelling import did_you_mean

YES = frozenset({"true", "yes", "on", "1", "y"})
NO = frozenset({"false", "no", "off", "0", "n"})
_CREDENTIAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@-]{0,127}")
INTEGER_END = 1 << 63
"""Larger integers cannot be stored as such."""


class Unfit(Exception):
    """A value that its field cannot take; the text says what it takes."""


class Answered(msgspec.Struct, frozen=True):
    """The outcome of an answer: its values, or everything that is wrong with it."""

    values: Values
    problems: tuple[str, ...] = ()


def answer(form: tuple[FormField, ...], data: Any) -> Answered:
    """Check an answer against a form."""
    given = {} if data is None else data
    if not isinstance(given, dict):
        return Answered({}, (f"an answer is a mapping of fields to values, not {_shown(data)}",))
    return _all_fitted("field", form, given, {}, given, [field.name for field in form])


def taken_in(
    inputs: tuple[FormField, ...], workload: Values, given: Iterable[str], declared: Iterable[str]
) -> Answered:
    """Check a workload against the inputs of its playbook. Returns it with each value converted.

    `given` are the names in the request and `declared` those of the playbook's own workload: names
    other than these and the inputs are refused.
    """
    known = sorted({field.name for field in inputs} | set(declared))
    return _all_fitted("input", inputs, workload, dict(workload), given, known)


def _all_fitted(
    what: str,
    fields: tuple[FormField, ...],
    data: Values,
    values: Values,
    given: Iterable[str],
    known: list[str],
) -> Answered:
    """The `values` with those of the fields among them, or everything that is wrong."""
    problems = [
        f'there is no {what} "{name}".{did_you_mean(name, known)}'
        f" The {what}s are: {', '.join(known)}"
        for name in given
        if name not in known
    ]
    for field in fields:
        try:
            values[field.name] = fitted(field, data.get(field.name))
        except Unfit as error:
            problems.append(f'{what} "{field.name}" {error}')
    return Answered(values, tuple(problems))


def missing(inputs: tuple[FormField, ...], workload: Values) -> list[FormField]:
    """Required inputs that are missing."""
    return [
        field
        for field in inputs
        if field.required and field.default is None and workload.get(field.name) in (None, "")
    ]


def fitted(field: FormField, given: Any) -> Any:
    """The value of one field. Raises Unfit. If it is absent or empty, it is the default."""
    if given is None or (given == "" and field.type != "text"):
        given = field.default
    if given is None:
        if field.required:
            raise Unfit(f"is missing; it takes {wanted(field)}")
        return None
    if field.type == "text" and given == "" and field.required:
        raise Unfit("must not be empty")
    try:
        value = _TYPES[field.type].read(field, given)
    except ValueError:
        if field.type == "secret":
            raise Unfit(f"takes {wanted(field)}; what was given is not shown") from None
        raise Unfit(f"takes {wanted(field)}, not {_shown(given)}") from None
    _bounded(field, value)
    return value


def _bounded(field: FormField, value: Any) -> None:
    """Raises Unfit for a value outside `min` and `max`, or one that `pattern` does not match."""
    if field.min is None and field.max is None and field.pattern is None:
        return
    measured: Any = value
    unit = ""
    if field.type in _MEASURED:
        measured, unit = len(value), " characters" if isinstance(value, str) else " elements"
    elif field.type == "datetime":
        measured = _instant(value)
    for bound, is_low in ((field.min, True), (field.max, False)):
        if bound is None:
            continue
        limit = _limit(field, bound)
        if (measured < limit) if is_low else (measured > limit):
            least = "at least" if is_low else "at most"
            raise Unfit(f"must be {least} {bound}{unit}, not {_shown(measured if unit else value)}")
    if field.pattern is None or not isinstance(value, str):
        return
    if compiled_pattern(field.pattern).fullmatch(value) is None:
        raise Unfit(f"must match {field.pattern}, which {_shown(value)} does not")


def wrong_bounds(field: FormField) -> str | None:
    """What is wrong with `min`, `max` and `pattern` themselves."""
    read: list[Any] = []
    for word, bound in (("min", field.min), ("max", field.max)):
        if bound is None:
            continue
        if field.type in ("boolean", "choice", "object", "json", "secret"):
            return f"`{word}` means nothing for {wanted(field)}."
        try:
            read.append(_limit(field, bound))
        except ValueError:
            what = "a whole number" if field.type in _MEASURED else wanted(field)
            return f"`{word}` is {_shown(bound)}, and must be {what}."
    if len(read) == 2 and read[0] > read[1]:
        return f"`min` is {_shown(field.min)} and `max` is {_shown(field.max)}: nothing fits both."
    if field.pattern is not None:
        if field.type not in ("text", "file"):
            return "`pattern` is for texts."
        try:
            compiled_pattern(field.pattern)
        except BadPattern as error:
            return f"`pattern` is not a regular expression: {error}."
    return None


def _limit(field: FormField, bound: Any) -> Any:
    """`min` or `max` as something to compare with. Raises ValueError."""
    if field.type in _MEASURED:
        return _integer(field, bound)
    value = _TYPES[field.type].read(field, bound)
    return _instant(value) if field.type == "datetime" else value


def wanted(field: FormField) -> str:
    """What the field takes, in words."""
    if field.type == "choice":
        return "one of " + ", ".join(str(option) for option in options(field))
    return _TYPES[field.type].wanted


def options(field: FormField) -> list[Any]:
    """The options; each is a value or `{value, label}`."""
    found = field.options
    if isinstance(found, dict):
        return list(found)
    if not isinstance(found, list):
        return []
    return [
        option["value"] if isinstance(option, dict) and "value" in option else option
        for option in found
    ]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# --- Values by type; each raises ValueError for what it cannot read -----------------------------


def _text(_: FormField, given: Any) -> str:
    if isinstance(given, dict | list | bool):
        raise ValueError
    return str(given)


def _number(_: FormField, given: Any) -> float | int:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError
    try:
        whole = int(given) if isinstance(given, str) else given
    except ValueError:
        whole = float(given)
    if isinstance(whole, int) and abs(whole) < INTEGER_END:
        return whole
    return _finite(float(whole))


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(field: FormField, given: Any) -> int:
    number = _number(field, given)
    if number != int(number) or abs(number) >= INTEGER_END:
        raise ValueError
    return int(number)


def _boolean(_: FormField, given: Any) -> bool:
    word = given.strip().lower() if isinstance(given, str) else given
    if word is True or word in YES:
        return True
    if word is False or word in NO:
        return False
    raise ValueError


def _choice(field: FormField, given: Any) -> Any:
    """The option itself: people on a terminal can only write its text."""
    choices = options(field)
    if given in choices:
        return choices[choices.index(given)]
    for option in choices:
        if str(option) == str(given):
            return option
    raise ValueError


def _date(_: FormField, given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError
    return date.fromisoformat(given.strip()).isoformat()


def _datetime(_: FormField, given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError
    return datetime.fromisoformat(given.strip()).isoformat().replace("+00:00", "Z")


def _instant(written: Any) -> datetime:
    """A moment to compare with others; without a zone it is UTC."""
    moment = datetime.fromisoformat(str(written))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _container(kind: type) -> Callable[[FormField, Any], Any]:
    """Takes a list, or a mapping, or the JSON text of one."""

    def read(_: FormField, given: Any) -> Any:
        try:
            found = msgspec.json.decode(given) if isinstance(given, str) else given
        except msgspec.DecodeError:
            raise ValueError from None
        if not isinstance(found, kind):
            raise ValueError
        return found

    return read


def _secret(_: FormField, given: Any) -> str:
    if not isinstance(given, str) or not _CREDENTIAL.fullmatch(given):
        raise ValueError
    return given


def _file(_: FormField, given: Any) -> Any:
    if isinstance(given, str) and given.strip() and "\0" not in given:
        return given
    if isinstance(given, dict) and "_ref" in given:
        return given  # a result that was kept
    raise ValueError


class _Type(NamedTuple):
    """What a type of field takes, how that is read, and how JSON Schema says it."""

    read: Callable[[FormField, Any], Any]
    wanted: str
    schema: dict[str, Any]
    bounds: tuple[str, str] | None = None
    """What JSON Schema calls `min` and `max`."""


_LENGTHS = ("minLength", "maxLength")
_AMOUNTS = ("minimum", "maximum")
_MOMENT = "a moment like 2030-01-31T12:00:00Z"
_CREDENTIAL_NAME = {"type": "string", "description": "The name of a stored credential."}
_TYPES: dict[str, _Type] = {
    "text": _Type(_text, "a text", {"type": "string"}, _LENGTHS),
    "number": _Type(_number, "a number", {"type": "number"}, _AMOUNTS),
    "integer": _Type(_integer, "a whole number", {"type": "integer"}, _AMOUNTS),
    "boolean": _Type(_boolean, "true or false", {"type": "boolean"}),
    "choice": _Type(_choice, "one of its options", {}),
    "date": _Type(_date, "a date like 2030-01-31", {"type": "string", "format": "date"}),
    "datetime": _Type(_datetime, _MOMENT, {"type": "string", "format": "date-time"}),
    "list": _Type(_container(list), "a list", {"type": "array"}, ("minItems", "maxItems")),
    "object": _Type(_container(dict), "a mapping", {"type": "object"}),
    "json": _Type(lambda _, given: given, "any JSON value", {}),
    "secret": _Type(_secret, "the name of a stored credential", _CREDENTIAL_NAME),
    "file": _Type(_file, "the path or address of a file", {"type": ["string", "object"]}, _LENGTHS),
}
_MEASURED = ("text", "list", "file")
"""Bounds of these are of their length."""
ALIASES: dict[str, FieldType] = {"string": "text", "enum": "choice"}
"""Other names of types, as playbooks may write them."""
TYPES = (*_TYPES, *ALIASES)


# --- As JSON Schema ----------------------------------------------------------------------------


def json_schema(inputs: tuple[FormField, ...]) -> dict[str, Any]:
    """The inputs of a playbook as JSON Schema (draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {field.name: _schema(field) for field in inputs},
        "required": [field.name for field in inputs if field.required and field.default is None],
    }


def _schema(field: FormField) -> dict[str, Any]:
    kind = _TYPES[field.type]
    found = dict(kind.schema)
    if field.label:
        found["title"] = field.label
    if field.help:
        found["description"] = field.help
    if field.default is not None:
        found["default"] = field.default
    if field.type == "choice":
        found["enum"] = options(field)
    if kind.bounds is not None:
        for word, bound in zip(kind.bounds, (field.min, field.max), strict=True):
            if bound is not None:
                found[word] = bound
    if field.pattern is not None:
        found["pattern"] = f"^(?:{field.pattern})$"
    if not field.required and field.default is None:
        return {"anyOf": [found, {"type": "null"}]}
    return found
