"""LISTEN and NOTIFY on connections of their own, so that no write transaction waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from noetl.store.postgres.connections import Connection, connect, place_of
from noetl.store.postgres.faults import FORESEEN, fault

NAME = "noetl"


class PostgresChannel:
    """See `noetl.store.base.Channel`."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._sender: Connection | None = None

    async def send(self, text: str) -> None:
        try:
            if self._sender is None or self._sender.closed:
                self._sender = await connect(self._conninfo)
            values = {"channel": NAME, "text": text}
            await self._sender.execute("SELECT pg_notify(%(channel)s, %(text)s)", values)
        except FORESEEN as error:
            raise fault(error, place_of(self._conninfo)) from error

    async def messages(self) -> AsyncIterator[str]:
        try:
            async with await connect(self._conninfo) as db:
                await db.execute(f"LISTEN {NAME}")
                async for notice in db.notifies():
                    yield notice.payload
        except FORESEEN as error:
            raise fault(error, place_of(self._conninfo)) from error

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()
