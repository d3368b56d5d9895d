"""What a template can call: three functions, and a few methods of texts and mappings.

A method is a name in this table, never an attribute of a Python object: `x.upper()` works as people
expect, and nothing else can be reached. Whatever does not depend on the data is checked when the
template is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import NAMESPACE_URL, uuid5

from noetl.errors import EvaluationFailed
from noetl.templates.evaluation import Evaluation, items_of, kind_of, whole
from noetl.templates.filters import joined, replaced, strippable
from noetl.templates.views import MISSING, lookup

RANGE_MAX = 1_000_000
BOUND_MAX = 2**63
SPLITS_MAX = 1_000_000

Callee = Callable[..., object]


def now(run: Evaluation) -> object:
    """The time of the event that is being handled: a replay gives the same."""
    if run.scope.now is None:
        raise EvaluationFailed("now() has no time here")
    return run.scope.now


def uuid(run: Evaluation) -> object:
    """A new id at each call; a replay gives the same ids again."""
    run.uuids += 1
    return str(uuid5(NAMESPACE_URL, f"noetl:{run.scope.seed}:{run.place}:{run.uuids}"))


def make_range(run: Evaluation, start: object, stop: object = None, step: object = 1) -> object:
    """The whole numbers from `start` up to, not including, `stop`."""
    first, end = (0, start) if stop is None else (start, stop)
    bounds = [
        whole(part, "a bound of range()", -BOUND_MAX, BOUND_MAX) for part in (first, end, step)
    ]
    if bounds[2] == 0:
        raise EvaluationFailed("the step of range() must not be 0")
    numbers = range(*bounds)
    if bool(numbers) and (numbers[-1] - numbers[0]) // bounds[2] >= RANGE_MAX:
        raise EvaluationFailed(f"range() gives at most {RANGE_MAX:,} numbers")
    run.charge(1 + len(numbers))
    return list(numbers)


def _text_split(run: Evaluation, value: str, sep: object = None, maxsplit: object = -1) -> object:
    if sep is not None and (not isinstance(sep, str) or not sep):
        raise EvaluationFailed("split() needs a text to split at")
    run.charge_reading(value)
    most = whole(maxsplit, "maxsplit", -1, SPLITS_MAX)
    parts = len(value) // 2 if sep is None else value.count(sep)
    run.charge(1 + (parts if most < 0 else min(parts, most)))
    return value.split(sep, most)


def _text_replace(
    run: Evaluation, value: str, old: object, new: object, count: object = -1
) -> object:
    most = whole(count, "the count", -1, SPLITS_MAX)
    return replaced(run, value, _text(old), _text(new), most)


def _stripping(strip: Callable[[str, str | None], str]) -> Callee:
    def stripped(run: Evaluation, value: str, chars: object = None) -> object:
        return run.made(strip(value, strippable(run, chars)))

    return stripped


def _mapping_get(
    run: Evaluation, value: dict[object, object], key: object, default: object = None
) -> object:
    found = lookup(value, key)
    return default if found is MISSING else found


def _listed(parts: Callable[[dict[object, object]], Iterable[object]]) -> Callee:
    def listed(run: Evaluation, value: dict[object, object]) -> object:
        run.charge(1 + len(value))
        return list(parts(value))

    return listed


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise EvaluationFailed(f"the method needs text, not {kind_of(value)}")
    return value


def _texts(run: Evaluation, value: object) -> str | tuple[str, ...]:
    run.walk(value)
    return tuple(map(_text, value)) if isinstance(value, list | tuple) else _text(value)


FUNCTIONS: dict[str, Callee] = {"now": now, "uuid": uuid, "range": make_range}

METHODS: dict[str, tuple[type, Callee]] = {
    "split": (str, _text_split),
    "upper": (str, lambda run, value: run.made(value.upper())),
    "lower": (str, lambda run, value: run.made(value.lower())),
    "strip": (str, _stripping(str.strip)),
    "lstrip": (str, _stripping(str.lstrip)),
    "rstrip": (str, _stripping(str.rstrip)),
    "startswith": (str, lambda run, value, prefix: value.startswith(_texts(run, prefix))),
    "endswith": (str, lambda run, value, suffix: value.endswith(_texts(run, suffix))),
    "replace": (str, _text_replace),
    "join": (str, lambda run, value, items: joined(run, value, items_of(run, items, "join()"))),
    "get": (dict, _mapping_get),
    "items": (dict, _listed(dict.items)),
    "keys": (dict, _listed(dict.keys)),
    "values": (dict, _listed(dict.values)),
}

INSTEAD = {
    "append": "write `list + [item]`",
    "extend": "write `list + other_list`",
    "flatten": "lists are joined by `| sum(start=[])`",
    "update": "give the new keys in a set_ctx",
    "format": 'write `"%s" | format(x)`, or join texts with `~`',
    "title": "write `| title`",
    "capitalize": "write `| capitalize`",
    "count": "write `| length`",
    "index": "use a python task",
    "find": "write `text in other_text` or `| regex_search(…)`",
    "isoformat": "write `| string` or `| strftime(…)`",
    "strftime": "write `| strftime(…)`",
    "date": "write `| strftime('%Y-%m-%d')`",
    "encode": "write `| b64encode`",
    "decode": "write `| b64decode`",
    "isdigit": 'write `| regex_search("^[0-9]+$")`',
    "len": "write `| length`",
    "str": "write `| string`",
    "int": "write `| int`",
    "float": "write `| float`",
    "list": "write `| list`",
    "dict": "write `{…}`",
    "sum": "write `| sum`",
    "max": "write `| max`",
    "min": "write `| min`",
    "sorted": "write `| sort`",
    "round": "write `| round`",
    "abs": "write `| abs`",
    "namespace": "use a python task, or a filter such as `sum` or `join`",
    "env": "declare the variable in the keychain (`kind: env`)",
    "lookup": "declare it in the keychain",
}
"""What to write in place of functions, methods and filters that people know from elsewhere."""


def call_method(run: Evaluation, name: str, value: object, args: tuple[object, ...]) -> object:
    """Call a method in the table on a plain value."""
    kind, method = METHODS[name]
    if not isinstance(value, kind):
        wanted = "text" if kind is str else "a mapping"
        raise EvaluationFailed(f".{name}() needs {wanted}, not {kind_of(value)}")
    return method(run, value, *args)
