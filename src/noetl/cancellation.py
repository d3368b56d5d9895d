"""Cancellations that a library loses.

Before Python 3.12, `asyncio.wait_for` drops a cancellation that coincides with the awaited result
or error. The NATS library uses it everywhere, and an endless loop of requests would never end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeded() -> Iterator[None]:
    """Raise a cancellation that came inside, and was lost there, at the end.

    One that came before is its owner's: a task that is cancelled may still use the library to clean
    up after itself.
    """
    task = asyncio.current_task()
    assert task is not None, "the library is used in tasks"
    before = task.cancelling()
    try:
        yield
    except Exception:
        if task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    if task.cancelling() > before:
        raise asyncio.CancelledError
