"""Wake-ups over one NATS subject: whoever is not connected just now misses them and looks."""

from __future__ import annotations

from collections.abc import AsyncIterator

from noetl.store.nats.line import NatsLine


class NatsChannel:
    """See `noetl.store.base.Channel`."""

    def __init__(self, line: NatsLine, subject: str) -> None:
        self._line = line
        self._subject = subject

    async def send(self, text: str) -> None:
        async with self._line.asking() as client:
            await client.publish(self._subject, text.encode())

    async def messages(self) -> AsyncIterator[str]:
        await self._line.wait_for_connection()
        async with self._line.asking() as client:
            subscription = await client.subscribe(self._subject)
            await client.flush()
        async for message in subscription.messages:
            yield message.data.decode()
        raise self._line.away("the connection was lost")
