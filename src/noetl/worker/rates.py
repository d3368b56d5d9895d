"""`spec.rate`: at most so many calls in so long, over everything that one worker runs.

Calls are spread evenly: each takes the next free moment. Requests to one host share their moments,
whichever step they come from; other calls share them with their own task only.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from noetl.model.duration import interval
from noetl.worker.frame import Frame

KEPT_MAX = 1000
"""Schedules kept; those whose last moment has passed go first."""


class Rates:
    """When the next call of each kind may begin."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, ...], float] = {}

    async def wait(self, written: Any, kind: str, config: dict[str, Any], frame: Frame) -> None:
        """Come back when this call may begin; at once if nothing limits it."""
        apart = interval(written) if isinstance(written, str) else None
        if not apart:
            return
        key = (str(written), *_shared_by(kind, config, frame))
        now = asyncio.get_running_loop().time()
        begin = max(now, self._next.get(key, now))
        self._next[key] = begin + apart
        if len(self._next) > KEPT_MAX:
            self._next = {name: at for name, at in self._next.items() if at > now}
        if begin > now:
            await asyncio.sleep(begin - now)


def _shared_by(kind: str, config: dict[str, Any], frame: Frame) -> tuple[str, ...]:
    url = config.get("url")
    host = urlsplit(url).netloc.rpartition("@")[2] if isinstance(url, str) else ""
    if host:
        return (kind, host.lower())
    task = str(frame.names.get("_task", ""))
    return (kind, frame.program.digest, frame.command.step, task)
