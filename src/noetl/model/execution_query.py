"""The query language of executions, parsed once for lists, counts, histograms and bulk actions.

    status:failed path:shop/* took:>5m since:2d label.team=x "duplicate key"

All terms must hold. A value may be a comma-separated list, of which one must match. A minus negates
a term. A word without a key is searched for in the path, the error and the id. In quotes, spaces,
commas and stars are literal, and a backslash escapes a quote.

This module knows no SQL: a store translates each term.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from noetl.errors import BadQuery
from noetl.model.duration import seconds, timestamp
from noetl.model.spelling import did_you_mean

LENGTH_MAX = 2000
VALUES_MAX = 50
"""Each value costs a comparison per row."""
ID_DIGITS = 18
"""The least number of digits of a whole id."""
Field = Literal[
    "status",
    "waiting",
    "waits",
    "waits_unknown",
    "path",
    "path_like",
    "took_over",
    "took_under",
    "since",
    "until",
    "version",
    "version_over",
    "version_under",
    "parent",
    "no_parent",
    "any_parent",
    "id",
    "exact_id",
    "step",
    "error",
    "any_error",
    "label",
    "any_label",
    "text",
]
STATUSES = ("PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED")
_STATUS_WORDS: dict[str, tuple[str, ...]] = {
    **{status.lower(): (status,) for status in STATUSES},
    "done": ("COMPLETED",),
    "canceled": ("CANCELLED",),
    "active": ("PENDING", "RUNNING", "PAUSED"),
    "ended": ("COMPLETED", "FAILED", "CANCELLED"),
}
WAITING = "waiting"
KEYS = (
    *("status", "path", "took", "since", "until", "version", "parent", "id", "step", "error"),
    "waits",
)
WAITS = ("form", "event", "timer")
LABEL = "label."


class Condition(NamedTuple):
    """What one value of a term asks for."""

    field: Field
    value: str | float | int = ""
    key: str = ""
    """The name of a label."""


class Term(NamedTuple):
    """Conditions of which one must hold; with `negated`, none may."""

    conditions: tuple[Condition, ...]
    negated: bool = False


Wanted = tuple[Term, ...]
"""A parsed query, whose terms must all hold. The empty query matches every execution."""


def exactly(
    *,
    status: str | None = None,
    path: str | None = None,
    parent: str | None = None,
    since: float | None = None,
    labels: Mapping[str, str] | None = None,
) -> Wanted:
    """The query for exactly these values; stars and other signs are literal."""
    given: tuple[tuple[Field, str | float | None], ...] = (
        ("status", status),
        ("path", path),
        ("parent", parent),
        ("since", since),
    )
    conditions = [Condition(field, value) for field, value in given if value is not None]
    conditions += [Condition("label", value, name) for name, value in (labels or {}).items()]
    return tuple(Term((condition,)) for condition in conditions)


def quoted(text: str) -> str:
    """A text as a literal value of a query."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def parse(text: str, now: float) -> Wanted:
    """The terms of a query. Raises BadQuery with the place of the mistake."""
    if len(text) > LENGTH_MAX:
        raise BadQuery(f"a query has at most {LENGTH_MAX} characters; this one has {len(text)}.")
    if "\0" in text:
        raise _wrong(text.index("\0"), 1, "a query cannot hold the character NUL.")
    words = list(_words(text))
    if (values := sum(len(word.values) for word in words)) > VALUES_MAX:
        raise BadQuery(f"a query has at most {VALUES_MAX} values; this one has {values}.")
    return tuple(_term(word, now) for word in words)


def moment(written: str, now: float) -> float | None:
    """The time of a duration before now (`2d`) or of a date (RFC 3339); None if it is neither."""
    span = seconds(written)
    return now - span if span is not None else timestamp(written)


# --- Reading words -----------------------------------------------------------------------------


class _Value(NamedTuple):
    text: str
    at: int
    quoted: bool

    def wrong(self, what: str) -> BadQuery:
        return _wrong(self.at, len(self.text), f'{what}, not "{self.text}".')


class _Word(NamedTuple):
    """A term as it is written."""

    key: str
    """Empty for a word without a key."""
    values: list[_Value]
    at: int
    negated: bool


_SIGNS = (":", "=")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')


def _words(text: str) -> Iterator[_Word]:
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        begin = at
        negated = text[at] == "-" and at + 1 < len(text) and not text[at + 1].isspace()
        at += negated
        key, at = _key(text, at)
        values = []
        while True:
            value, at = _value(text, at, with_commas=bool(key))
            values.append(value)
            if at >= len(text) or text[at] != ",":
                break
            at += 1
        yield _Word(key, values, begin, negated)


