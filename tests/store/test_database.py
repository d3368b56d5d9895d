"""What the parts of a store build on: statements by name, and several in one transaction."""

from __future__ import annotations

import asyncio

import pytest

from noetl.store.access import StoredUser
from noetl.store.base import Store
from noetl.store.database import Transaction, columns_of
from noetl.store.sqlite import SqliteStore
from tests.store.test_access import ADA


async def test_what_is_done_together_is_done_or_not(store: Store):
    async def put(db: Transaction) -> None:
        await db.change("put_user", **columns_of(ADA))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store._database.together(put)

    assert await store.access.users() == []


async def test_a_transaction_sees_what_it_has_written(store: Store):
    async def put(db: Transaction) -> tuple[int, StoredUser | None, list[str]]:
        changed = await db.change("put_user", **columns_of(ADA))
        found = await db.row("user", StoredUser, name="ada")
        return changed, found, await db.column("installation")

    [changed, found, installation] = await store._database.together(put)

    assert (changed, found) == (1, ADA)
    assert installation == [await store.installation()]


async def test_one_that_fails_among_many_leaves_the_others(store: Store):
    async def put(name: str) -> str:
        async def job(db: Transaction) -> str:
            await db.change("put_user", **columns_of(ADA) | {"name": name})
            if name == "3":
                raise ValueError(name)
            return name

        return await store._database.together(job)

    done = await asyncio.gather(*map(put, "12345"), return_exceptions=True)

    assert [one for one in done if isinstance(one, str)] == ["1", "2", "4", "5"]
    assert [user.name for user in await store.access.users()] == ["1", "2", "4", "5"]


async def test_on_sqlite_a_job_waits_for_nothing_but_its_statements():
    async def put(db: Transaction) -> None:
        await db.change("put_user", **columns_of(ADA))
        await asyncio.sleep(0)

    store = await SqliteStore.open(":memory:")
    with pytest.raises(RuntimeError, match="waits for nothing but its statements"):
        await store._database.together(put)

    assert await store.access.users() == []
    await store.close()
