"""What an unquoted scalar is: YAML 1.2's core schema, with the surprises taken out.

`no`, `on`, `012` and `12:30` stay texts. Only true/false, null, decimal/hex/octal integers and
decimal fractions become something else.
"""

from __future__ import annotations

import math
import re
from typing import Any

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_RADIX = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FRACTION = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_STARTS_LIKE_NUMBER = frozenset("+-.0123456789")

INT_MIN, INT_MAX = -(2**63), 2**63 - 1


class Unrepresentable(ValueError):
    """A number that JSON, and so an event, cannot carry."""


def resolve(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if text[0] not in _STARTS_LIKE_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text, 10)
    if _RADIX.fullmatch(text):
        return _integer(text, 0)
    if _FRACTION.fullmatch(text):
        return _finite(float(text), text)
    if _NOT_FINITE.fullmatch(text):
        raise Unrepresentable(f"{text} has no form in JSON")
    return text


def _integer(text: str, base: int) -> int:
    # Longer digit strings are out of range anyway, and int() itself would refuse them.
    number = int(text, base) if len(text) <= 24 else INT_MAX + 1
    if not INT_MIN <= number <= INT_MAX:
        raise Unrepresentable(f"{text[:24]} does not fit into 64 bits")
    return number


def _finite(number: float, text: str) -> float:
    if math.isinf(number):
        raise Unrepresentable(f"{text[:24]} is too large for a number")
    return number
