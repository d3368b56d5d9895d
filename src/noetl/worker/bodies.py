"""Large values on the worker: references are resolved when read, and made when a value is too
large.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.engine.pipeline.frame import Body
from noetl.model import refs
from noetl.model.commands import Chunk, Command
from noetl.worker.control import Control


class Bodies:
    """The bodies that one execution stores by reference."""

    def __init__(self, control: Control, command: Command) -> None:
        self._control = control
        self._owner = command.execution_id
        self._seal = command.seal

    async def real(self, value: Any) -> Any:
        """The value with its references resolved; any other value as it is."""
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
        """The chunk with its own elements, if it came with a reference to all of them."""
        what = refs.about(chunk.items, self._seal)
        if what is None or what.segments is None:
            return chunk
        asking = refs.part(what, self._owner, chunk.start, chunk.stop)
        elements = await refs.fetched(asking, self._control.get_result)
        return msgspec.structs.replace(chunk, items=elements)

    async def keep(self, body: Body) -> None:
        await self._control.put_result(self._owner, body.key, body.json)
