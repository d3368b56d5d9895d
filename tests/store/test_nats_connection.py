"""A connection to NATS that is gone is noticed, whatever the library makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
