"""`commit_one`, the statement for a commit of one execution, writes what `commit` writes.

A write that is committed alone goes by `commit_one`; the same write beside one of another execution
goes by `commit`. `docs/performance.md` says what it saves.
"""

from __future__ import annotations

from typing import Any

import psycopg

from noetl.store.log import Write
from noetl.store.postgres import PostgresStore
from noetl.store.postgres.commit_rows import is_one
from tests.store.making import NOON, ONE, THREE, born_leased, event, free, more, start, summary

TABLES = ("execution", "log", "queue")


def story(execution_id: str = ONE) -> list[Write]:
    """Writes as a running execution makes them: a command opened, closed, leased at birth, none."""
    return [
        more(1, execution_id, commands=free("one", execution_id=execution_id, step="a")),
        more(2, execution_id, closed=["one"], summary=summary(execution_id, current_steps=("b",))),
        more(3, execution_id, events=[event(4), event(5)], closed=["not there"]),
        more(5, execution_id, events=[], summary=summary(execution_id, status="PAUSED")),
    ]


async def rows_after(url: str, *, beside: bool) -> dict[str, list[Any]]:
    """Every row of the execution, once its writes are in; then the tables are dropped.

    Left out are the place in the queue, which counts the commands of all executions, and the name
    of the process that wrote the row.
    """
    store = await PostgresStore.open(url)
    await store.log.commit([start(ONE)])
    await store.log.commit([start(THREE)])
    leased = more(5, ONE, events=[event(6)], commands=[born_leased("two", "w", NOON)])
    for mine, other in zip([*story(), leased], [*story(THREE), more(5, THREE)], strict=True):
        assert await store.log.commit([mine, other] if beside else [mine]) == []
    await store.close()
    with psycopg.connect(url) as db:
        found = {
            table: db.execute(
                f"SELECT to_jsonb(t) - 'position' - 'home' FROM noetl.{table} t"
                " WHERE execution_id = %s ORDER BY 1",
                [ONE],
            ).fetchall()
            for table in TABLES
        }
        db.execute("DROP SCHEMA noetl CASCADE")
    return found


async def test_a_commit_of_one_execution_writes_the_same_rows(new_database_url: str):
    alone = await rows_after(new_database_url, beside=False)
    beside = await rows_after(new_database_url, beside=True)

    assert alone == beside
    assert all(alone.values())


def test_a_step_of_one_execution_does_take_the_short_statement():
    shortly = [is_one(write) for write in (more(1), more(1, timers=[("t", NOON)]), start(ONE))]

    assert shortly == [True, False, False]
