"""Forms: what a waiting step asks of people, and whether an answer answers it.

Answers come from terminals, browsers and programs, so texts are read as what their field wants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from typing import Any

import msgspec

from noetl.model.net import FormField, Values
from noetl.model.spelling import did_you_mean

YES = frozenset({"true", "yes", "on", "1", "y"})
NO = frozenset({"false", "no", "off", "0", "n"})
INTEGER_END = 1 << 63
"""Larger whole numbers cannot be stored as such."""


class Unfit(Exception):
    """A value that its field cannot take; says what it takes."""


class Answered(msgspec.Struct, frozen=True):
    """What became of an answer: its values, or everything that is wrong with it."""

    values: Values
    problems: tuple[str, ...] = ()


def answer(form: tuple[FormField, ...], data: Any) -> Answered:
    """Hold an answer against a form."""
    given = {} if data is None else data
    if not isinstance(given, dict):
        return Answered({}, (f"an answer is a mapping of fields to values, not {_shown(data)}",))
    names = [field.name for field in form]
    problems = [
        f'there is no field "{name}".{did_you_mean(name, names)} The fields are: {", ".join(names)}'
        for name in given
        if name not in names
    ]
    values: Values = {}
    for field in form:
        try:
            values[field.name] = fitted(field, given.get(field.name))
        except Unfit as error:
            problems.append(f'field "{field.name}" {error}')
    return Answered(values, tuple(problems))


def fitted(field: FormField, given: Any) -> Any:
    """The value of one field; raises Unfit. Left out or left empty, it is the default."""
    if given is None or (given == "" and field.type != "text"):
        given = field.default
    if given is None:
        if field.required:
            raise Unfit(f"is missing; it takes {wanted(field)}")
        return None
    if field.type == "text" and given == "" and field.required:
        raise Unfit("must not be empty")
    try:
        return _READERS[field.type](field, given)
    except ValueError:
        raise Unfit(f"takes {wanted(field)}, not {_shown(given)}") from None


def wanted(field: FormField) -> str:
    """What the field takes, in words."""
    match field.type:
        case "choice":
            return "one of " + ", ".join(str(option) for option in options(field))
        case "boolean":
            return "true or false"
        case "date":
            return "a date like 2030-01-31"
        case "integer":
            return "a whole number"
        case "number":
            return "a number"
        case "json":
            return "any JSON value"
        case _:
            return "a text"


def options(field: FormField) -> list[Any]:
    """What there is to choose from; an option may be a value or `{value, label}`."""
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


def _json(_: FormField, given: Any) -> Any:
    return given


_READERS: dict[str, Callable[[FormField, Any], Any]] = {
    "text": _text,
    "number": _number,
    "integer": _integer,
    "boolean": _boolean,
    "choice": _choice,
    "date": _date,
    "json": _json,
}
