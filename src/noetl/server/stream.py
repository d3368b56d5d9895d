"""Server-sent events: what happens to an execution, as it happens.

The reader sets the pace. Nothing is queued for it: events are read from the store a few at a time,
when the reader has taken the ones before, so a slow one costs no more memory than a fast one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
from litestar.response import Stream

from noetl.control import documents
from noetl.model.events import LAST_EVENT
from noetl.server.services import Services

PAGE = 50
HEARTBEAT_SECONDS = 15.0
"""So often something is sent, so that proxies do not take the stream for dead."""


def event_stream(services: Services, execution_id: str, after: int) -> Stream:
    """The answer that goes on until the execution has ended."""
    return Stream(
        _events(services, execution_id, after),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _events(services: Services, execution_id: str, after: int) -> AsyncIterator[bytes]:
    signal = services.orchestrator.audience.watch(execution_id)
    services.metrics.streams.inc()
    try:
        yield b"retry: 1000\n\n"
        while not services.draining.is_set():
            signal.clear()
            rows = await services.store.events(execution_id, after=after, limit=PAGE)
            for row in rows:
                after = row.seq
                yield _written(row.seq, row.type, documents.event(execution_id, row))
                if row.type == LAST_EVENT:
                    return
            if rows:
                continue
            if (await services.orchestrator.state(execution_id)).is_finished:
                return
            if not await _something_new(services, signal):
                yield b": still here\n\n"
    finally:
        services.metrics.streams.dec()
        services.orchestrator.audience.unwatch(execution_id, signal)


def _written(seq: int, name: str, document: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, name.encode(), msgspec.json.encode(document))


async def _something_new(services: Services, signal: asyncio.Event) -> bool:
    """Wait for the signal, the end of the server, or the time to say that we are still here."""
    waits = [asyncio.ensure_future(signal.wait()), asyncio.ensure_future(services.draining.wait())]
    try:
        done, _ = await asyncio.wait(
            waits, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*waits, return_exceptions=True)
