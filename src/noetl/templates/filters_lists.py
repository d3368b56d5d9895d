"""Filters on lists and mappings. Where Jinja gives a generator, these give a list."""

from __future__ import annotations

from itertools import groupby as grouped

from noetl.templates.errors import EvaluationFailed
from noetl.templates.evaluation import (
    Evaluation,
    Undefined,
    attribute_of,
    attribute_parts,
    items_of,
    kind_of,
    required_attribute,
    whole,
)
from noetl.templates.operators import add, checked
from noetl.templates.views import MISSING, Group

SIZE_MAX = 1_000_000


def length(run: Evaluation, value: object) -> int:
    if isinstance(value, str | list | tuple | dict | bytes):
        return len(value)
    raise EvaluationFailed(f"length needs text, a list or a mapping, not {kind_of(value)}")


def list_of(run: Evaluation, value: object) -> list[object]:
    return list(items_of(run, value, "list"))


def first(run: Evaluation, value: object) -> object:
    items = value if isinstance(value, list | tuple | str) else items_of(run, value, "first")
    return items[0] if items else Undefined("the first of nothing")


def last(run: Evaluation, value: object) -> object:
    items = value if isinstance(value, list | tuple | str) else items_of(run, value, "last")
    return items[-1] if items else Undefined("the last of nothing")


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
    lines = [items[start : start + size] for start in range(0, len(items), size)]
    if lines and fill_with is not None:
        run.charge(size)
        lines[-1] = lines[-1] + [fill_with] * (size - len(lines[-1]))
    return list(lines)


def slices(
    run: Evaluation, value: object, slices: object, fill_with: object = None
) -> list[object]:
    items = items_of(run, value, "slice")
    count = whole(slices, "the number of slices", 1, SIZE_MAX)
    run.charge(count)
    size, longer = divmod(len(items), count)
    made: list[object] = []
    position = 0
    for index in range(count):
        end = position + size + (index < longer)
        part = items[position:end]
        if fill_with is not None and index >= longer:
            part.append(fill_with)
        made.append(part)
        position = end
    return made


def with_attribute(
    run: Evaluation, items: list[object], attribute: object, what: str
) -> list[object]:
    """The items themselves, or that attribute of each."""
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
    """The items' texts with the separator between; also the method `join`."""
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


def least(
    run: Evaluation, value: object, case_sensitive: object = False, attribute: object = None
) -> object:
    return _extreme(run, value, case_sensitive, attribute, "min")


def greatest(
    run: Evaluation, value: object, case_sensitive: object = False, attribute: object = None
) -> object:
    return _extreme(run, value, case_sensitive, attribute, "max")


def _extreme(
    run: Evaluation, value: object, case_sensitive: object, attribute: object, what: str
) -> object:
    items = items_of(run, value, what)
    if not items:
        return Undefined(f"the {what} of nothing")
    keys = _keys(run, items, attribute, case_sensitive, what)
    run.walk(keys)
    pick = min if what == "min" else max
    try:
        return items[pick(range(len(items)), key=keys.__getitem__)]  # type: ignore[arg-type]
    except TypeError:
        raise EvaluationFailed(f"{what}: the items cannot be compared with each other") from None


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
    """The positions of the keys from least to greatest, or the other way; equal ones as they were.

    Long keys are paid for as often as sorting compares them.
    """
    before = run.ticks_left
    run.walk(keys)
    weight = before - run.ticks_left - len(keys) - 1
    run.charge(weight * len(keys).bit_length())
    try:
        return sorted(range(len(keys)), key=keys.__getitem__, reverse=bool(reverse))  # type: ignore[arg-type]
    except TypeError:
        raise EvaluationFailed(f"{what}: the items cannot be compared with each other") from None


def _frozen(value: object) -> object:
    """A stand-in that can be a key and equals exactly the stand-ins of equal values."""
    if isinstance(value, dict):
        return frozenset((key, _frozen(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return (type(value) is list, *map(_frozen, value))
    return value
