"""Short ways to evaluate a template in tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from noetl.errors import NoetlError
from noetl.templates import Condition, Scope, Template, compile_condition, compile_text

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
    """What the text gives, by inlined code and by code that is not."""
    around = scope(**roots)
    result = outcome(Template(text, inline=False).evaluate, around)
    assert repr(outcome(compile_text(text).evaluate, around)) == repr(result)
    if isinstance(result, NoetlError):
        raise result
    return result


def holds(text: object, **roots: object) -> bool:
    """Whether the condition holds, by inlined code and by code that is not."""
    condition, around = compile_condition(text), scope(**roots)
    result = condition.holds(around)
    if condition.template is not None:
        other = Condition(text, Template(condition.template.source, inline=False))
        assert other.holds(around) is result
    return result
