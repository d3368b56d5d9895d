"""Results fit for the record: a large one is kept apart, and a reference stands for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from noetl.engine.pipeline.frame import Frame
from noetl.errors import TooLarge
from noetl.model import refs
from noetl.model.commands import Command
from noetl.model.ids import derive
from noetl.model.net import Task, Values
from noetl.model.outcome import ErrorKind, Outcome, TaskError
from noetl.templates import MASK, Tainted, view
from noetl.templates.views import MISSING, View, at_path


class Body(NamedTuple):
    """A value to be kept under its key."""

    key: str
    json: bytes


Recorded = tuple[Outcome, Outcome, Body | None]
"""An outcome, how it is recorded, and what has to be kept for that."""


def recorded(
    outcome: Outcome,
    command: Command,
    action_id: str,
    result_max: int,
    hide: Callable[[str], str] | None = None,
    task: Task | None = None,
) -> Recorded:
    """The outcome as it may be recorded.

    `hide` masks secrets in the preview, which people read. What the `task` selects stays inline
    beside the reference. A result that has no form in JSON is an error of the task, whatever the
    tool thought.
    """
    result = outcome.result
    if result is None:
        return outcome, outcome, None
    if isinstance(result, Tainted):
        return outcome, msgspec.structs.replace(outcome, result=MASK), None
    try:
        body = refs.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return _refused(
            outcome, "schema", "not_json", f"the result cannot be recorded as JSON: {error}"
        )
    inline_max = refs.INLINE_MAX
    if task is not None:
        inline_max = min(inline_max, task.spec.get("inline_max_bytes", inline_max))
    if len(body) <= inline_max:
        return outcome, outcome, None
    if len(body) > result_max:
        message = (
            f"the result has {len(body):,} bytes, more than the {result_max:,} that this worker"
            " keeps of one (NOETL_MAX_RESPONSE_BYTES). Yield less, or a file (`result_as`,"
            " `download`), or put it away with `kind: store` or `kind: transfer`."
        )
        return _refused(outcome, "client_error", TooLarge.code, message)
    # By its content: the next try of the same call may yield another body.
    key = derive(action_id, hashlib.sha256(body).hexdigest())
    promised = task.schema.label if task is not None and task.schema is not None else ""
    reference = refs.reference(command.execution_id, key, body, result, command.seal, promised)
    if hide is not None:
        reference["_preview"] = hide(reference["_preview"])
    if task is not None and task.select:
        reference = {**_selected(task, result), **reference}
    return outcome, msgspec.structs.replace(outcome, result=reference), Body(key, body)


def _refused(outcome: Outcome, kind: ErrorKind, code: str, message: str) -> Recorded:
    wrong = TaskError(kind=kind, code=code, message=message)
    bad = msgspec.structs.replace(outcome, status="error", result=None, error=wrong)
    return bad, bad, None


def large_names(frame: Frame) -> Iterator[Body]:
    """The step's own large names (what rules collected), to be kept by reference, too.

    Where a secret may be among them they stay in the progress, masked.
    """
    if frame.is_tainted:
        return
    command = frame.command
    for name, value in list(frame.local.items()):
        known, _ = frame.local_stored.get(name, (None, None))
        if known is value or not isinstance(value, list | dict | str):
            continue
        body = refs.encode(value)
        if len(body) > refs.INLINE_MAX:
            key = derive(frame.cause, "name", name, hashlib.sha256(body).hexdigest())
            yield Body(key, body)
            reference = refs.reference(command.execution_id, key, body, value, command.seal)
            frame.local_stored[name] = (value, reference)


def _selected(task: Task, result: Any) -> Values:
    """The fields of a large result that stay inline, as far as there is room for them."""
    shown = view(task.kind, result)
    found: Values = {}
    room = refs.INLINE_MAX
    for one in task.select:
        value = at_path(shown, one.path)
        if value is MISSING:
            continue
        value = value.plain if isinstance(value, View) else value
        room -= refs.weight(value)
        if room < 0:
            break
        found[one.name] = value
    return found
