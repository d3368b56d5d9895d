"""Wake-ups over one NATS subject; a process that misses one finds the change by regular polling."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from noetl.store.nats.connection import NatsConnection
from noetl.store.nats.seal import Seal

logger = logging.getLogger(__name__)


class NatsChannel:
    """See `noetl.store.base.Channel`. Messages are JSON objects."""

    def __init__(self, connection: NatsConnection, subject: str, seal: Seal) -> None:
        self._connection = connection
        self._subject = subject
        self._seal = seal
        self._warned = False

    async def send(self, text: str) -> None:
        async with self._connection.asking() as client:
            await client.publish(self._subject, self._seal.closed(text.encode()))

    async def messages(self) -> AsyncIterator[str]:
        await self._connection.wait_for_connection()
        async with self._connection.asking() as client:
            subscription = await client.subscribe(self._subject)
            await client.flush()
        async for message in subscription.messages:
            body = self._seal.opened(message.data)
            if body is not None:
                yield body.decode()
            elif not self._warned:  # once: the sender may send much
                self._warned = True
                logger.warning(
                    "somebody else writes to the subject %s of NATS, or a server has another"
                    " NOETL_SECRET_KEY; what they write is ignored. Give NATS a user for the"
                    " servers alone (docs: operations, NATS).",
                    self._subject,
                )
        raise self._connection.away("the connection was lost")
