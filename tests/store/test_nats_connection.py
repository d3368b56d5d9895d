"""A connection to NATS that is gone is noticed, whatever the library makes of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from nats.errors import NoRespondersError

from noetl.store.nats import connection
from noetl.store.nats.connection import NatsConnection
from tests.servers import nats_running
from tests.stopwatch import PATIENCE
from tests.store.test_sessions import connected


async def test_a_lost_connection_is_noticed_though_the_library_does_not_tell(tmp_path: Path):
    with nats_running(tmp_path) as nats:
        async with connected(nats.url) as line:
            async with line.asking() as client:
                # As when something was left to send: the error of that ends the library's telling.
                client._closed_cb = None

            nats.kill()

            async with asyncio.timeout(PATIENCE):
                while line.is_connected:
                    await asyncio.sleep(0.05)


class Refusing:
    """As the library's client: before Python 3.12, a cancellation that comes together with an error
    is lost in its `asyncio.wait_for`, and the error is raised.
    """

    is_connected = True

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def connect(self, *_: object, **__: object) -> None:
        return

    async def request(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        raise NoRespondersError

    async def close(self) -> None:
        return


async def test_a_request_that_is_cancelled_as_it_fails_is_cancelled(monkeypatch):
    client = Refusing()
    monkeypatch.setattr(connection, "Client", lambda: client)
    async with connected("nats://nowhere") as line:

        async def ask() -> None:
            async with line.asking():
                await client.request()

        asking = asyncio.create_task(ask())
        await client.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])

        assert asking.cancelled()


async def test_who_is_told_to_stop_connecting_as_it_fails_stops(monkeypatch):
    client = Refusing()
    monkeypatch.setattr(client, "connect", lambda *_, **__: client.request())
    monkeypatch.setattr(connection, "Client", lambda: client)
    connecting = asyncio.create_task(NatsConnection(["nats://nowhere"]).run())
    await client.asked.wait()
    connecting.cancel()
    await asyncio.wait([connecting], timeout=PATIENCE)

    assert connecting.cancelled()


async def test_a_task_that_was_cancelled_may_still_ask_while_it_ends(monkeypatch):
    client = Refusing()
    monkeypatch.setattr(connection, "Client", lambda: client)
    has_asked = False
    async with connected("nats://nowhere") as line:

        async def serve() -> None:
            nonlocal has_asked
            try:
                client.asked.set()
                await asyncio.Event().wait()
            finally:
                async with line.asking():
                    await asyncio.sleep(0)
                has_asked = True

        serving = asyncio.create_task(serve())
        await client.asked.wait()
        serving.cancel()
        await asyncio.wait([serving])

        assert has_asked
        assert serving.cancelled()
