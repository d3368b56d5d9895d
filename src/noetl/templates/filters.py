"""The filters of the language: those on lists, those that make text, those that convert.

They give the same results as Jinja's, and some call its functions, with two differences: where
Jinja gives a generator, these give a list; and every size is known and paid for before anything is
made. `FILTERS`, at the end, lists them all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import html
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import groupby as grouped
from textwrap import wrap
from typing import Any
from uuid import UUID

from jinja2.filters import (
    do_batch,
    do_filesizeformat,
    do_indent,
    do_title,
    do_wordcount,
    sync_do_slice,
)
from jinja2.utils import url_quote

from noetl.errors import EvaluationFailed
from noetl.model.patterns import BadPattern, compiled_pattern
from noetl.templates.evaluation import (
    Evaluation,
    Lacks,
    Undefined,
    attribute_of,
    attribute_parts,
    items_of,
    kind_of,
    required_attribute,
    whole,
)
from noetl.templates.operators import TESTS, add, checked, formatted, number, passes
from noetl.templates.views import MISSING, Group

Filter = Callable[..., object]

SIZE_MAX = 1_000_000
WIDTH_MAX = 1_000_000
WRAP_TEXT_MAX = 65_536
WRAP_WORD_MAX = 1_000
STRIP_MAX = 100
TRUNCATE_LEEWAY = 5

PRECISION_MAX = 100
INDENT_MAX = 16
PATTERN_MAX = 4_096
FORMAT_MAX = 200
STRFTIME_PART = re.compile(r"%(?![aAbBcdfGHIjmMpSuUVwWxXyYzZ%])")
REFERENCE = re.compile(r"\\(?:(\d{1,2})|g<(\w{1,64})>|(.))", re.DOTALL)


# --- Lists and mappings --------------------------------------------------------------------------


def length(run: Evaluation, value: object) -> int:
    if isinstance(value, str | list | tuple | dict | bytes):
        return len(value)
    raise EvaluationFailed(f"length needs text, a list or a mapping, not {kind_of(value)}")


def end(run: Evaluation, value: object, what: str, index: int) -> object:
    """The first or the last item."""
    items = value if isinstance(value, list | tuple | str) else items_of(run, value, what)
    return items[index] if items else Undefined(f"the {what} of nothing")


def reverse(run: Evaluation, value: object) -> object:
    if isinstance(value, str):
        return run.made(value[::-1])
    return items_of(run, value, "reverse")[::-1]


def pairs_of(run: Evaluation, value: object) -> list[object]:
    if not isinstance(value, dict):
        raise EvaluationFailed(f"items needs a mapping, not {kind_of(value)}")
    run.charge(1 + len(value))
    return list(value.items())


def batch(
    run: Evaluation, value: object, linecount: object, fill_with: object = None
) -> list[object]:
    items = items_of(run, value, "batch")
    size = whole(linecount, "the number of items", 1, SIZE_MAX)
    if items and fill_with is not None:
        run.charge(size)
    return list(do_batch(items, size, fill_with))


def slices(
    run: Evaluation, value: object, slices: object, fill_with: object = None
) -> list[object]:
    items = items_of(run, value, "slice")
    count = whole(slices, "the number of slices", 1, SIZE_MAX)
    run.charge(count)
    return list(sync_do_slice(items, count, fill_with))


def with_attribute(
    run: Evaluation, items: list[object], attribute: object, what: str
) -> list[object]:
    """The items themselves, or this attribute of each."""
    if attribute is None:
        return items
    parts = attribute_parts(attribute, what)
    return [required_attribute(item, parts) for item in items]


def total(run: Evaluation, value: object, attribute: object = None, start: object = 0) -> object:
    items = with_attribute(run, items_of(run, value, "sum"), attribute, "sum")
    if all(isinstance(item, int | float) for item in items) and isinstance(start, int | float):
        for item in items:
            checked(item)
        return checked(sum(items, start))  # type: ignore[arg-type]
    result = start
    for item in items:
        result = add(run, result, item)
    return result


def join(run: Evaluation, value: object, d: object = "", attribute: object = None) -> str:
    items = with_attribute(run, items_of(run, value, "join"), attribute, "join")
    return joined(run, run.text(d), items)


def joined(run: Evaluation, separator: str, items: list[object]) -> str:
    """The texts of the items with the separator between them; also the method `join`."""
    run.charge_text(len(separator) * max(0, len(items) - 1))
    texts = []
    for item in items:
        text = run.text(item)
        run.charge_text(len(text))
        texts.append(text)
    return separator.join(texts)


def sort(
    run: Evaluation,
    value: object,
    reverse: object = False,
    case_sensitive: object = False,
    attribute: object = None,
) -> list[object]:
    items = items_of(run, value, "sort")
    names = attribute.split(",") if isinstance(attribute, str) else [attribute]
    columns = [_keys(run, items, name, case_sensitive, "sort") for name in names]
    keys = columns[0]
    if len(columns) > 1:
        keys = [list(key) for key in zip(*columns, strict=True)]
    return [items[index] for index in _order(run, keys, reverse, "sort")]


def dictsort(
    run: Evaluation,
    value: object,
    case_sensitive: object = False,
    by: object = "key",
    reverse: object = False,
) -> list[object]:
    if by not in ("key", "value"):
        raise EvaluationFailed('dictsort sorts by "key" or by "value"')
    pairs = pairs_of(run, value)
    keys = _keys(run, pairs, 0 if by == "key" else 1, case_sensitive, "dictsort")
    return [pairs[index] for index in _order(run, keys, reverse, "dictsort")]


def groupby(
    run: Evaluation,
    value: object,
    attribute: object,
    default: object = None,
    case_sensitive: object = False,
) -> list[object]:
    items = items_of(run, value, "groupby")
    parts = attribute_parts(attribute, "groupby")
    found = [attribute_of(item, parts) for item in items]
    if default is not None:
        found = [default if key is MISSING else key for key in found]
    elif MISSING in found:
        required_attribute(items[found.index(MISSING)], parts)
    keys = [_folded(run, key, case_sensitive) for key in found]
    order = _order(run, keys, False, "groupby")
    groups = [list(indexes) for _, indexes in grouped(order, key=keys.__getitem__)]
    return [Group((found[indexes[0]], [items[index] for index in indexes])) for indexes in groups]


def unique(
    run: Evaluation, value: object, case_sensitive: object = False, attribute: object = None
) -> list[object]:
    items = items_of(run, value, "unique")
    keys = _keys(run, items, attribute, case_sensitive, "unique")
    run.walk(keys)
    kept: dict[object, object] = {}
    for key, item in zip(keys, items, strict=True):
        kept.setdefault(_frozen(key), item)
    return list(kept.values())


def extreme(what: str, pick: Callable[..., int]) -> Filter:
    """The least or the greatest item."""

    def picked(
        run: Evaluation, value: object, case_sensitive: object = False, attribute: object = None
    ) -> object:
        items = items_of(run, value, what)
        if not items:
            return Undefined(f"the {what} of nothing")
        keys = _keys(run, items, attribute, case_sensitive, what)
        run.walk(keys)
        try:
            return items[pick(range(len(items)), key=keys.__getitem__)]
        except TypeError:
            raise _incomparable(what) from None

    return picked


def _incomparable(what: str) -> EvaluationFailed:
    return EvaluationFailed(f"{what}: the items cannot be compared with each other")


def _keys(
    run: Evaluation, items: list[object], attribute: object, case_sensitive: object, what: str
) -> list[object]:
    found = with_attribute(run, items, attribute, what)
    return [_folded(run, key, case_sensitive) for key in found]


def _folded(run: Evaluation, value: object, case_sensitive: object) -> object:
    if case_sensitive or not isinstance(value, str):
        return value
    run.charge_reading(value)
    return value.lower()


def _order(run: Evaluation, keys: list[object], reverse: object, what: str) -> list[int]:
    """The positions of the keys in ascending or descending order; equal keys keep their order.

    Long keys are paid for as often as sorting compares them.
    """
    before = run.ticks_left
    run.walk(keys)
    weight = before - run.ticks_left - len(keys) - 1
    run.charge(weight * len(keys).bit_length())
    try:
        return sorted(range(len(keys)), key=keys.__getitem__, reverse=bool(reverse))  # type: ignore[arg-type]
    except TypeError:
        raise _incomparable(what) from None


def _frozen(value: object) -> object:
    """A hashable value that equals those of equal values and no others."""
    if isinstance(value, dict):
        return frozenset((key, _frozen(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return (type(value) is list, *map(_frozen, value))
    return value


# --- Filters and tests on each item --------------------------------------------------------------


def default(
    run: Evaluation, value: object, default_value: object = "", boolean: object = False
) -> object:
    """The value, or another one if it is missing; with true, also if it is false or empty."""
    if isinstance(value, Undefined) or (boolean and not value):
        return default_value
    return value


def map_items(run: Evaluation, value: object, *args: object, **kwargs: object) -> object:
    if not value:
        return []
    items = items_of(run, value, "map")
    if not args and "attribute" in kwargs:
        return _attributes(run, items, **kwargs)
    if not args:
        raise EvaluationFailed('map needs a filter name, or attribute="…"')
    name, *rest = args
    if not isinstance(name, str) or name not in FILTERS:
        raise EvaluationFailed("map: there is no such filter")
    if fault := misfit(name, FILTERS[name], len(rest), kwargs):
        raise EvaluationFailed(f"map: {fault}")
    found = []
    for item in items:
        run.charge(1)
        result = FILTERS[name](run, item, *rest, **kwargs)
        if isinstance(result, Undefined):
            raise Lacks(result)
        found.append(result)
    return found


def _attributes(
    run: Evaluation, items: list[object], *, attribute: object, default: object = None
) -> list[object]:
    parts = attribute_parts(attribute, "map")
    if default is None:
        return [required_attribute(item, parts) for item in items]
    found = [attribute_of(item, parts) for item in items]
    return [default if part is MISSING else part for part in found]


def chosen(
    run: Evaluation, value: object, attribute: object, test: tuple[object, ...], *, wanted: bool
) -> list[object]:
    """The items that pass a test (or fail it): on the item itself, or on one of its attributes."""
    if not value:
        return []
    items = items_of(run, value, "select")
    parts = [] if attribute is MISSING else attribute_parts(attribute, "selectattr")
    name, *rest = test or ("",)
    if name and (not isinstance(name, str) or name not in TESTS):
        raise EvaluationFailed("there is no such test")
    if name and (fault := misfit(str(name), TESTS[str(name)], len(rest), {})):
        raise EvaluationFailed(fault)
    found = []
    for item in items:
        run.charge(1)
        part = attribute_of(item, parts)
        subject = Undefined("an attribute") if part is MISSING else part
        verdict = passes(run, str(name), subject, rest, {}) if name else bool(subject)
        if verdict is wanted:
            found.append(item)
    return found


# --- Text ----------------------------------------------------------------------------------------


def title(run: Evaluation, value: object) -> str:
    text = run.text(value)
    run.charge(len(text))
    return run.made(do_title(text))


def trim(run: Evaluation, value: object, chars: object = None) -> str:
    return run.made(run.text(value).strip(strippable(run, chars)))


def strippable(run: Evaluation, chars: object) -> str | None:
    """The characters to strip: not many, since each is tried at every position."""
    if chars is None:
        return None
    text = run.text(chars)
    if len(text) > STRIP_MAX:
        raise EvaluationFailed(f"at most {STRIP_MAX} different characters can be stripped")
    return text


def center(run: Evaluation, value: object, width: object = 80) -> str:
    size = whole(width, "the width", 0, WIDTH_MAX)
    text = run.text(value)
    run.charge_text(max(size, len(text)))
    return text.center(size)


def indent(
    run: Evaluation,
    value: object,
    width: object = 4,
    first: object = False,
    blank: object = False,
) -> str:
    margin = width if isinstance(width, str) else " " * whole(width, "the width", 0, WIDTH_MAX)
    text = run.text(value)
    run.charge_text(len(text))
    run.charge_text(len((text + "\n").splitlines()) * (len(margin) + 1))
    return do_indent(text, margin, bool(first), bool(blank))


def replace(run: Evaluation, value: object, old: object, new: object, count: object = None) -> str:
    text, before, after = run.text(value), run.text(old), run.text(new)
    most = -1 if count is None else whole(count, "the count", -1, WIDTH_MAX)
    return replaced(run, text, before, after, most)


def replaced(run: Evaluation, text: str, old: str, new: str, count: int) -> str:
    """`text.replace`, paid for beforehand; also the method `replace`."""
    run.charge_reading(text)
    found = text.count(old)
    if count >= 0:
        found = min(found, count)
    run.charge_text(len(text) + found * max(0, len(new) - len(old)))
    return text.replace(old, new, count)


def format_text(run: Evaluation, value: object, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise EvaluationFailed("format takes either values in order or values by name, not both")
    return formatted(run, run.text(value), kwargs or args)


def truncate(
    run: Evaluation,
    value: object,
    length: object = 255,
    killwords: object = False,
    end: object = "...",
    leeway: object = None,
) -> str:
    text, tail = run.text(value), run.text(end)
    size = whole(length, "the length", len(tail), WIDTH_MAX)
    slack = TRUNCATE_LEEWAY if leeway is None else whole(leeway, "the leeway", 0, WIDTH_MAX)
    if len(text) <= size + slack:
        return text
    kept = text[: size - len(tail)]
    if not killwords:
        kept = kept.rsplit(" ", 1)[0]
    return run.made(kept + tail)


def wordwrap(
    run: Evaluation,
    value: object,
    width: object = 79,
    break_long_words: object = True,
    wrapstring: object = None,
    break_on_hyphens: object = True,
) -> str:
    text = run.text(value)
    size = whole(width, "the width", 1, WIDTH_MAX)
    between = "\n" if wrapstring is None else run.text(wrapstring)
    run.charge(10 * len(text))
    if len(text) > WRAP_TEXT_MAX or any(len(word) > WRAP_WORD_MAX for word in text.split()):
        raise EvaluationFailed(
            f"wordwrap takes at most {WRAP_TEXT_MAX:,} characters in words of at most "
            f"{WRAP_WORD_MAX:,}"
        )
    paragraphs = [
        wrap(
            line,
            width=size,
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=bool(break_long_words),
            break_on_hyphens=bool(break_on_hyphens),
        )
        for line in text.splitlines()
    ]
    run.charge_text(len(text) + len(between) * sum(max(1, len(lines)) for lines in paragraphs))
    return between.join(between.join(lines) for lines in paragraphs)


def wordcount(run: Evaluation, value: object) -> int:
    text = run.text(value)
    count = do_wordcount(text)
    run.charge(count + len(text) // 10)
    return count


def escape(run: Evaluation, value: object) -> str:
    text = run.text(value)
    run.charge_text(len(text) + 5 * sum(text.count(sign) for sign in "&<>'\""))
    escaped = text.replace("&", "&amp;").replace(">", "&gt;").replace("<", "&lt;")
    return escaped.replace("'", "&#39;").replace('"', "&#34;")


def striptags(run: Evaluation, value: object) -> str:
    text = _remove_between(run, _remove_between(run, run.text(value), "<!--", "-->"), "<", ">")
    run.charge(len(text) // 2)
    return run.made(html.unescape(" ".join(text.split())))


def _remove_between(run: Evaluation, text: str, opening: str, closing: str) -> str:
    """The text without everything from an opening to the next closing, in one pass."""
    run.charge_reading(text)
    kept, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start)
        if end < 0:
            break
        run.charge(1)
        kept.append(text[position:start])
        position = end + len(closing)
    kept.append(text[position:])
    return run.made("".join(kept))


def urlencode(run: Evaluation, value: object) -> str:
    if isinstance(value, dict):
        pairs: list[object] = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = list(value)
    else:
        return _quoted(run, value)
    run.charge(1 + len(pairs))
    texts = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise EvaluationFailed("urlencode needs text, a mapping, or a list of pairs")
        key, part = pair
        texts.append(f"{_quoted(run, key, True)}={_quoted(run, part, True)}")
    return run.made("&".join(texts))


def _quoted(run: Evaluation, value: object, in_query: bool = False) -> str:
    data = value if isinstance(value, bytes) else run.text(value).encode()
    run.charge_text(3 * len(data))
    return url_quote(data, for_qs=in_query)


def filesizeformat(run: Evaluation, value: object, binary: object = False) -> str:
    """A number of bytes as people read it, such as 13 kB."""
    try:
        return do_filesizeformat(value, bool(binary))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise EvaluationFailed(f"filesizeformat needs a number, not {kind_of(value)}") from None


# --- Numbers, JSON, base64, digests, patterns and times ------------------------------------------


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
    """The value as JSON."""
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
    """The value that a JSON text says."""
    text = _required_text(value, "fromjson")
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
    """The text or bytes in base64."""
    data = value if isinstance(value, bytes) else run.text(value).encode()
    run.charge_text(2 * len(data))
    return base64.b64encode(data).decode("ascii")


def b64decode(run: Evaluation, value: object) -> str:
    """The text of which this is the base64."""
    text = _required_text(value, "b64decode")
    run.charge_text(len(text))
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        raise EvaluationFailed("b64decode: this is not the base64 form of a text") from None


def sha256(run: Evaluation, value: object) -> str:
    """The SHA-256 digest of the text, in hexadecimal."""
    text = run.text(value)
    run.charge_text(len(text))
    return hashlib.sha256(text.encode()).hexdigest()


def regex_search(run: Evaluation, value: object, pattern: object, group: object = 0) -> object:
    """The first match, or one group of it; none if there is no match."""
    text = run.text(value)
    found = _compiled_pattern(run, text, pattern).search(text)
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
    """The text with what a pattern (RE2) matches replaced."""
    text, template = run.text(value), run.text(replacement)
    most = whole(count, "the count", 0, 1_000_000)
    compiled = _compiled_pattern(run, text, pattern)
    pieces, position = [], 0
    for done, found in enumerate(compiled.finditer(text), start=1):
        # A pattern can make every match read the whole rest of the text.
        run.charge(5 + compiled.groups + (len(text) - position) // 500)
        piece = _expand(run, template, found)
        pieces += [text[position : found.start()], piece]
        run.charge_text(len(piece))
        position = found.end()
        if done == most:
            break
    pieces.append(text[position:])
    run.charge_text(len(text))
    return "".join(pieces)


def _compiled_pattern(run: Evaluation, text: str, pattern: object) -> Any:
    """The compiled pattern; pays for a search through the text."""
    source = _required_text(pattern, "the pattern")
    if len(source) > PATTERN_MAX:
        raise EvaluationFailed(f"a pattern may have at most {PATTERN_MAX:,} characters")
    run.charge(100 + len(text) // 10)
    try:
        return compiled_pattern(source)
    except BadPattern:
        raise EvaluationFailed(
            "the pattern is not one RE2 knows (look-around and back-references are not supported)"
        ) from None


def _expand(run: Evaluation, template: str, found: Any) -> str:
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
    """A time from ISO text, from text in a given format, or from seconds since 1970; UTC by
    default."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        return _parse_time(value, format)
    except (ValueError, OverflowError, OSError, re.error):
        raise EvaluationFailed("to_datetime: the value is not a time in this format") from None


