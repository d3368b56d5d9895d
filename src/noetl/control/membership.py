"""Which servers there are, and which of them looks after an execution.

Looking after means firing its timers and noticing its lost leases. Any server may do that at any
time: deciding twice changes nothing. Sharing it out only saves everybody the work of all.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from noetl.control.clock import Clock
from noetl.errors import StoreError
from noetl.model.ids import ExecutionId, derive
from noetl.store.base import Runtime, Store

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
GONE_SECONDS = 7.0
"""Not heard of for so long, a server is taken to be gone."""
LEAVE_SECONDS = 2.0


class Membership:
    """The servers on one database, as far as this process knows. `me` is None for a visitor."""

    def __init__(self, store: Store, clock: Clock, me: Runtime | None) -> None:
        self._store = store
        self._clock = clock
        self._me = me
        self._servers: list[str] = [me.name] if me is not None else []

    @property
    def is_alone(self) -> bool:
        """No other server is known."""
        return not set(self._servers) - ({self._me.name} if self._me is not None else set())

    def owns(self, execution_id: ExecutionId) -> bool:
        """Whether it is for this server to look after; for each one exactly one server says so.

        The server with the highest number: when one comes or goes, only its own share moves.
        """
        if self._me is None or len(self._servers) < 2:
            return True
        return self._me.name == max(self._servers, key=lambda name: derive(name, execution_id))

    async def beat(self) -> None:
        """Say that we are there, and see who else is."""
        now = self._clock.now()
        if self._me is not None:
            await self._store.beat(msgspec.structs.replace(self._me, seen_at=now))
        servers = await self._store.runtimes(kind="server", since=now - GONE_SECONDS)
        self._servers = [server.name for server in servers]

    async def leave(self) -> None:
        """Say that we are gone. If that cannot be said, others notice it by our silence."""
        if self._me is None:
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._store.leave(self._me.name)
        except (StoreError, TimeoutError) as error:
            logger.warning("this server ends, and could not say so: %s", error or "no answer")
