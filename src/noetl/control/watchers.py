"""Who wants to know when something about an execution was stored, and who waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from noetl.model.ids import ExecutionId
from noetl.store.log import Facts, mark


class _Watch(NamedTuple):
    """A signal, and what has to be in an event to set it; nothing: any event does."""

    signal: asyncio.Event
    marks: tuple[bytes, ...]


class Changed:
    """Executions about which something was stored since somebody last looked."""

    def __init__(self) -> None:
        self.signal = asyncio.Event()
        self._executions: set[ExecutionId] = set()

    def add(self, execution_id: ExecutionId) -> None:
        self._executions.add(execution_id)
        self.signal.set()

    def take(self) -> set[ExecutionId]:
        """Those there are; from now on others are gathered."""
        found, self._executions = self._executions, set()
        self.signal.clear()
        return found


class Watchers:
    """Those who watch, in this process."""

    def __init__(self) -> None:
        self._all: list[Changed] = []
        self._watching: dict[ExecutionId, list[_Watch]] = {}
        self._waiting: dict[ExecutionId, list[asyncio.Future[None]]] = {}

    def watch(self, execution_id: ExecutionId, types: Sequence[str] = ()) -> asyncio.Event:
        """A signal that is set whenever events of the execution were stored, or may have been; with
        `types`, events of these types.
        """
        watch = _Watch(asyncio.Event(), tuple(mark(type=one) for one in types))
        self._watching.setdefault(execution_id, []).append(watch)
        return watch.signal

    def unwatch(self, execution_id: ExecutionId, signal: asyncio.Event) -> None:
        watching = self._watching.get(execution_id, [])
        watching[:] = [one for one in watching if one.signal is not signal]
        if not watching:
            self._watching.pop(execution_id, None)

    @contextmanager
    def all(self) -> Iterator[Changed]:
        """What changes in any execution, for as long as this lasts."""
        changed = Changed()
        self._all.append(changed)
        try:
            yield changed
        finally:
            self._all.remove(changed)

    def end(self, execution_id: ExecutionId) -> asyncio.Future[None]:
        """Done when the execution may have ended: look again then."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(execution_id, []).append(future)
        return future

    def tell(
        self, execution_id: ExecutionId, events: Sequence[Facts] | None, *, may_have_ended: bool
    ) -> None:
        """These events were stored. None: somebody else stored some, and we do not know which."""
        for changed in self._all:
            changed.add(execution_id)
        for signal, marks in self._watching.get(execution_id, ()):
            if (
                events is None
                or not marks
                or any(one in facts.json for facts in events for one in marks)
            ):
                signal.set()
        if may_have_ended:
            for future in self._waiting.pop(execution_id, ()):
                if not future.done():
                    future.set_result(None)

    def executions(self) -> set[ExecutionId]:
        """Those that somebody watches or waits for."""
        return self._watching.keys() | self._waiting.keys()
