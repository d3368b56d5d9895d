"""Answers that wait for news, and stop waiting when nobody wants them any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from noetl.api.route import Caller
from noetl.errors import BadRequest

if TYPE_CHECKING:
    from noetl.api.services import Services

T = TypeVar("T")
WAIT_MAX = 60.0
FINISH_SECONDS = 5.0


def seconds(wait: float) -> float:
    """How long to wait for news, as asked for and within reason."""
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
    """What the work yields; None, and the work is cancelled, once the client has gone or the
    server is about to end. Work that can be asked to `finish` then is, and yields what it has.
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
