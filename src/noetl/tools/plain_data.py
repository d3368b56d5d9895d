"""Only plain data leaves a tool: values that JSON can carry and every store can keep.

A value that would later be lost, changed or refused is refused here, with its path, while the
responsible task is still known.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec

DEPTH_MAX = 200
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

Origin = Literal["code", "database"]
"""The origin of a value. Code gets an error for an unsupported type; a database's types are
converted as well as possible."""


class NotPlain(ValueError):
    """A value that JSON cannot carry; the text says where it is and what is wrong with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str | int] = []
        self.subject = "result"

    def __str__(self) -> str:
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.path)
        return f"{self.subject}{place} {self.reason}"


def read_json(text: str | bytes) -> Any:
    """Parse JSON from outside. Raises DecodeError, however deeply it is nested."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def lines_of(text: str) -> list[str]:
    """The lines of a text. To `splitlines`, characters end one that JSON and names may hold."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def read_ndjson(text: str) -> list[Any]:
    """Parse JSON that has a value in each line. Raises DecodeError."""
    return [read_json(line) for line in lines_of(text) if line.strip()]


def numbered(names: Iterable[str]) -> list[str]:
    """The names of columns; a repeated one gets a number."""
    found: dict[str, None] = {}
    numbers: dict[str, int] = {}
    for column in names:
        name, number = column, numbers.get(column, 1)
        while name in found:
            name, number = f"{column}_{number}", number + 1
        numbers[column] = number
        found[name] = None
    return list(found)


def as_text(value: Any) -> str:
    """A scalar as text for a query, header, form or environment variable."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(value: Any, origin: Origin = "code") -> Any:
    """The value as lists, mappings, text, numbers, booleans and None. Raises NotPlain.

    Dates and times become RFC 3339 text, durations ISO 8601 text, UUIDs text, enums their value,
    tuples lists. A decimal becomes a number if that is exact, otherwise text. Objects with
    `tolist()` (numpy) are converted by it. From a database, integers beyond 64 bits become text,
    bytes base64, and unknown types their text.
    """
    return _plain(value, origin, 0)


def check(value: Any, subject: str) -> None:
    """Raise NotPlain, in the name of `subject`, for a value from outside."""
    try:
        _plain(value, "database", 0)
    except NotPlain as problem:
        problem.subject = subject
        raise


def _plain(value: Any, origin: Origin, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        if origin == "database":
            return str(value)
        raise NotPlain("is a whole number beyond 64 bits; yield it as text")
    if kind is float:
        return _finite(value)
    if depth > DEPTH_MAX:
        raise NotPlain(f"is nested more than {DEPTH_MAX} levels deep, or holds itself")
    if kind is dict:
        return _mapping(value, origin, depth)
    if kind is list or kind is tuple:
        return _sequence(value, origin, depth)
    return _plain(_converted(value, origin), origin, depth + 1)


def _mapping(value: dict[Any, Any], origin: Origin, depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, part in value.items():
        name = key if type(key) is str else _key(key)
        try:
            _text(name)
            if name in kept:
                raise NotPlain("is there twice: as a text and as another type of key")
            kept[name] = _plain(part, origin, depth + 1)
        except NotPlain as problem:
            problem.path.insert(0, name.encode("utf-8", "backslashreplace").decode())
            raise
    return kept


def _sequence(value: list[Any] | tuple[Any, ...], origin: Origin, depth: int) -> list[Any]:
    kept: list[Any] = []
    try:
        for part in value:
            kept.append(_plain(part, origin, depth + 1))
    except NotPlain as problem:
        problem.path.insert(0, len(kept))
        raise
    return kept


def _key(key: Any) -> str:
    # Like the json module, so that code written for it keeps working.
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, str | int | float | UUID | date | Enum):
        return str(_plain(key, "database", 0))
    raise NotPlain(f"has a key of type {type(key).__name__}; keys must be texts")


def _text(value: str) -> str:
    if "\0" in value:
        raise NotPlain("holds a NUL character, which databases cannot keep; remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotPlain(
                f"holds half of a surrogate pair at character {error.start}; it is not valid text"
            ) from None
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise NotPlain(f"is {value}, which JSON cannot carry; yield None or a text instead")
    return value


def _converted(value: Any, origin: Origin) -> Any:
    """The nearest plain value; it may need further conversion."""
    match value:
        case Enum():
            return value.value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case datetime():
            return moment(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return duration(value)
        case Decimal():
            return number(value)
        case UUID():
            return str(value)
        case dict():
            return dict(value)
        case list() | tuple():
            return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if origin == "database":
        is_binary = isinstance(value, bytes | bytearray | memoryview)
        return base64.b64encode(value).decode("ascii") if is_binary else str(value)
    advice = {
        "bytes": "encode it, e.g. with base64",
        "bytearray": "encode it, e.g. with base64",
        "set": "make it a list",
        "frozenset": "make it a list",
        "DataFrame": 'use .to_dict("records")',
    }.get(type(value).__name__, "yield texts, numbers, lists and mappings")
    raise NotPlain(f"is of type {type(value).__name__}, which JSON cannot carry; {advice}")


def moment(value: datetime) -> str:
    """RFC 3339; UTC is written `Z`. A time without a zone stays without one."""
    text = value.isoformat()
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def duration(value: timedelta) -> str:
    """ISO 8601, in days and seconds: `P1DT2.5S`."""
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    clock = f"{value.seconds}.{value.microseconds:06d}".rstrip("0").rstrip(".")
    return f"{sign}P{value.days}DT{clock}S" if value.days else f"{sign}PT{clock}S"


def number(value: Decimal) -> int | float | str:
    """A number if that is exact, otherwise the digits as text."""
    if not value.is_finite():
        return float(value)
    if value == value.to_integral_value() and abs(value) <= INT_MAX:
        return int(value)
    nearest = float(value)
    return nearest if math.isfinite(nearest) and Decimal(repr(nearest)) == value else str(value)