def _parse_time(value: object, layout: object) -> datetime:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    text = _required_text(value, "to_datetime")
    if len(text) > FORMAT_MAX:
        raise ValueError("too long")
    if layout is None:
        made = datetime.fromisoformat(text.strip())
    else:
        made = datetime.strptime(text, _layout(layout))
    return made if made.tzinfo else made.replace(tzinfo=UTC)


def strftime(run: Evaluation, value: object, format: object = "%Y-%m-%dT%H:%M:%S%z") -> str:  # noqa: A002
    """A time as text, in a format such as `%Y-%m-%d`."""
    if not isinstance(value, date):
        raise EvaluationFailed(
            f"strftime needs a time, not {kind_of(value)}; write `| to_datetime | strftime(…)`"
        )
    return run.made(value.strftime(_layout(format)))


def _layout(value: object) -> str:
    """A time format with the common parts only: extensions of the C library pad without limit."""
    layout = _required_text(value, "the format")
    if len(layout) > FORMAT_MAX or STRFTIME_PART.search(layout.replace("%%", "")):
        raise EvaluationFailed("the time format is too long or has an unknown % part")
    return layout


def _required_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise EvaluationFailed(f"{what} needs text, not {kind_of(value)}")
    return value


# --- The table -----------------------------------------------------------------------------------


