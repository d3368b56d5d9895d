"""Where a quick disk's writes are done: on the spot, as long as nobody else writes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

from noetl.store.sqlite.connections import connect
from noetl.store.sqlite.database import Writer
from tests.stopwatch import PATIENCE


def thread_of(db: sqlite3.Connection) -> int:
    return threading.get_ident()


async def write_on_the_spot(writer: Writer) -> None:
    """One write may take long by chance, and sends the next to the thread."""
    async with asyncio.timeout(PATIENCE):
        while await writer.run(thread_of) != threading.get_ident():
            await asyncio.sleep(0)


async def test_whoever_is_cancelled_before_it_writes_stands_in_nobodys_way():
    writer = Writer(connect(None, "writer"))
    await write_on_the_spot(writer)

    leaving = asyncio.create_task(writer.run(thread_of))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])

    await write_on_the_spot(writer)
    await writer.close()
