"""The list of what became of deliveries to hooks: bounded, and cheap when many come."""

from __future__ import annotations

import asyncio

from noetl.control.clock import SystemClock
from noetl.control.deliveries import FORGOTTEN_AFTER, KEPT, Deliveries
from noetl.model.triggers import TriggerChange
from noetl.store.sqlite.store import SqliteStore
from tests.stopwatch import PATIENCE


async def written(store: SqliteStore, path: str, newest: str) -> int:
    """How many rows there are, once the newest of them is."""
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = await store.messages.of(path, limit=10_000)
            if rows and rows[0].reason == newest:
                return len(rows)
            await asyncio.sleep(0.01)


def test_of_many_deliveries_the_newest_are_kept():
    async def run() -> None:
        store = await SqliteStore.open(":memory:")
        deliveries = Deliveries(store.triggers, store.messages, SystemClock())
        for batch in range(8):
            for _ in range(199):
                deliveries.note("shop/paid", "ignored")
            deliveries.note("shop/paid", "started", reason=str(batch))
            count = await written(store, "shop/paid", f"started: {batch}")

        assert KEPT <= count <= KEPT + 2 * FORGOTTEN_AFTER
        newest = (await deliveries.of("shop/paid", limit=1))[0]
        assert (newest.outcome, newest.reason) == ("started", "7")
        await store.close()

    asyncio.run(run())


def test_rows_that_are_written_with_a_decision_are_bounded_too():
    async def run() -> None:
        store = await SqliteStore.open(":memory:")
        deliveries = Deliveries(store.triggers, store.messages, SystemClock())
        for number in range(KEPT + 3 * FORGOTTEN_AFTER):
            row = deliveries.row("shop/paid", "debounced", delivery_id=str(number))
            await store.triggers.change(TriggerChange(messages=(row,)))
            deliveries.wrote("shop/paid")

        async with asyncio.timeout(PATIENCE):
            while (
                len(await store.messages.of("shop/paid", limit=10_000)) > KEPT + 2 * FORGOTTEN_AFTER
            ):
                await asyncio.sleep(0.01)
        await store.close()

    asyncio.run(run())


def test_refused_deliveries_are_one_row_with_their_number():
    async def run() -> None:
        store = await SqliteStore.open(":memory:")
        deliveries = Deliveries(store.triggers, store.messages, SystemClock())
        for _ in range(1000):
            deliveries.refuse("shop/paid")

        assert await written(store, "shop/paid", "refused: 1000 deliveries") == 1
        await store.close()

    asyncio.run(run())
