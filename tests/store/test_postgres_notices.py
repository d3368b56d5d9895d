"""T13 on PostgreSQL: what is not what was written is noticed, and only its execution suffers."""

from __future__ import annotations

import psycopg
import pytest

from noetl.errors import BadText, Corrupted, StoreBusy, StoreError
from noetl.store.postgres import PostgresStore
from tests.store.making import MINUTE, NOON, ONE, TWO, array, events, free, more, start


async def filled(url: str) -> PostgresStore:
    """Two executions, with everything that belongs to one."""
    store = await PostgresStore.open(url)
    for execution_id in (ONE, TWO):
        await store.log.commit(
            [
                start(
                    execution_id,
                    count=1 if execution_id == ONE else 7,
                    commands=free("a", "b", execution_id=execution_id, args={"x": "argument"}),
                    results=[("k", b"a result")],
                )
            ]
        )
    for seq in range(1, 7):
        await store.log.commit([more(seq, ONE)])
    return store


def change(url: str, statement: str) -> None:
    with psycopg.connect(url) as db:
        assert db.execute(statement.encode(), {"id": ONE}).rowcount >= 1


async def assert_only_the_first_suffers(store: PostgresStore) -> None:
    with pytest.raises(Corrupted, match=ONE) as raised:
        await store.log.load(ONE)
    assert "noetl db check" in str(raised.value)
    assert await store.log.load(TWO) == (0, None, [array(events(1, 7))])
    assert await store.log.events(TWO) == events(1, 7)
    assert {row.execution_id for row in await store.records.summaries()} == {ONE, TWO}
    assert await store.log.commit([more(7, TWO)]) == []
    problems = await store.check()
    assert problems
    assert all(ONE in problem for problem in problems)


async def test_an_untouched_database_has_no_problems(database_url: str):
    store = await filled(database_url)

    assert await store.check() == []
    await store.close()


FLIPPED = "set_byte(body, 3, get_byte(body, 3) # 4)"
FLIPPED_EVENTS = FLIPPED.replace("body", "events")


@pytest.mark.parametrize(
    "statement",
    [
        *(
            f"UPDATE noetl.log SET events = {FLIPPED_EVENTS}"
            f" WHERE execution_id = %(id)s AND seq = {seq}"
            for seq in (1, 4, 7)
        ),
        "DELETE FROM noetl.log WHERE execution_id = %(id)s AND seq = 1",
        "DELETE FROM noetl.log WHERE execution_id = %(id)s AND seq = 7",
        "DELETE FROM noetl.log WHERE execution_id = %(id)s",
        "UPDATE noetl.log SET seq = 9 WHERE execution_id = %(id)s AND seq = 7",
        "UPDATE noetl.log SET events = '[]' WHERE execution_id = %(id)s AND seq = 3",
        "UPDATE noetl.log SET checksum = checksum + 1 WHERE execution_id = %(id)s AND seq = 7",
        "UPDATE noetl.execution SET seq = seq - 1 WHERE execution_id = %(id)s",
        f"UPDATE noetl.queue SET body = {FLIPPED} WHERE execution_id = %(id)s",
    ],
)
async def test_t13_a_changed_byte_or_row_is_noticed(database_url: str, statement: str):
    store = await filled(database_url)
    change(database_url, statement)

    await assert_only_the_first_suffers(store)
    await store.close()


async def test_t13_a_changed_event_is_not_served_and_the_events_before_it_are(database_url: str):
    store = await filled(database_url)
    change(
        database_url,
        f"UPDATE noetl.log SET events = {FLIPPED_EVENTS} WHERE execution_id = %(id)s AND seq = 5",
    )

    assert len(await store.log.events(ONE, limit=4)) == 4
    with pytest.raises(Corrupted, match="event 5"):
        await store.log.events(ONE)
    await store.close()


async def test_t13_a_changed_snapshot_or_result_is_noticed(database_url: str):
    store = await filled(database_url)
    await store.log.commit([more(7, ONE, snapshot=b"a state")])
    change(database_url, f"UPDATE noetl.snapshot SET body = {FLIPPED} WHERE execution_id = %(id)s")
    change(database_url, f"UPDATE noetl.result SET body = {FLIPPED} WHERE execution_id = %(id)s")

    with pytest.raises(Corrupted, match="Result 'k'"):
        await store.bodies.get(ONE, "k")
    assert await store.bodies.get(TWO, "k") == b"a result"
    assert len(await store.check()) == 2
    await assert_only_the_first_suffers(store)
    await store.close()


async def test_t13_a_log_that_was_changed_is_not_continued(database_url: str):
    store = await filled(database_url)
    change(database_url, "UPDATE noetl.execution SET checksum = 0 WHERE execution_id = %(id)s")

    assert await store.log.commit([more(7, ONE)]) == [ONE]
    assert await store.log.commit([more(7, TWO)]) == []
    await store.close()


async def test_a_changed_command_is_nobodys_work_and_in_nobodys_way(database_url: str):
    store = await filled(database_url)
    change(
        database_url,
        f"UPDATE noetl.queue SET body = {FLIPPED} WHERE execution_id = %(id)s AND command_id = 'a'",
    )

    async def claim() -> list[str]:
        leases = await store.queue.claim("w", pool="default", limit=2, expires_at=NOON + MINUTE)
        return [f"{one.command.execution_id} {one.command.command_id}" for one in leases]

    assert await claim() == [f"{ONE} b", f"{TWO} a"]
    assert await claim() == [f"{TWO} b"]
    assert await claim() == []
    with pytest.raises(Corrupted, match="Command a"):
        await store.queue.open_commands(ONE)
    await store.close()


async def test_what_cannot_be_stored_says_so_and_changes_nothing(database_url: str):
    store = await filled(database_url)

    with pytest.raises(BadText, match="NUL"):
        await store.log.commit([more(7, ONE, commands=free("c", pool="a\0b"))])
    with pytest.raises(StoreError, match="Nothing was"):
        await store.log.commit([more(7, ONE, commands=free("c", "d", pool="a\0b"))])

    assert len(await store.log.events(ONE)) == 7
    await store.close()


@pytest.mark.parametrize(
    ("change_url", "error", "said"),
    [
        (lambda url: url.replace("/noetl?", "/nowhere?"), StoreError, "does not exist"),
        (lambda url: url.replace("postgres@", "locked:wrong-canary@"), StoreError, "let us in"),
        (lambda url: "postgresql://127.0.0.1:1/noetl", StoreBusy, "out of reach"),
    ],
)
async def test_a_database_that_cannot_be_opened_says_why(
    database_url: str, change_url, error: type[Exception], said: str
):
    with pytest.raises(error, match=said) as raised:
        await PostgresStore.open(change_url(database_url))

    assert "canary" not in str(raised.value)
