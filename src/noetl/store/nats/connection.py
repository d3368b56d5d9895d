"""One connection to NATS, re-established for ever when it is lost.

A request that NATS cannot answer at once is refused with StoreBusy instead of being queued: the
caller has the database to use.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from noetl.cancellation import heeded
from noetl.errors import StoreBusy

RECONNECT_SECONDS = 1.0
LOOK_SECONDS = 1.0
CONNECT_SECONDS = 5
ASK_SECONDS = 2.0
PING_SECONDS, PINGS_UNANSWERED = 2, 2
"""A server that vanished is noticed within about six seconds."""

FORESEEN = (nats.errors.Error, OSError, TimeoutError)


class NatsConnection:
    """The connection, while there is one."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._client: Client | None = None
        self._connected = asyncio.Event()
        hosts = ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in urls)
        self._place = f"NATS at {hosts}"
        self._trouble = "there is no connection"
        self.connects = 0
        """How often a connection was made."""
        self.failures = 0
        """How many requests it did not answer in time."""

    @property
    def is_connected(self) -> bool:
        return self._client is not None

    def is_connected_to(self, major: int, minor: int) -> bool:
        """Whether there is a connection, to a server of this version or a newer one."""
        if self._client is None:
            return False
        version = self._client.connected_server_version
        return (version.major, version.minor) >= (major, minor)

    async def run(self) -> None:
        """Connect, and again whenever the connection is lost, for ever."""
        for url in itertools.cycle(self._urls):
            with heeded():
                await self._serve(url)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve(self, url: str) -> None:
        """Connect, and stay until the connection is lost."""
        lost = asyncio.Event()
        client = Client()
        try:
            with heeded():
                await _connect(client, url, lost)
            self._client = client
            self._connected.set()
            self.connects += 1
            await _until_lost(client, lost)
        except FORESEEN as error:
            self._trouble = str(error) or type(error).__name__
        finally:
            self._client = None
            self._connected.clear()
            await _close(client)

    async def wait_for_connection(self) -> None:
        """Wait briefly for a connection that may be under way. There may be none afterwards."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connected.wait()

    @asynccontextmanager
    async def asking(self, seconds: float = ASK_SECONDS) -> AsyncIterator[Client]:
        """The connection, for a request. Raises StoreBusy if there is no answer."""
        client = self._client
        if client is None:
            raise self.away()
        try:
            with heeded():
                async with asyncio.timeout(seconds):
                    yield client
        except FORESEEN as error:
            self.failures += 1
            raise self.away(str(error) or type(error).__name__) from error

    def away(self, trouble: str | None = None) -> StoreBusy:
        """The error for a failed request to NATS."""
        return StoreBusy(
            f"{self._place} is out of reach: {trouble or self._trouble}. Nothing is lost, it only"
            " makes things sooner. Check that it runs, and NOETL_NATS_URL."
        )


async def _connect(client: Client, url: str, lost: asyncio.Event) -> None:
    async def closed() -> None:
        lost.set()

    await client.connect(
        [url],
        name="noetl",
        connect_timeout=CONNECT_SECONDS,
        ping_interval=PING_SECONDS,
        max_outstanding_pings=PINGS_UNANSWERED,
        # We reconnect ourselves: the library would queue what is sent meanwhile.
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=0,
        closed_cb=closed,
        error_cb=_unheard,
    )


async def _until_lost(client: Client, lost: asyncio.Event) -> None:
    """The library reports a lost connection, but not if data was left to send when it broke: that
    error ends its reporting. So we check, too.
    """
    while client.is_connected:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await lost.wait()


async def _close(client: Client) -> None:
    """Also closes a connection that was refused half-way, which the library leaves open."""
    with suppress(*FORESEEN):  # it is over either way
        async with asyncio.timeout(ASK_SECONDS):
            await client.close()


async def _unheard(error: Exception) -> None:
    """The caller that meets the error reports it; the library would also print it."""
