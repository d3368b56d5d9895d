"""NATS beside the database: faster wake-ups, sessions and large bodies. It holds copies only.

If it is unreachable or empty, the database answers instead: that costs time and nothing else.
Nothing in it is trusted by itself: bodies have a checksum in the database, sessions and wake-ups
are signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from noetl.store.nats.bodies import NatsBodies
from noetl.store.nats.channel import NatsChannel
from noetl.store.nats.connection import NatsConnection
from noetl.store.nats.seal import Seal
from noetl.store.nats.sessions import About, NatsSessions


class Nats:
    """What one installation uses NATS for, separate from others on the same server."""

    def __init__(
        self,
        urls: Sequence[str],
        installation: str,
        keys: Callable[[], Sequence[bytes]],
        about: About,
    ) -> None:
        self.connection = NatsConnection(urls)
        news = f"noetl.{installation}.news"
        self.channel = NatsChannel(self.connection, news, Seal(keys, news))
        sessions = f"noetl_{installation}_sessions"
        self.sessions = NatsSessions(self.connection, sessions, Seal(keys, sessions), about)
        self.bodies = NatsBodies(self.connection, f"noetl_{installation}_results")

    async def run(self) -> None:
        """Keep the connection up, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.connection.run())
            group.create_task(self.bodies.run())
