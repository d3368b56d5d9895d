"""Who wants to know when something about an execution was stored, and who waits for its end."""

from __future__ import annotations

import asyncio

from noetl.model.ids import ExecutionId


class Audience:
    """Those who watch, in this process."""

    def __init__(self) -> None:
        self._watching: dict[ExecutionId, list[asyncio.Event]] = {}
        self._watching_end: dict[ExecutionId, list[asyncio.Event]] = {}
        self._waiting: dict[ExecutionId, list[asyncio.Future[None]]] = {}

    def watch(self, execution_id: ExecutionId, *, only_end: bool = False) -> asyncio.Event:
        """A signal that is set whenever something about the execution was stored, or when it may
        have ended.
        """
        signal = asyncio.Event()
        watching = self._watching_end if only_end else self._watching
        watching.setdefault(execution_id, []).append(signal)
        return signal

    def unwatch(self, execution_id: ExecutionId, signal: asyncio.Event) -> None:
        for watching in (self._watching, self._watching_end):
            signals = watching.get(execution_id, [])
            if signal in signals:
                signals.remove(signal)
            if not signals:
                watching.pop(execution_id, None)

    def end(self, execution_id: ExecutionId) -> asyncio.Future[None]:
        """Done when the execution may have ended: look again then."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(execution_id, []).append(future)
        return future

    def tell(self, execution_id: ExecutionId, *, may_have_ended: bool) -> None:
        for signal in self._watching.get(execution_id, ()):
            signal.set()
        if may_have_ended:
            for signal in self._watching_end.get(execution_id, ()):
                signal.set()
            for future in self._waiting.pop(execution_id, ()):
                if not future.done():
                    future.set_result(None)

    def executions(self) -> set[ExecutionId]:
        """Those that somebody watches or waits for."""
        return self._watching.keys() | self._watching_end.keys() | self._waiting.keys()
