"""Operators on plain data, `+ - * / // % **`, comparisons and `in`, and the tests of `x is …`.

Python does the work. This module makes sure that the operands are plain data, that the cost is
known and paid beforehand, and that an error names the operation but never the values.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from noetl.errors import BudgetExceeded, EvaluationFailed
from noetl.templates.evaluation import (
    CHARACTERS_PER_TICK,
    CONTAINERS,
    Evaluation,
    Undefined,
    kind_of,
)

INTEGER_BITS_MAX = 4096
INTEGER_DIGITS_MAX = 1233
FORMAT_WIDTH_MAX = 10_000

Operator = Callable[[Evaluation, object, object], object]

Number = int | float | Decimal
MOMENTS = (datetime, date, time, timedelta)

FORMAT_PART = re.compile(
    r"%(?P<key>\([^()]{0,200}\))?[#0\- +]{0,5}(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?"
    r"(?P<kind>[diouxXeEfFgGcrsa%])?"
)


def checked(value: object) -> object:
    """The number. Raises if it is too large to compute with."""
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        raise BudgetExceeded(f"a whole number may have at most {INTEGER_BITS_MAX} bits")
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() > INTEGER_DIGITS_MAX:
        raise BudgetExceeded(f"a number may have at most {INTEGER_DIGITS_MAX} digits")
    if isinstance(value, complex):
        raise EvaluationFailed("the result is not a real number")
    return value


def number(value: object, what: str) -> Number:
    """The value as a number to compute with."""
    if not isinstance(value, int | float | Decimal):
        raise EvaluationFailed(f"{what} needs a number, not {kind_of(value)}")
    checked(value)
    return value


def _unfit(what: str, left: object, right: object) -> EvaluationFailed:
    hint = ""
    if isinstance(left, str) != isinstance(right, str):
        hint = " Convert with `| int`, `| float` or `| string`."
    return EvaluationFailed(f"{what} does not fit {kind_of(left)} and {kind_of(right)}.{hint}")


def _numeric(sign: str, work: Callable[[Number, Number], object]) -> Operator:
    def run_numeric(run: Evaluation, left: object, right: object) -> object:
        if not isinstance(left, int | float | Decimal) or not isinstance(
            right, int | float | Decimal
        ):
            raise _unfit(f"`{sign}`", left, right)
        try:
            return checked(work(left, right))
        except ZeroDivisionError:
            raise EvaluationFailed(f"`{sign}` by zero") from None
        except TypeError:  # a float with a decimal
            return checked(work(float(left), float(right)))

    return run_numeric


_add_numbers = _numeric("+", operator.add)
_subtract_numbers = _numeric("-", operator.sub)
_multiply_numbers = _numeric("*", operator.mul)
_remainder = _numeric("%", operator.mod)
divide = _numeric("/", operator.truediv)
floor_divide = _numeric("//", operator.floordiv)
_raise_numbers = _numeric("**", operator.pow)


def add(run: Evaluation, left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str):
        run.charge_text(len(left) + len(right))
        return left + right
    for kind in (list, tuple):
        if isinstance(left, kind) and isinstance(right, kind):
            run.charge(1 + len(left) + len(right))
            return kind([*left, *right])
    if isinstance(left, MOMENTS) and isinstance(right, MOMENTS):
        return _with_moments("+", left, right)
    return _add_numbers(run, left, right)


def subtract(run: Evaluation, left: object, right: object) -> object:
    if isinstance(left, MOMENTS) and isinstance(right, MOMENTS):
        return _with_moments("-", left, right)
    return _subtract_numbers(run, left, right)


def _with_moments(sign: str, left: object, right: object) -> object:
    try:
        return left + right if sign == "+" else left - right  # type: ignore[operator]
    except TypeError:
        raise _unfit(f"`{sign}`", left, right) from None


def multiply(run: Evaluation, left: object, right: object) -> object:
    if isinstance(left, int) and isinstance(right, str | list | tuple):
        left, right = right, left
    if isinstance(left, str | list | tuple) and isinstance(right, int):
        size = len(left) * max(right, 0)
        if isinstance(left, str):
            run.charge_text(size)
        else:
            run.charge(1 + size)
        return left * right
    return _multiply_numbers(run, left, right)


def power(run: Evaluation, left: object, right: object) -> object:
    if isinstance(left, int) and isinstance(right, int) and right > 0 and abs(left) > 1:
        bits = left.bit_length() * right
        if bits > 2 * INTEGER_BITS_MAX:
            raise BudgetExceeded(f"a whole number may have at most {INTEGER_BITS_MAX} bits")
    return _raise_numbers(run, left, right)


def modulo(run: Evaluation, left: object, right: object) -> object:
    """The remainder, or with a text on the left Python's `%` formatting."""
    if isinstance(left, str):
        return formatted(run, left, right)
    return _remainder(run, left, right)


def formatted(run: Evaluation, pattern: str, values: object) -> str:
    """`pattern % values`, with widths bounded and containers written out under the budget."""
    run.charge_text(len(pattern))
    if isinstance(values, dict):
        ready: object = {key: _formattable(run, value) for key, value in values.items()}
    elif isinstance(values, tuple):
        ready = tuple(_formattable(run, value) for value in values)
    else:
        ready = _formattable(run, values)
    for part in FORMAT_PART.finditer(pattern):
        _check_format(run, part, ready)
    try:
        return pattern % ready
    except (TypeError, ValueError, KeyError, OverflowError):
        raise EvaluationFailed("the values do not fit the format text") from None


