"""Long polls: requests that wait for news, and stop when the client leaves or the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from noetl.api.route import Caller, Services
from noetl.errors import BadRequest

T = TypeVar("T")
WAIT_MAX = 60.0
FINISH_SECONDS = 5.0


def seconds(wait: float) -> float:
    """The seconds to wait for news, limited to WAIT_MAX."""
    if not 0 <= wait <= WAIT_MAX:
        raise BadRequest(f"`wait` is a number of seconds from 0 to {WAIT_MAX:.0f}.")
    return wait


async def while_wanted(
    services: Services,
    caller: Caller,
    work: Coroutine[Any, Any, T],
    *,
    finish: Callable[[], None] | None = None,
) -> T | None:
    """The result of the work. Once the client has gone or the server is ending, the work is
    cancelled and the result is None; work with a `finish` is finished instead, and yields what it
    has.
    """
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(caller.gone())
    draining = asyncio.ensure_future(services.draining.wait())
    try:
        await asyncio.wait({doing, gone, draining}, return_when=asyncio.FIRST_COMPLETED)
        if draining.done() and finish is not None:
            finish()
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({doing, gone}, timeout=FINISH_SECONDS, return_when=first)
        return doing.result() if doing.done() else None
    finally:
        for task in (doing, gone, draining):
            task.cancel()
        await asyncio.gather(doing, gone, draining, return_exceptions=True)