FILTERS: dict[str, Filter] = {
    "abs": lambda run, value: abs(number(value, "abs")),
    "b64decode": b64decode,
    "b64encode": b64encode,
    "batch": batch,
    "capitalize": lambda run, value: run.made(run.text(value).capitalize()),
    "center": center,
    "count": length,
    "d": default,
    "default": default,
    "dictsort": dictsort,
    "e": escape,
    "escape": escape,
    "filesizeformat": filesizeformat,
    "first": lambda run, value: end(run, value, "first", 0),
    "float": to_float,
    "format": format_text,
    "fromjson": fromjson,
    "groupby": groupby,
    "indent": indent,
    "int": to_int,
    "items": pairs_of,
    "join": join,
    "last": lambda run, value: end(run, value, "last", -1),
    "length": length,
    "list": lambda run, value: list(items_of(run, value, "list")),
    "lower": lambda run, value: run.made(run.text(value).lower()),
    "map": map_items,
    "max": extreme("max", max),
    "min": extreme("min", min),
    "regex_replace": regex_replace,
    "regex_search": regex_search,
    "reject": lambda run, value, *args: chosen(run, value, MISSING, args, wanted=False),
    "rejectattr": lambda run, value, attribute, *args: chosen(
        run, value, attribute, args, wanted=False
    ),
    "replace": replace,
    "reverse": reverse,
    "round": rounded,
    "select": lambda run, value, *args: chosen(run, value, MISSING, args, wanted=True),
    "selectattr": lambda run, value, attribute, *args: chosen(
        run, value, attribute, args, wanted=True
    ),
    "sha256": sha256,
    "slice": slices,
    "sort": sort,
    "strftime": strftime,
    "string": lambda run, value: run.text(value),
    "striptags": striptags,
    "sum": total,
    "title": title,
    "to_datetime": to_datetime,
    "tojson": tojson,
    "trim": trim,
    "truncate": truncate,
    "unique": unique,
    "upper": lambda run, value: run.made(run.text(value).upper()),
    "urlencode": urlencode,
    "wordcount": wordcount,
    "wordwrap": wordwrap,
}

TAKE_UNDEFINED = frozenset({"default", "d"})
"""Filters that accept a missing value."""
COUNT_UNDEFINED = frozenset({"length", "count"})
"""Filters that give 0 for a missing value in a condition."""
MAKE_TUPLES = frozenset({"items", "dictsort", "groupby"})
"""Filters whose results hold tuples, which become lists in the final value."""


@lru_cache(maxsize=512)
def _signature(function: Filter) -> inspect.Signature:
    return inspect.signature(function)


def misfit(name: str, function: Filter, positional: int, named: Mapping[str, object]) -> str:
    """What is wrong with the arguments of a filter, test, function or method; empty if nothing."""
    signature = _signature(function)
    fixed = [key for key in signature.parameters if key in ("run", "value")]
    try:
        signature.bind(*fixed, *[None] * positional, **named)
    except TypeError as error:
        takes = [
            str(part).split(":")[0] for part in list(signature.parameters.values())[len(fixed) :]
        ]
        return f'"{name}" takes ({", ".join(takes)}): {error}'
    return ""
