"""Durations in playbooks: a number, a text like 5m, or a template that yields one of them."""

from __future__ import annotations

from typing import Any

from noetl.errors import EvaluationFailed
from noetl.model.duration import seconds
from noetl.templates import Compiled, Scope


def duration(written: Compiled, scope: Scope, what: str) -> float | None:
    """The length in seconds; None where nothing is written."""
    value = written.render(scope, what)
    return None if value is None else length_of(value, what)


def length_of(value: Any, what: str) -> float:
    """The seconds that a value says. Raises EvaluationFailed if it is not a duration."""
    is_amount = isinstance(value, int | float | str) and not isinstance(value, bool)
    length = seconds(value) if is_amount else None
    if length is None:
        raise EvaluationFailed(
            f"the {what} is {value!r}, which is not a duration."
            " Write seconds, or a text such as 30s or 5m."
        )
    return length
