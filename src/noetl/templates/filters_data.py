"""Filters that convert: numbers, JSON, base64, digests, patterns and times."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from noetl.templates.errors import EvaluationFailed
from noetl.templates.evaluation import Evaluation, kind_of, whole
from noetl.templates.operators import checked, number

PRECISION_MAX = 100
INDENT_MAX = 16
PATTERN_MAX = 4_096
PATTERN_MEMORY = 8 * 1024 * 1024
FORMAT_MAX = 200
STRFTIME_PART = re.compile(r"%(?![aAbBcdfGHIjmMpSuUVwWxXyYzZ%])")
REFERENCE = re.compile(r"\\(?:(\d{1,2})|g<(\w{1,64})>|(.))", re.DOTALL)


def absolute(run: Evaluation, value: object) -> object:
    return abs(number(value, "abs"))


def to_int(run: Evaluation, value: object, default: object = 0, base: object = 10) -> object:
    if isinstance(value, str):
        run.charge_reading(value)
    return whole_of(value, default, whole(base, "the base", 0, 36))


def whole_of(value: object, default: object, base: int = 10) -> object:
    """The whole number in a value, or the default; `"42.9"` is 42."""
    if isinstance(value, Decimal):
        checked(value)
    try:
        if isinstance(value, str):
            return checked(int(value, base))
        return checked(int(value))  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return _whole_of_float(value, default)


def _whole_of_float(value: object, default: object) -> object:
    try:
        return int(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return default


def to_float(run: Evaluation, value: object, default: object = 0.0) -> object:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return default


def rounded(
    run: Evaluation, value: object, precision: object = 0, method: object = "common"
) -> object:
    amount = number(value, "round")
    digits = whole(precision, "the precision", -PRECISION_MAX, PRECISION_MAX)
    if method == "common":
        return round(amount, digits)
    if method not in ("ceil", "floor"):
        raise EvaluationFailed('the method of round is "common", "ceil" or "floor"')
    factor: Any = 10**digits
    if isinstance(amount, Decimal):
        factor = Decimal(factor)
    whole_part = math.ceil(amount * factor) if method == "ceil" else math.floor(amount * factor)
    return whole_part / factor


def tojson(run: Evaluation, value: object, indent: object = None) -> str:
    margin = None if indent is None else whole(indent, "the indent", 0, INDENT_MAX)
    run.walk_text(value, margin or 0)
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, indent=margin, default=_json_scalar
        )
    except (TypeError, ValueError):
        raise EvaluationFailed("the value cannot be written as JSON") from None


def _json_scalar(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError


def fromjson(run: Evaluation, value: object) -> object:
    text = _needed_text(value, "fromjson")
    run.charge_text(len(text))
    run.charge(sum(text.count(sign) for sign in ",[{:"))
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        at = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise EvaluationFailed(f"fromjson: the text is not JSON{at}") from None


def _no_constant(name: str) -> object:
    raise ValueError(name)


def b64encode(run: Evaluation, value: object) -> str:
    data = value if isinstance(value, bytes) else run.text(value).encode()
    run.charge_text(2 * len(data))
    return base64.b64encode(data).decode("ascii")


def b64decode(run: Evaluation, value: object) -> str:
    text = _needed_text(value, "b64decode")
    run.charge_text(len(text))
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        raise EvaluationFailed("b64decode: this is not the base64 form of a text") from None


def sha256(run: Evaluation, value: object) -> str:
    text = run.text(value)
    run.charge_text(len(text))
    return hashlib.sha256(text.encode()).hexdigest()


def regex_search(run: Evaluation, value: object, pattern: object, group: object = 0) -> object:
    """The first match, or one group of it; none if there is no match."""
    text = run.text(value)
    found = _searched(run, text, pattern).search(text)
    if found is None:
        return None
    try:
        matched: str | None = found[group]
    except (IndexError, TypeError):
        raise EvaluationFailed("regex_search: the pattern has no such group") from None
    return None if matched is None else run.made(matched)


def regex_replace(
    run: Evaluation, value: object, pattern: object, replacement: object = "", count: object = 0
) -> str:
    text, template = run.text(value), run.text(replacement)
    most = whole(count, "the count", 0, 1_000_000)
    compiled = _searched(run, text, pattern)
    pieces, position = [], 0
    for done, found in enumerate(compiled.finditer(text), start=1):
        # A pattern can make every single match look through the whole rest of the text.
        run.charge(5 + compiled.groups + (len(text) - position) // 500)
        piece = _expanded(run, template, found)
        pieces += [text[position : found.start()], piece]
        run.charge_text(len(piece))
        position = found.end()
        if done == most:
            break
    pieces.append(text[position:])
    run.charge_text(len(text))
    return "".join(pieces)


def _searched(run: Evaluation, text: str, pattern: object) -> Any:
    """The compiled pattern, after paying for a search through the text."""
    source = _needed_text(pattern, "the pattern")
    if len(source) > PATTERN_MAX:
        raise EvaluationFailed(f"a pattern may have at most {PATTERN_MAX:,} characters")
    run.charge(100 + len(text) // 10)
    return _pattern(source)


@lru_cache(maxsize=256)
def _pattern(source: str) -> Any:
    """A pattern of RE2: its search time grows with the text alone, whatever the pattern."""
    import re2  # loaded by the first pattern: most playbooks use none

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except (re2.error, ValueError):
        raise EvaluationFailed(
            "the pattern is not one RE2 knows (look-around and back-references are not supported)"
        ) from None


def _expanded(run: Evaluation, template: str, found: Any) -> str:
    """The replacement with `\\\\1` and `\\\\g<name>` filled in."""
    if "\\" not in template:
        return template
    pieces, position = [], 0
    for reference in REFERENCE.finditer(template):
        run.charge(1)
        number_, name, other = reference.groups()
        try:
            piece = other if other is not None else found[int(number_) if number_ else name] or ""
        except IndexError:
            raise EvaluationFailed("regex_replace: the pattern has no such group") from None
        run.charge_text(len(piece))
        pieces += [template[position : reference.start()], piece]
        position = reference.end()
    return "".join([*pieces, template[position:]])


def to_datetime(run: Evaluation, value: object, format: object = None) -> datetime:  # noqa: A002
    """A time from ISO text, from text in a given format, or from seconds since 1970; UTC if it
    says nothing else."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        return _parsed(value, format)
    except (ValueError, OverflowError, OSError, re.error):
        raise EvaluationFailed("to_datetime: the value is not a time in this format") from None


def _parsed(value: object, layout: object) -> datetime:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    text = _needed_text(value, "to_datetime")
    if len(text) > FORMAT_MAX:
        raise ValueError("too long")
    if layout is None:
        made = datetime.fromisoformat(text.strip())
    else:
        made = datetime.strptime(text, _layout(layout))
    return made if made.tzinfo else made.replace(tzinfo=UTC)


def strftime(run: Evaluation, value: object, format: object = "%Y-%m-%dT%H:%M:%S%z") -> str:  # noqa: A002
    if not isinstance(value, date):
        raise EvaluationFailed(
            f"strftime needs a time, not {kind_of(value)}; write `| to_datetime | strftime(…)`"
        )
    return run.made(value.strftime(_layout(format)))


def _layout(value: object) -> str:
    """A time format made only of the well-known parts: the C library's extensions pad without
    limit."""
    layout = _needed_text(value, "the format")
    if len(layout) > FORMAT_MAX or STRFTIME_PART.search(layout.replace("%%", "")):
        raise EvaluationFailed("the time format is too long or has an unknown % part")
    return layout


def _needed_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise EvaluationFailed(f"{what} needs text, not {kind_of(value)}")
    return value
