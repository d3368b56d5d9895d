"""The tests of `x is …`, in one visible table."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from noetl.templates import operators
from noetl.templates.evaluation import Evaluation, Undefined
from noetl.templates.operators import number

Predicate = Callable[..., bool]


def _is_defined(run: Evaluation, value: object) -> bool:
    return not isinstance(value, Undefined)


def _is_undefined(run: Evaluation, value: object) -> bool:
    return isinstance(value, Undefined)


def _of_kind(*kinds: type) -> Predicate:
    def is_of_kind(run: Evaluation, value: object) -> bool:
        return isinstance(value, kinds)

    return is_of_kind


def _exactly(constant: object) -> Predicate:
    def is_exactly(run: Evaluation, value: object) -> bool:
        return value is constant

    return is_exactly


def _is_integer(run: Evaluation, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_odd(run: Evaluation, value: object) -> bool:
    return number(value, "odd") % 2 == 1


def _is_even(run: Evaluation, value: object) -> bool:
    return number(value, "even") % 2 == 0


def _is_divisible(run: Evaluation, value: object, num: object) -> bool:
    return operators.modulo(run, number(value, "divisibleby"), num) == 0


def _is_lower(run: Evaluation, value: object) -> bool:
    return run.text(value).islower()


def _is_upper(run: Evaluation, value: object) -> bool:
    return run.text(value).isupper()


def _compared(operator: operators.Operator) -> Predicate:
    def is_so(run: Evaluation, value: object, other: object) -> bool:
        return bool(operator(run, value, other))

    return is_so


TESTS: dict[str, Predicate] = {
    "defined": _is_defined,
    "undefined": _is_undefined,
    "none": _exactly(None),
    "true": _exactly(True),
    "false": _exactly(False),
    "boolean": _of_kind(bool),
    "integer": _is_integer,
    "float": _of_kind(float),
    "number": _of_kind(int, float, Decimal),
    "string": _of_kind(str),
    "mapping": _of_kind(dict),
    "sequence": _of_kind(str, list, tuple, dict),
    "iterable": _of_kind(str, list, tuple, dict),
    "odd": _is_odd,
    "even": _is_even,
    "divisibleby": _is_divisible,
    "lower": _is_lower,
    "upper": _is_upper,
    "in": _compared(operators.contained),
    "eq": _compared(operators.equal),
    "==": _compared(operators.equal),
    "equalto": _compared(operators.equal),
    "ne": _compared(operators.unequal),
    "!=": _compared(operators.unequal),
    "lt": _compared(operators.less),
    "<": _compared(operators.less),
    "lessthan": _compared(operators.less),
    "le": _compared(operators.less_or_equal),
    "<=": _compared(operators.less_or_equal),
    "gt": _compared(operators.greater),
    ">": _compared(operators.greater),
    "greaterthan": _compared(operators.greater),
    "ge": _compared(operators.greater_or_equal),
    ">=": _compared(operators.greater_or_equal),
}

ON_UNDEFINED = {"undefined": True, "ne": True, "!=": True}
"""What a test says of a value that is not there; every other test says no."""


def passes(run: Evaluation, name: str, value: object, args: tuple[object, ...]) -> bool:
    """Put a plain value to a test of the table."""
    if isinstance(value, Undefined) or any(isinstance(arg, Undefined) for arg in args):
        return ON_UNDEFINED.get(name, False)
    return TESTS[name](run, value, *args)
