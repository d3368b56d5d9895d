"""Whoever waits for a statement may be cancelled at any moment; connections outlive that."""

from __future__ import annotations

import asyncio
import gc
import random

import psycopg
import pytest

from noetl.store.postgres import PostgresStore
from noetl.store.postgres.database import CONNECTIONS_MAX, Connection
from noetl.store.records import Records
from tests.stopwatch import PATIENCE
from tests.store.test_database import postgres

ROUNDS = 10
ASKING = 3 * CONNECTIONS_MAX


async def ask_for_ever(records: Records) -> None:
    while True:
        await records.summary("1")


async def cancel_many(records: Records, dice: random.Random) -> None:
    """Cancel statements wherever they are; each asker ends."""
    tasks = [asyncio.create_task(ask_for_ever(records)) for _ in range(ASKING)]
    for _ in range(dice.randrange(300)):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
    _, left = await asyncio.wait(tasks, timeout=PATIENCE)
    assert not left, "a cancelled task goes on"


def test_cancelling_whoever_waits_costs_no_connection(database_url: str):
    async def story() -> None:
        database = await postgres(database_url)
        records, dice = Records(database), random.Random(1)
        for _ in range(ROUNDS):
            await cancel_many(records, dice)
        all_at_once = asyncio.Barrier(CONNECTIONS_MAX)

        async def meet(db: Connection) -> None:
            await all_at_once.wait()

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(database.run(meet) for _ in range(CONNECTIONS_MAX)))
        await database.close()

    asyncio.run(story())


async def test_two_that_send_news_at_once_open_one_connection(database_url: str):
    store = await PostgresStore.open(database_url)
    assert store.channel is not None
    await asyncio.gather(store.channel.send("a"), store.channel.send("b"))

    with psycopg.connect(database_url) as db:
        telling = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_notify%'"
        assert db.execute(telling).fetchone() == (1,)
    await store.close()


def test_the_error_of_a_statement_that_nobody_waits_for_is_not_printed(
    database_url: str, caplog: pytest.LogCaptureFixture
):
    """Such as that of a health check, which waits for three seconds and is asked again."""

    async def story() -> None:
        database = await postgres(database_url)
        begun, ended = asyncio.Event(), asyncio.Event()

        async def fail(db: Connection) -> None:
            begun.set()
            await ended.wait()
            await db.execute("SELECT 1 / 0")

        asking = asyncio.create_task(database.run(fail))
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        ended.set()
        await database.close()

    asyncio.run(story())
    gc.collect()

    assert "never retrieved" not in caplog.text
