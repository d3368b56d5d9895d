"""The filters of the language in one visible table, and those that apply others to each item."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache

from noetl.templates import filters_data as data
from noetl.templates import filters_lists as lists
from noetl.templates import filters_text as text
from noetl.templates.errors import EvaluationFailed
from noetl.templates.evaluation import (
    Evaluation,
    Lacks,
    Undefined,
    attribute_of,
    attribute_parts,
    items_of,
    required_attribute,
)
from noetl.templates.predicates import TESTS, passes
from noetl.templates.views import MISSING

Filter = Callable[..., object]


def default(
    run: Evaluation, value: object, default_value: object = "", boolean: object = False
) -> object:
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


def select(run: Evaluation, value: object, *args: object) -> object:
    return _chosen(run, value, args, wanted=True, by_attribute=False)


def reject(run: Evaluation, value: object, *args: object) -> object:
    return _chosen(run, value, args, wanted=False, by_attribute=False)


def selectattr(run: Evaluation, value: object, attribute: object, *args: object) -> object:
    return _chosen(run, value, (attribute, *args), wanted=True, by_attribute=True)


def rejectattr(run: Evaluation, value: object, attribute: object, *args: object) -> object:
    return _chosen(run, value, (attribute, *args), wanted=False, by_attribute=True)


def _chosen(
    run: Evaluation, value: object, args: tuple[object, ...], *, wanted: bool, by_attribute: bool
) -> list[object]:
    """The items that pass a test (or fail it): on the item itself, or on one of its attributes."""
    if not value:
        return []
    items = items_of(run, value, "select")
    parts = attribute_parts(args[0], "selectattr") if by_attribute else []
    name, *rest = args[by_attribute:] or ("",)
    if name and (not isinstance(name, str) or name not in TESTS):
        raise EvaluationFailed("there is no such test")
    if name and (fault := misfit(str(name), TESTS[str(name)], len(rest), {})):
        raise EvaluationFailed(fault)
    chosen = []
    for item in items:
        run.charge(1)
        part = attribute_of(item, parts)
        subject = Undefined("an attribute") if part is MISSING else part
        verdict = passes(run, str(name), subject, tuple(rest)) if name else bool(subject)
        if verdict is wanted:
            chosen.append(item)
    return chosen


FILTERS: dict[str, Filter] = {
    "abs": data.absolute,
    "b64decode": data.b64decode,
    "b64encode": data.b64encode,
    "batch": lists.batch,
    "capitalize": text.capitalize,
    "center": text.center,
    "count": lists.length,
    "d": default,
    "default": default,
    "dictsort": lists.dictsort,
    "e": text.escape,
    "escape": text.escape,
    "filesizeformat": text.filesizeformat,
    "first": lists.first,
    "float": data.to_float,
    "format": text.format_text,
    "fromjson": data.fromjson,
    "groupby": lists.groupby,
    "indent": text.indent,
    "int": data.to_int,
    "items": lists.pairs_of,
    "join": lists.join,
    "last": lists.last,
    "length": lists.length,
    "list": lists.list_of,
    "lower": text.lower,
    "map": map_items,
    "max": lists.greatest,
    "min": lists.least,
    "regex_replace": data.regex_replace,
    "regex_search": data.regex_search,
    "reject": reject,
    "rejectattr": rejectattr,
    "replace": text.replace,
    "reverse": lists.reverse,
    "round": data.rounded,
    "select": select,
    "selectattr": selectattr,
    "sha256": data.sha256,
    "slice": lists.slices,
    "sort": lists.sort,
    "strftime": data.strftime,
    "string": text.string,
    "striptags": text.striptags,
    "sum": lists.total,
    "title": text.title,
    "to_datetime": data.to_datetime,
    "tojson": data.tojson,
    "trim": text.trim,
    "truncate": text.truncate,
    "unique": lists.unique,
    "upper": text.upper,
    "urlencode": text.urlencode,
    "wordcount": text.wordcount,
    "wordwrap": text.wordwrap,
}

TAKE_UNDEFINED = frozenset({"default", "d"})
"""Filters made for values that are not there."""
COUNT_UNDEFINED = frozenset({"length", "count"})
"""Filters that find nothing, 0, in a condition on a value that is not there."""
MAKE_TUPLES = frozenset({"items", "dictsort", "groupby"})
"""Filters whose results hold pairs; as a final value they become lists."""


@lru_cache(maxsize=512)
def _signature(function: Filter) -> inspect.Signature:
    return inspect.signature(function)


def misfit(name: str, function: Filter, positional: int, named: Mapping[str, object]) -> str:
    """What is wrong with the arguments of a filter, test, function or method; or nothing."""
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
