"""Large values on the worker: read where a reference stands for one, kept where one is made."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.errors import TooLarge
from noetl.model import refs
from noetl.model.commands import Chunk, Command
from noetl.model.ids import derive
from noetl.model.net import Task, Values
from noetl.model.outcome import Outcome, TaskError
from noetl.secrets.masking import Mask
from noetl.templates import MASK, Tainted, view
from noetl.templates.views import MISSING, View, at_path
from noetl.worker.control import Control

if TYPE_CHECKING:
    from noetl.worker.frame import Frame


class Bodies:
    """What one execution keeps by reference."""

    def __init__(self, control: Control, command: Command, most: int) -> None:
        """`most`: bytes that a result may have."""
        self._most = most
        self._control = control
        self._owner = command.execution_id
        self._seal = command.seal

    async def real(self, value: Any) -> Any:
        """The value with what references in it stand for; any other value as it is."""
        if not refs.holds_reference(value, self._seal):
            return value
        asking = refs.real(value, self._owner, self._seal)
        return await refs.fetched(asking, self._control.get_result)

    async def fetch_results(self, command: Command) -> None:
        """Results that came as references are read before the first template needs them."""
        for result in command.steps.values():
            came = {"": result.value, **result.tasks}
            result.references = {
                name: value
                for name, value in came.items()
                if refs.key_of(value, self._seal) is not None
            }
            result.value = await self.real(result.value)
            result.tasks = {name: await self.real(one) for name, one in result.tasks.items()}

    async def with_elements(self, chunk: Chunk) -> Chunk:
        """The chunk with its own elements, where it came with a reference to all of them."""
        what = refs.about(chunk.items, self._seal)
        if what is None or what.segments is None:
            return chunk
        asking = refs.part(what, self._owner, chunk.start, chunk.stop)
        elements = await refs.fetched(asking, self._control.get_result)
        return msgspec.structs.replace(chunk, items=elements)

    async def put_away(self, frame: Frame) -> None:
        """Keep the step's own large names (what rules collected) by reference, too.

        Where a secret may be among them they stay in the progress, masked.
        """
        if frame.is_tainted:
            return
        for name, value in frame.local.items():
            known, _ = frame.local_stored.get(name, (None, None))
            if known is value or not isinstance(value, list | dict | str):
                continue
            body = refs.encode(value)
            if len(body) > refs.INLINE_MAX:
                key = derive(frame.cause, "name", name, hashlib.sha256(body).hexdigest())
                await self._control.put_result(self._owner, key, body)
                reference = refs.reference(self._owner, key, body, value, self._seal)
                frame.local_stored[name] = (value, reference)

    async def stored(
        self,
        outcome: Outcome,
        action_id: str,
        mask: Mask | None = None,
        inline_max: int = refs.INLINE_MAX,
        task: Task | None = None,
    ) -> tuple[Outcome, Outcome]:
        """The outcome, and how it is recorded: a large result is kept by reference. The `mask` is
        for its preview, which people read. What the `task` selects stays inline beside it.

        A result that has no form in JSON is an error of the task, whatever the tool thought.
        """
        if outcome.result is None:
            return outcome, outcome
        if isinstance(outcome.result, Tainted):
            return outcome, msgspec.structs.replace(outcome, result=MASK)
        try:
            body = refs.encode(outcome.result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"the result cannot be recorded as JSON: {error}"
            wrong = TaskError(kind="schema", code="not_json", message=message)
            bad = msgspec.structs.replace(outcome, status="error", result=None, error=wrong)
            return bad, bad
        if len(body) <= inline_max and len(body) <= refs.INLINE_MAX:
            return outcome, outcome
        if len(body) > self._most:
            message = (
                f"the result has {len(body):,} bytes, more than the {self._most:,} that this worker"
                " keeps of one (NOETL_MAX_RESPONSE_BYTES). Yield less, or a file (`result_as`,"
                " `download`), or put it away with `kind: store` or `kind: transfer`."
            )
            wrong = TaskError(kind="client_error", code=TooLarge.code, message=message)
            bad = msgspec.structs.replace(outcome, status="error", result=None, error=wrong)
            return bad, bad
        # By its content: the next try of the same call may yield another body.
        key = derive(action_id, hashlib.sha256(body).hexdigest())
        await self._control.put_result(self._owner, key, body)
        reference = refs.reference(self._owner, key, body, outcome.result, self._seal)
        if mask is not None:
            reference["_preview"] = mask.text(reference["_preview"])
        if task is not None and task.select:
            reference = {**_selected(task, outcome.result), **reference}
        return outcome, msgspec.structs.replace(outcome, result=reference)


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
