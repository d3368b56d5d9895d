"""What a call is given, what it may take, and what it must yield; and the child that it may be.

Numbers that are written as such were cut to the limits when the playbook was compiled. Those that
are templates are known here, and limits may have become tighter since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from noetl.engine.durations import length_of
from noetl.engine.pipeline.actions import rendered
from noetl.engine.pipeline.frame import Frame
from noetl.engine.pipeline.rules import TaskProgram
from noetl.errors import EvaluationFailed
from noetl.model.commands import ChildRequest
from noetl.model.ids import derive
from noetl.model.net import Limits, Task
from noetl.model.outcome import Outcome, TaskError, failed
from noetl.model.toolshape import ToolShape, told
from noetl.templates import Tainted, view
from noetl.templates.views import MISSING

REPEAT_PAUSE = 0.1
"""Seconds before a tool tries again by itself (`spec.retry`), where nothing else is said."""


# --- What it may take --------------------------------------------------------------------------


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
    length = length_of(written, what)
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


def total_seconds(timeout: Any) -> float | None:
    """How long a whole call may take; None if nothing says so."""
    if timeout is None:
        return None
    if isinstance(timeout, dict):
        timeout = timeout.get("total")
    return float(timeout) if isinstance(timeout, int | float) else None


def hook_cause(action_id: str, hook: str, attempt: int) -> str:
    """What the calls of a hook are named after: they run around each try, and are its own."""
    return derive(action_id, hook, *((attempt,) if attempt > 1 else ()))


# --- What it is given, and what it yields ------------------------------------------------------


def unmet(task: Task, inputs: Mapping[str, Any]) -> Outcome | None:
    """The failure of a task that lacks inputs it expects (`assert.expects`)."""
    missing = [name for name in _promised(task, "expects") if name not in inputs]
    if not missing:
        return None
    names = ", ".join(f"`{name}`" for name in missing)
    return failed("schema", f'task "{task.name}" expects {names}, which it was not given.')


def asserted(program: TaskProgram, frame: Frame, outcome: Outcome) -> Outcome:
    """The outcome, or its failure if the result is not what the task promises."""
    task = program.task
    if not outcome.is_ok:
        return outcome
    if program.schema is not None and not isinstance(outcome.result, Tainted):
        wrong = program.schema.wrong(outcome.result)
        if wrong is not None:
            return _broken(outcome, f'the result of task "{task.name}" breaks its schema: {wrong}')
    if "assert" not in task.spec:
        return outcome
    shown = view(frame.program.views[task.kind], outcome.result)
    if isinstance(shown, Tainted):
        return outcome
    missing = [name for name in _promised(task, "returns") if shown.get(name) is MISSING]
    if not missing:
        return outcome
    names = ", ".join(f"`{name}`" for name in missing)
    return _broken(outcome, f'the result of task "{task.name}" lacks {names}.')


def _broken(outcome: Outcome, message: str) -> Outcome:
    error = TaskError(kind="schema", code="result", message=message)
    return msgspec.structs.replace(outcome, status="error", result=None, error=error)


def _promised(task: Task, key: str) -> list[str]:
    promised = task.spec.get("assert")
    return promised.get(key, []) if isinstance(promised, dict) else []


def overridden(
    config: dict[str, Any], inputs: dict[str, Any], overrides: dict[str, Any], tool: ToolShape
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The next call (`call`, `next_call`): some of the config or inputs changed, in whatever
    spelling a task of this kind may use.
    """
    if not overrides:
        return config, inputs
    changed: dict[str, Any] = {}
    for key, value in overrides.items():
        if key in ("args", "input", "with") and not tool.takes(key):
            inputs = _merged(inputs, value if isinstance(value, dict) else {})
        else:
            changed[tool.aliases.get(key, key)] = value
    return _merged(config, changed), inputs


def _merged(config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Mappings keep what is not named."""
    merged = dict(config)
    for key, value in overrides.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = {**below, **value} if both else value  # type: ignore[dict-item]
    return merged


def configured(config: dict[str, Any], tool: ToolShape) -> msgspec.Struct | Outcome:
    """The rendered config as its tool takes it, or why it cannot be one."""
    try:
        made = msgspec.convert(config, tool.config, strict=False)
    except msgspec.ValidationError as error:
        why = tool.misfit(*told(error))
        return failed("schema", f"{why} Check its template.", code="config")
    for group in tool.needs:
        if all(getattr(made, name) is None for name in group):
            needed = " or ".join(f"`{name}`" for name in group)
            why = f"kind {tool.kind} needs {needed}, and what is written there came out empty."
            return failed("schema", f"{why} Check its template.", code="config")
    return made


_Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None


def child_request(program: TaskProgram, frame: Frame, shape: ToolShape) -> ChildRequest | Outcome:
    """The execution that a task is, or why there is none. `shape` is that of its kind."""
    try:
        config = rendered(program.config, frame.scope, f"task {program.task.name}")
        inputs = rendered(program.inputs, frame.scope, f"args of {program.task.name}")
        config, inputs = overridden(config, inputs, frame.tries.overrides, shape)
        limit = total_seconds(timeout_of(program, frame))
        if (lacking := unmet(program.task, inputs)) is not None:
            return lacking
    except EvaluationFailed as error:
        return failed("schema", str(error), code=error.code)
    try:
        version = msgspec.convert(config.get("version"), _Version, strict=False)
    except msgspec.ValidationError:
        why = f"`version` of a playbook is a whole number from 1, not {config['version']!r:.60}."
        return failed("not_found", f"{why} Leave it out for the newest.", code="no_playbook")
    asked: Any = configured({**config, "version": version}, shape)
    if isinstance(asked, Outcome):
        return asked
    return ChildRequest(
        path=asked.path,
        version=version,
        workload={**(asked.payload or {}), **inputs},
        return_step=asked.return_step,
        timeout=limit,
    )
