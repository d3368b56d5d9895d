"""What the parts of a store build on: statements by name, and several in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from noetl.store.access import Access, StoredUser
from noetl.store.database import Database, Transaction, columns_of
from noetl.store.postgres import PostgresStore
from noetl.store.postgres.database import QUERIES, SECONDS, PostgresDatabase, conninfo_of
from noetl.store.sqlite.connections import MEMORY, connect
from noetl.store.sqlite.database import Inline, Lane, SqliteDatabase, Writer
from noetl.store.sqlite.schema import migrate
from tests.store.test_access import ADA


async def sqlite(lane: Callable[[sqlite3.Connection], Lane] = Writer) -> SqliteDatabase:
    db = connect(None, "writer")
    migrate(db, MEMORY)
    made = lane(db)
    return SqliteDatabase(MEMORY, writer=made, reader=made)


async def postgres(url: str) -> PostgresDatabase:
    await (await PostgresStore.open(url)).close()
    database = PostgresDatabase(conninfo_of(url))
    await database.open()
    return database


@pytest.fixture(params=["sqlite", "sqlite-inline", "postgres"])
def database(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Database]:
    if request.param == "postgres":
        opening: Any = postgres(request.getfixturevalue("database_url"))
    else:
        opening = sqlite(Inline if request.param == "sqlite-inline" else Writer)
    database = runner.run(opening)
    yield database
    runner.run(database.close())


async def test_what_is_done_together_is_done_or_not(database: Database):
    async def put(db: Transaction) -> None:
        await db.change("put_user", **columns_of(ADA))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.together(put)

    assert await Access(database).users() == []


async def test_a_transaction_sees_what_it_has_written(database: Database):
    async def put(db: Transaction) -> tuple[int, StoredUser | None, list[str]]:
        changed = await db.change("put_user", **columns_of(ADA))
        found = await db.row("user", StoredUser, name="ada")
        return changed, found, await db.column("installation")

    [changed, found, installation] = await database.together(put)

    assert (changed, found) == (1, ADA)
    assert installation == await database.column("installation")


async def test_one_that_fails_among_many_leaves_the_others(database: Database):
    async def put(name: str) -> str:
        async def job(db: Transaction) -> str:
            await db.change("put_user", **columns_of(ADA) | {"name": name})
            if name == "3":
                raise ValueError(name)
            return name

        return await database.together(job)

    done = await asyncio.gather(*map(put, "12345"), return_exceptions=True)

    assert [one for one in done if isinstance(one, str)] == ["1", "2", "4", "5"]
    assert [user.name for user in await Access(database).users()] == ["1", "2", "4", "5"]


async def test_on_sqlite_a_job_waits_for_nothing_but_its_statements():
    async def put(db: Transaction) -> None:
        await db.change("put_user", **columns_of(ADA))
        await asyncio.sleep(0)

    database = await sqlite()
    with pytest.raises(RuntimeError, match="waits for nothing but its statements"):
        await database.together(put)

    assert await Access(database).users() == []
    await database.close()


def test_only_statements_that_there_are_may_take_longer():
    assert SECONDS.keys() <= QUERIES.keys()
