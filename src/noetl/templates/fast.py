"""The fast path: simple expressions become one Python function.

It is an optimist. The function handles plain scalars, whole containers that are passed on, and
missing values where the answer is plain; on anything else (a view used whole, a wrong type, a
large number, an undefined that is an error) it gives BAIL or raises, and the general path does the
work again and reports what there is to report. So there is one set of rules, that of the general
path, and nothing here costs more than the expression is long.

The source comes from `fast_code`; the function sees nothing but the names in `_GLOBALS`.
"""

from __future__ import annotations

from collections.abc import Callable

from jinja2 import nodes

from noetl.templates.fast_code import CONVERTIBLE, TEXT_MAX, NotFast, Writer
from noetl.templates.filters_data import whole_of
from noetl.templates.scope import Scope
from noetl.templates.taint import Tainted
from noetl.templates.views import MISSING, AliasedName, Missing, lookup

Fast = Callable[[Scope], object]

NODES_MAX = 300
LIST_MAX = 1_000
INTEGER_BOUND = 2**4096

FALSE_TEXTS = frozenset({"", "false", "False", "0", "no", "none", "None"})
"""Texts that make a condition false."""


class _Bail:
    def __repr__(self) -> str:
        return "BAIL"


BAIL = _Bail()
"""The fast path does not know; ask the general one."""


_NONE = type(None)
_NUMBERS = frozenset({int, float})
_FINAL = frozenset({str, int, float, bool, _NONE, list, dict})
_SCALARS = frozenset({str, int, float, bool, _NONE, AliasedName})
_PLAIN = frozenset({*_FINAL, AliasedName, Missing})


def _look(container: object, key: object) -> object:
    if type(container) is Tainted:
        raise TypeError
    return lookup(container, key)


def _contains(item: object, container: object) -> object:
    kind = type(container)
    if type(item) in _SCALARS:
        if kind is dict:
            return item in container  # type: ignore[operator]
        if kind is list and len(container) <= LIST_MAX:  # type: ignore[arg-type]
            return item in container  # type: ignore[operator]
        if kind is str and len(container) <= TEXT_MAX:  # type: ignore[arg-type]
            return item in container  # type: ignore[operator]
    if Tainted not in (type(item), kind) and (item is MISSING or container is MISSING):
        return False
    raise TypeError


def _holds(value: object) -> object:
    """What a condition makes of a value."""
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        return value.strip() not in FALSE_TEXTS if len(value) <= TEXT_MAX else BAIL
    return bool(value) if kind in _PLAIN and kind is not AliasedName else BAIL


_GLOBALS = {
    "__builtins__": {"str": str, "len": len, "int": int, "list": list, "dict": dict},
    "A": AliasedName,
    "B": BAIL,
    "M": MISSING,
    "T": Tainted,
    "L": INTEGER_BOUND,
    "NUMBERS": _NUMBERS,
    "FINAL": _FINAL,
    "SCALARS": _SCALARS,
    "PLAIN": _PLAIN,
    "CONVERTIBLE": CONVERTIBLE,
    "look": _look,
    "contains": _contains,
    "holds": _holds,
    "whole": whole_of,
}


def compile_fast(parts: list[nodes.Node], *, native: bool, strict: bool) -> Fast | None:
    """The function for an expression (native) or for a text of several, or None if it is not one.

    With `strict` it gives the value, without it gives whether the condition holds.
    """
    writer = Writer(strict)
    try:
        if sum(1 for part in parts for _ in part.find_all(nodes.Node)) > NODES_MAX:
            return None
        if native:
            writer.finish(writer.emit(parts[0]))
        else:
            writer.finish_text(parts)
    except NotFast:
        return None
    namespace = {**_GLOBALS, **writer.constants}
    code = compile("\n".join(writer.lines), "<expression>", "exec")
    exec(code, namespace)  # noqa: S102  our own source, see above
    function = namespace["evaluate"]
    assert callable(function)
    return function
