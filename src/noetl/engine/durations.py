"""Durations in playbooks: a number, a text like 5m, or a template that yields one of them."""

from __future__ import annotations

from typing import Any

from noetl.errors import EvaluationFailed
from noetl.model.duration import seconds
from noetl.templates import Compiled, Scope


def duration(written: Compiled, scope: Scope, what: str) -> float | None:
    """The length in seconds; None where nothing is written."""
    value: Any = written.render(scope, what)
    if value is None:
        return None
    is_amount = isinstance(value, int | float | str) and not isinstance(value, bool)
    length = seconds(value) if is_amount else None
    if length is None:
        raise EvaluationFailed(
            f"the {what} is {value!r}, which is not a duration."
            " Write seconds, or a text such as 30s or 5m."
        )
    return length
