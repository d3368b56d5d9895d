"""Where a quick disk's writes are done: on the spot, as long as nobody else writes. And who is
cancelled leaves nothing behind."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from noetl.store.sqlite import SqliteStore
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


@pytest.mark.parametrize("steps", [1, 2, 5])
async def test_a_store_whose_closing_is_cancelled_is_closed(tmp_path: Path, steps: int):
    """Its process may live on, and open it again."""
    store = await SqliteStore.open(str(tmp_path / "noetl.db"))
    closing = asyncio.create_task(store.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])

    again = await SqliteStore.open(str(tmp_path / "noetl.db"))
    await again.close()
