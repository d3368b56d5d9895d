"""LISTEN and NOTIFY on connections of their own, so that no write transaction waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from noetl.store.postgres.commit_connection import limited
from noetl.store.postgres.database import Connection, connect, place_of
from noetl.store.postgres.faults import FORESEEN, fault

NAME = "noetl"
SEND_SECONDS = 3.0
QUIET_SECONDS = 10.0
"""After this long, the listening connection is checked."""


class PostgresChannel:
    """See `noetl.store.base.Channel`."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._sender: Connection | None = None
        self._opening = asyncio.Lock()

    async def send(self, text: str) -> None:
        try:
            async with self._opening:  # Two concurrent senders open one connection.
                if self._sender is None or self._sender.closed:
                    self._sender = await connect(self._conninfo)
                sender = self._sender
            values = {"channel": NAME, "text": text}
            with limited(sender, SEND_SECONDS):
                await sender.execute("SELECT pg_notify(%(channel)s, %(text)s)", values)
        except FORESEEN as error:
            raise fault(error, place_of(self._conninfo)) from error

    async def messages(self) -> AsyncIterator[str]:
        try:
            async with await connect(self._conninfo) as db:
                with limited(db, SEND_SECONDS):
                    await db.execute(f"LISTEN {NAME}")
                while True:
                    async for notice in db.notifies(timeout=QUIET_SECONDS):
                        yield notice.payload
                    # Silence may be normal, or the other end is gone.
                    with limited(db, SEND_SECONDS):
                        await db.execute("SELECT 1")
        except FORESEEN as error:
            raise fault(error, place_of(self._conninfo)) from error

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()