def _check_format(run: Evaluation, part: re.Match[str], ready: object) -> None:
    """Refuse a part that is no format or is too wide; pay for a named value at each use."""
    if part["kind"] is None:
        raise EvaluationFailed("the format text has a `%` that starts no format; write `%%`")
    for size in (part["width"], part["precision"]):
        if size == "*" or len(size or "") > 9 or int(size or 0) > FORMAT_WIDTH_MAX:
            raise BudgetExceeded(f"a format width may be at most {FORMAT_WIDTH_MAX}")
        run.charge_text(int(size or 0))
    if part["key"] and isinstance(ready, dict):
        named = ready.get(part["key"][1:-1])
        run.charge_text(len(named) if isinstance(named, str) else 1)


def _formattable(run: Evaluation, value: object) -> object:
    if isinstance(value, int | float | Decimal):
        return checked(value)
    if isinstance(value, str):
        run.charge_text(len(value))
        return value
    return run.text(value)


def negative(run: Evaluation, value: object) -> object:
    return -number(value, "`-`")


def positive(run: Evaluation, value: object) -> object:
    return +number(value, "`+`")


def equal(run: Evaluation, left: object, right: object) -> bool:
    if isinstance(left, CONTAINERS) and isinstance(right, CONTAINERS):
        run.walk(left)
    elif isinstance(left, str) and isinstance(right, str) and len(left) == len(right):
        run.charge_reading(left)
    return bool(left == right)


def _ordered(sign: str, work: Callable[[Any, Any], object]) -> Operator:
    def compare(run: Evaluation, left: object, right: object) -> bool:
        if isinstance(left, CONTAINERS) and isinstance(right, CONTAINERS):
            run.walk(left)
        elif isinstance(left, str):
            run.charge_reading(left)
        try:
            return bool(work(left, right))
        except TypeError:
            raise _unfit(f"`{sign}`", left, right) from None

    return compare


def contained(run: Evaluation, item: object, container: object) -> bool:
    """`item in container`: a part of a text, a key of a mapping, an item of a list."""
    if isinstance(container, str):
        if not isinstance(item, str):
            raise _unfit("`in`", item, container)
        run.charge_reading(container)
        return item in container
    if isinstance(container, dict):
        return not isinstance(item, CONTAINERS) and item in container
    if isinstance(container, list | tuple):
        weight = len(item) // CHARACTERS_PER_TICK if isinstance(item, str) else 0
        run.charge(1 + len(container) * (1 + weight))
        if isinstance(item, CONTAINERS):
            run.walk(container)
        return item in container
    raise _unfit("`in`", item, container)


COMPARISONS: dict[str, Operator] = {
    "eq": equal,
    "ne": lambda run, left, right: not equal(run, left, right),
    "lt": _ordered("<", operator.lt),
    "lteq": _ordered("<=", operator.le),
    "gt": _ordered(">", operator.gt),
    "gteq": _ordered(">=", operator.ge),
    "in": contained,
    "notin": lambda run, item, container: not contained(run, item, container),
}


# --- Tests ---------------------------------------------------------------------------------------

Predicate = Callable[..., bool]


def _is_kind(*kinds: type) -> Predicate:
    def is_of_kind(run: Evaluation, value: object) -> bool:
        return isinstance(value, kinds)

    return is_of_kind


def _passes_if(operator: str) -> Predicate:
    compare = COMPARISONS[operator]

    def is_so(run: Evaluation, value: object, other: object) -> bool:
        return bool(compare(run, value, other))

    return is_so


TESTS: dict[str, Predicate] = {
    "defined": lambda run, value: not isinstance(value, Undefined),
    "undefined": lambda run, value: isinstance(value, Undefined),
    "none": lambda run, value: value is None,
    "true": lambda run, value: value is True,
    "false": lambda run, value: value is False,
    "boolean": _is_kind(bool),
    "integer": lambda run, value: isinstance(value, int) and not isinstance(value, bool),
    "float": _is_kind(float),
    "number": _is_kind(int, float, Decimal),
    "string": _is_kind(str),
    "mapping": _is_kind(dict),
    "sequence": _is_kind(str, list, tuple, dict),
    "iterable": _is_kind(str, list, tuple, dict),
    "odd": lambda run, value: number(value, "odd") % 2 == 1,
    "even": lambda run, value: number(value, "even") % 2 == 0,
    "divisibleby": lambda run, value, num: modulo(run, number(value, "divisibleby"), num) == 0,
    "lower": lambda run, value: run.text(value).islower(),
    "upper": lambda run, value: run.text(value).isupper(),
    "in": _passes_if("in"),
    **dict.fromkeys(("eq", "==", "equalto"), _passes_if("eq")),
    **dict.fromkeys(("ne", "!="), _passes_if("ne")),
    **dict.fromkeys(("lt", "<", "lessthan"), _passes_if("lt")),
    **dict.fromkeys(("le", "<="), _passes_if("lteq")),
    **dict.fromkeys(("gt", ">", "greaterthan"), _passes_if("gt")),
    **dict.fromkeys(("ge", ">="), _passes_if("gteq")),
}

ON_UNDEFINED = {"undefined": True, "ne": True, "!=": True}
"""Tests that pass for a missing value; all others fail."""


def passes(
    run: Evaluation, name: str, value: object, args: Sequence[object], named: Mapping[str, object]
) -> bool:
    """Whether a plain value passes a test."""
    for given in (value, *args, *named.values()):
        if type(given) is Undefined:
            return ON_UNDEFINED.get(name, False)
    return TESTS[name](run, value, *args, **named)
