"""Commits have a line of their own: it breaks, is cut off, is busy, and loses nothing."""

from __future__ import annotations

import asyncio
import random

import psycopg
import pytest

from noetl.store.postgres import PostgresStore
from noetl.store.queue import NewCommand
from tests.stopwatch import PATIENCE
from tests.store.making import NOON, ONE, TWO, born_leased, command, event, more, start


async def backends(url: str) -> set[int]:
    """The processes that serve us, but for the one that is asked."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        found = await db.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'noetl'"
            " AND pid <> pg_backend_pid()"
        )
        return {pid for (pid,) in await found.fetchall()}


async def end_backends(url: str) -> None:
    """Cut every connection of ours, and wait until nobody is left at the other end."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        await db.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE application_name = 'noetl' AND pid <> pg_backend_pid()"
        )


async def test_commits_one_by_one_use_one_connection(database_url: str):
    store = await PostgresStore.open(database_url)
    await store.log.commit([start()])
    before = await backends(database_url)

    for seq in range(1, 50):
        assert await store.log.commit([more(seq)]) == []

    assert await backends(database_url) == before
    assert [row.seq for row in await store.log.events(ONE)] == list(range(1, 51))
    await store.close()
    # A process of PostgreSQL ends a moment after its line was closed.
    async with asyncio.timeout(PATIENCE):
        while await backends(database_url):
            await asyncio.sleep(0.01)


async def test_a_line_that_was_cut_is_replaced_and_the_commit_is_kept_once(database_url: str):
    store = await PostgresStore.open(database_url)
    await store.log.commit([start()])

    for seq in range(1, 6):
        await end_backends(database_url)
        assert await store.log.commit([more(seq)]) == []

    assert [row.seq for row in await store.log.events(ONE)] == list(range(1, 7))
    await store.close()


async def test_whoever_is_cancelled_while_committing_leaves_the_log_whole(database_url: str):
    store = await PostgresStore.open(database_url)
    await store.log.commit([start()])
    dice = random.Random(7)
    seq = 1

    for _ in range(200):
        task = asyncio.create_task(store.log.commit([more(seq)]))
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        # Either it was not sent, or it goes on to its end, whoever waits.
        async with asyncio.timeout(PATIENCE):
            moved = await store.log.commit([more(seq)])
        assert moved in ([], [ONE])
        seq = len(await store.log.events(ONE))

    assert seq > 100
    loaded = await store.log.load(ONE)
    assert loaded is not None
    assert len(loaded.events) == seq
    await store.close()


async def test_commits_at_the_same_time_do_not_wait_for_one_line(database_url: str):
    store = await PostgresStore.open(database_url)
    ids = [str(number) for number in range(20)]
    await asyncio.gather(*(store.log.commit([start(one)]) for one in ids))

    for seq in range(1, 10):
        moved = await asyncio.gather(*(store.log.commit([more(seq, one)]) for one in ids))
        assert moved == [[]] * 20

    for one in ids:
        assert len(await store.log.events(one)) == 10
    await store.close()


async def test_what_is_larger_than_a_socket_takes_at_once_arrives_whole(database_url: str):
    store = await PostgresStore.open(database_url)
    await store.log.commit([start()])
    large = event(2, text="ü" * 4_000_000)

    assert await store.log.commit([more(1, events=[large])]) == []

    (read,) = await store.log.events(ONE, after=1)
    assert read.body == large.body
    await store.close()


@pytest.mark.parametrize("option", ["", "&client_encoding=LATIN1"])
async def test_texts_arrive_as_they_are(database_url: str, option: str):
    strange = 'a "quoted" \\ and {braced}, ünd 漢'
    store = await PostgresStore.open(database_url + option)
    await store.log.commit([start(strange), start(TWO)])
    held = NewCommand(command(strange, strange), strange, NOON + 60)

    assert await store.log.commit([more(1, strange, commands=[held])]) == []
    assert await store.log.commit([more(2, strange), more(1, TWO)]) == []

    (holder,) = (await store.queue.holders([strange])).values()
    assert holder == (strange, strange)
    assert len(await store.log.events(strange)) == 3
    await store.close()


async def test_a_commit_that_comes_too_late_changes_nothing(database_url: str):
    store = await PostgresStore.open(database_url)
    other = await PostgresStore.open(database_url)
    await store.log.commit([start(commands=[born_leased("a", "w1", NOON + 60)])])
    await other.log.load(ONE)
    await store.log.commit([more(1)])

    late = more(1, commands=[born_leased("b", "w2", NOON + 60)], closed=["a"])
    assert await other.log.commit([late]) == [ONE]

    assert set(await store.queue.holders(["a", "b"])) == {"a"}
    assert len(await store.log.events(ONE)) == 2
    await store.close()
    await other.close()