def _key(text: str, at: int) -> tuple[str, int]:
    """The key of a word and the position of its value; an empty key if the word has none."""
    end = at
    while end < len(text) and (text[end].isalnum() or text[end] in "._-/"):
        end += 1
    if end == at or end >= len(text) or text[end] not in _SIGNS:
        return "", at
    key = text[at:end]
    is_label = key.startswith(LABEL)
    if text[end] == "=" and not is_label:
        if key in KEYS:
            raise _wrong(end, 1, f'write ":" after {key}: {key}:…')
        return "", at
    if not is_label and key not in KEYS:
        hint = did_you_mean(key, (*KEYS, "label.NAME"))
        known = "" if hint else f" The keys are {', '.join(KEYS)} and label.NAME."
        raise _wrong(at, len(key), f'there is no key "{key}".{hint}{known} Quotes make it a text.')
    if key == LABEL:
        raise _wrong(at, len(key), "a label has a name: label.team=x.")
    return key, end + 1


def _value(text: str, at: int, *, with_commas: bool) -> tuple[_Value, int]:
    begin = at
    if at < len(text) and text[at] == '"':
        found = _QUOTED.match(text, at)
        if found is None:
            raise _wrong(at, len(text) - at, "the quotation mark is not closed.")
        return _Value(_ESCAPED.sub(r"\1", found[1]), begin, True), found.end()
    while at < len(text) and not text[at].isspace() and not (with_commas and text[at] == ","):
        at += 1
    return _Value(text[begin:at], begin, False), at


# --- What terms mean ---------------------------------------------------------------------------


def _term(word: _Word, now: float) -> Term:
    conditions: list[Condition] = []
    for value in word.values:
        if not value.text:
            what = f"{word.key}: has no value." if word.key else "there is nothing between quotes."
            raise _wrong(value.at, 1, what)
        conditions += _conditions(word.key, value, now)
    return Term(tuple(conditions), word.negated)


def _conditions(key: str, value: _Value, now: float) -> list[Condition]:
    text = value.text
    is_any = text == "*" and not value.quoted
    match key:
        case "":
            # Ids are numbers, so only numbers are searched for in them.
            in_id = [_id(text)] if text.isascii() and text.isdecimal() else []
            return [Condition("text", text), *in_id]
        case "status":
            return _status(value)
        case "path":
            is_pattern = not value.quoted and ("*" in text or "?" in text)
            return [Condition("path_like" if is_pattern else "path", text)]
        case "took":
            return [_took(value)]
        case "since" | "until":
            at = moment(text, now)
            if at is None:
                raise value.wrong(
                    f"{key}: takes a span such as 2d or 90m, or a date such as 2026-01-31"
                )
            return [Condition("since" if key == "since" else "until", at)]
        case "version":
            return [_version(value)]
        case "parent":
            if text == "none" or is_any:
                return [Condition("any_parent" if is_any else "no_parent")]
            return [Condition("parent", text)]
        case "id":
            return [_id(text)]
        case "waits":
            if text not in WAITS:
                raise value.wrong("waits: takes form, event or timer")
            return [Condition("waits", text)]
        case "step":
            return [Condition("step", text)]
        case "error":
            return [Condition("any_error") if is_any else Condition("error", text)]
        case _:
            name = key.removeprefix(LABEL)
            return [Condition("any_label" if is_any else "label", "" if is_any else text, name)]


def _id(text: str) -> Condition:
    """A whole id, which a store finds directly, or the beginning or end of one."""
    return Condition("exact_id" if len(text) >= ID_DIGITS else "id", text)


def _status(value: _Value) -> list[Condition]:
    word = value.text.lower()
    if word == WAITING:
        return [Condition("waiting")]
    if word not in _STATUS_WORDS:
        known = (*_STATUS_WORDS, WAITING)
        hint = did_you_mean(word, known) or f" It is one of {', '.join(known)}."
        raise _wrong(value.at, len(value.text), f'there is no status "{value.text}".{hint}')
    return [Condition("status", status) for status in _STATUS_WORDS[word]]


def _split_sign(value: _Value) -> tuple[str, str]:
    """The sign before a value (`>`, `<` or none), and the rest."""
    text = value.text
    sign = text[0] if text[0] in "<>" else ""
    return sign, text.removeprefix(sign).removeprefix("=" if sign else "")


def _took(value: _Value) -> Condition:
    sign, rest = _split_sign(value)
    span = seconds(rest) if rest else None
    if span is None or not sign:
        raise value.wrong("took: takes >5m or <30s")
    return Condition("took_over" if sign == ">" else "took_under", span)


def _version(value: _Value) -> Condition:
    sign, rest = _split_sign(value)
    number = rest.removeprefix("v")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise value.wrong("version: takes a number, >3 or <3")
    exact = int(number)
    # Bounds are inclusive: >3 means from 4 on, >=3 from 3 on.
    is_strict = bool(sign) and "=" not in value.text
    match sign:
        case ">":
            return Condition("version_over", exact + is_strict)
        case "<":
            return Condition("version_under", exact - is_strict)
        case _:
            return Condition("version", exact)


def _wrong(at: int, length: int, what: str) -> BadQuery:
    return BadQuery(f"character {at + 1}: {what}", at=at, length=max(length, 1))
