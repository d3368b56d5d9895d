"""What a loop goes over: a list, a mapping, or the numbers of a range.

Loops of steps and of workbook entries read their collection here and nowhere else.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from noetl.engine.program import LoopProgram
from noetl.errors import BadCollection
from noetl.model.commands import Chunk
from noetl.model.net import Loop
from noetl.templates import Compiled, Scope

ITERATIONS_MAX = 10_000_000
NUMBER_MAX = 1e300
"""Beyond it, one can no longer count with numbers."""


class Numbers(NamedTuple):
    """The numbers of a range: `total` of them, the first is `begin`, each further one `by` more."""

    total: int
    begin: int | float
    by: int | float

    def at(self, index: int) -> int | float:
        return self.begin + index * self.by


def elements_of(loop: LoopProgram, scope: Scope, where: str) -> list[Any]:
    """The elements of a list or mapping. Raises BadCollection and EvaluationFailed.

    `where` is whose loop it is, for messages: `step "a"`.
    """
    found = loop.items.render(scope, f"loop of {where}")
    if isinstance(found, dict):
        return [{"key": key, "value": value} for key, value in found.items()]
    if not isinstance(found, list):
        kind = "nothing" if found is None else type(found).__name__
        raise BadCollection(
            f"the loop of {where} goes over a list or a mapping, but `in` is {kind}."
            " Check the expression, or give it `| default([])`."
        )
    return found


def numbers_of(span: tuple[Compiled, ...], scope: Scope, where: str) -> Numbers:
    """The numbers of a range. Raises BadCollection and EvaluationFailed."""
    begin, stop, by = (
        _number(part.render(scope, f"loop of {where}"), name, where)
        for name, part in zip(("from", "to", "step"), span, strict=True)
    )
    if by == 0:
        raise BadCollection(f"the range of {where} has `step: 0` and would never end.")
    total = (stop - begin) / by
    if total > ITERATIONS_MAX:
        raise BadCollection(
            f"the range of {where} has {total:.0f} numbers; at most {ITERATIONS_MAX}."
        )
    return Numbers(max(0, math.ceil(total)), begin, by)


def element(loop: Loop, index: int, chunk: Chunk) -> Any:
    """The element of one iteration."""
    if loop.range is not None:
        return chunk.begin + index * chunk.by
    if chunk.items is None:
        return None  # a cursor's row goes with the progress of the iteration that waits
    return chunk.items[index - chunk.start]


def whole_number(written: Compiled, scope: Scope, name: str, where: str) -> int | None:
    """A setting of a loop that is at least 1; None where nothing is written."""
    value: Any = written.render(scope, f"{name} of {where}")
    if value is None:
        return None
    number = _number(value, name, where)
    if number < 1:
        raise BadCollection(f"`{name}` in the loop of {where} is {value!r}; it must be at least 1.")
    return int(number)


def _number(value: Any, name: str, where: str) -> Any:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = _float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise BadCollection(f"`{name}` in the loop of {where} is {value!r}, which is not a number.")
    if abs(value) > NUMBER_MAX:
        raise BadCollection(f"`{name}` in the loop of {where} is {value!r:.60}: that is too large.")
    return value


def _float(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
