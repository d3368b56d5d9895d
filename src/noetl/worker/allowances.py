"""What one call may take: what the playbook asks for, within the limits that bind it.

Numbers that are written as such were cut when the playbook was compiled. Those that are templates
are known here, and limits may have become tighter since.
"""

from __future__ import annotations

from typing import Any

from noetl.engine.pipeline import TaskProgram
from noetl.errors import EvaluationFailed
from noetl.model.duration import seconds
from noetl.model.net import Limits
from noetl.worker.frame import Frame

REPEAT_PAUSE = 0.1
"""Seconds before a tool tries again by itself (`spec.retry`), where nothing else is said."""


def timeout_of(program: TaskProgram, frame: Frame) -> Any:
    """`spec.timeout` in seconds, whole or by its parts; None if nothing bounds the call."""
    most = _limits(frame).timeout
    if program.timeout.is_literal and most is None:
        return program.task.timeout
    what = f'timeout of task "{program.task.name}"'
    written = program.timeout.render(frame.scope, what)
    if isinstance(written, dict):
        bounded = {name: _bounded(value, most, what) for name, value in written.items()}
        return bounded if most is None else {"total": most, **bounded}
    return _bounded(written, most, what)


def _bounded(written: Any, most: float | None, what: str) -> float | None:
    if written is None:
        return most
    length = None if isinstance(written, bool | list | dict) else seconds(written)
    if length is None:
        raise EvaluationFailed(
            f"the {what} is {written!r}, which is no duration."
            " Write seconds, or a text such as 30s or 5m."
        )
    return length if most is None else min(length, most)


def jumps_of(program: TaskProgram, frame: Frame) -> float | None:
    """How many jumps back one run may make; None if nothing says so."""
    asked = program.max_jumps.render(frame.scope, f'max_jumps of task "{program.task.name}"')
    bounds = [one for one in (asked, _limits(frame).max_jumps) if isinstance(one, int | float)]
    return min(bounds, default=None)


def repeats_of(program: TaskProgram, frame: Frame) -> tuple[int, float]:
    """How often the tool tries again by itself, and the seconds before each time."""
    written = program.task.spec.get("retry", 0)
    pause = REPEAT_PAUSE
    if isinstance(written, dict):
        written, pause = written.get("attempts", 1), float(written.get("delay", pause))
    most = _limits(frame).max_attempts
    return int(written) if most is None else min(int(written), most - 1), pause


def _limits(frame: Frame) -> Limits:
    return frame.program.net.executor.limits
