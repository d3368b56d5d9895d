"""`spec.rate`: at most a number of calls per time.

`rate: 10/s` applies to everything that one worker runs. Calls are spread evenly: each takes the
next free moment. Requests to one host share their moments, whichever step they come from; other
calls share them with their own task only.

`rate: {key: bank, limit: 10/s}` applies to all workers of all servers: the store hands out the
moments of a key, each to one call. While all calls of a command wait for such a moment, the command
needs no slot of its worker. When the moment comes it needs one again. If none is free by then, the
command waits for one, ahead of new commands, and takes another moment: neither the rate nor the
worker's capacity is ever exceeded. A moment whose worker is gone remains unused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from noetl.engine.pipeline.frame import Frame
from noetl.model.duration import interval
from noetl.model.ids import ExecutionId
from noetl.tools.limits import waiting
from noetl.worker.control import Control
from noetl.worker.reporter import Reporter

KEPT_MAX = 1000
"""How many schedules are kept; those whose last moment has passed are dropped first."""


class Rates:
    """When the next call of each kind may begin."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._next: dict[tuple[str, ...], float] = {}
        self._waits: Counter[Reporter] = Counter()
        """Calls that wait for their moment, by the reporter of their command."""
        self._freed = asyncio.Event()
        self.coming = 0
        """Commands whose moment has come, and that wait for a free slot."""
        self.has_room: Callable[[], bool] = lambda: True
        """Whether the worker has a free slot."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called when a command gives up its slot."""

    @property
    def idle(self) -> int:
        """Commands of which every call waits for its moment: they need no slot."""
        return sum(map(self._is_idle, self._waits))

    def _is_idle(self, reporter: Reporter) -> bool:
        return self._waits[reporter] >= reporter.calls

    def free(self) -> None:
        """There may be a free slot."""
        self._freed.set()

    async def wait(
        self, written: Any, kind: str, config: dict[str, Any], frame: Frame, reporter: Reporter
    ) -> None:
        """Return when this call may begin; at once if nothing limits it."""
        if isinstance(written, Mapping):
            limit, key = str(written.get("limit", "")), str(written.get("key", ""))
            if apart := interval(limit):
                with waiting(f"its rate ({limit} of {key})"):
                    await self._wait_with_all(key, apart, frame.command.execution_id, reporter)
            return
        apart = interval(written) if isinstance(written, str) else None
        if not apart:
            return
        own = (str(written), *_shared_by(kind, config, frame))
        now = asyncio.get_running_loop().time()
        begin = max(now, self._next.get(own, now))
        self._next[own] = begin + apart
        if len(self._next) > KEPT_MAX:
            self._next = {name: at for name, at in self._next.items() if at > now}
        if begin > now:
            with waiting("its turn under spec.rate"):
                await asyncio.sleep(begin - now)

    async def _wait_with_all(
        self, key: str, apart: float, execution_id: ExecutionId, reporter: Reporter
    ) -> None:
        """Wait for a moment that belongs to this call alone, among all workers, and for a free
        slot.
        """
        delay = await self._control.next_moment(key, apart, execution_id)
        if delay <= 0:
            return
        self._waits[reporter] += 1
        if self._is_idle(reporter):
            self._freed.set()
            self.on_idle()
        try:
            while True:
                await asyncio.sleep(delay)
                # Another call of its command is running: the slot is there.
                if not self._is_idle(reporter) or self.has_room():
                    return
                self.coming += 1
                try:
                    while not self.has_room():
                        self._freed.clear()
                        await self._freed.wait()
                finally:
                    self.coming -= 1
                delay = max(0.0, await self._control.next_moment(key, apart, execution_id))
        finally:
            self._waits[reporter] -= 1
            if not self._waits[reporter]:
                del self._waits[reporter]


def _shared_by(kind: str, config: dict[str, Any], frame: Frame) -> tuple[str, ...]:
    url = config.get("url")
    host = urlsplit(url).netloc.rpartition("@")[2] if isinstance(url, str) else ""
    if host:
        return (kind, host.lower())
    task = str(frame.names.get("_task", ""))
    return (kind, frame.program.digest, frame.command.step, task)
