"""Short ways to evaluate a template in tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from noetl.errors import NoetlError
from noetl.templates import Scope, compile_condition, compile_text

NOON = datetime(2024, 5, 17, 12, 30, 15, tzinfo=UTC)


def scope(**roots: object) -> Scope:
    return Scope(roots, now=NOON, seed="seed")


def outcome(work: Callable[..., object], *args: object) -> object:
    """What came of it: a result, or the error we raise on purpose. Anything else is a bug."""
    try:
        return work(*args)
    except NoetlError as error:
        return error


def value(text: str, **roots: object) -> object:
    """What the text gives, on the general path and on the fast one if it has one."""
    template, around = compile_text(text), scope(**roots)
    result = template.evaluate_generally(around)
    fast = template.fast_function(strict=True)
    if fast is not None:
        template._fast = fast
        again = template.evaluate(around)
        assert repr(again) == repr(result)
    return result


def holds(text: object, **roots: object) -> bool:
    """Whether the condition holds, on both paths."""
    condition, around = compile_condition(text), scope(**roots)
    result = condition.holds_generally(around)
    if condition.template is not None:
        condition._fast = condition.template.fast_function(strict=False)
        assert condition.holds(around) is result
    return result
