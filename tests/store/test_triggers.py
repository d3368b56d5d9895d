"""What starts executions, in every store: one decision at a time, and with it the execution."""

from __future__ import annotations

import asyncio

import msgspec
import psycopg
import pytest

from noetl.errors import Conflict
from noetl.model.triggers import TriggerChange, TriggerMessage, TriggerRow, TriggerTime
from noetl.store.base import Store
from noetl.store.postgres import PostgresStore
from tests.store.making import NOON, ONE, THREE, TWO, entry, more, start, summary

ROW = TriggerRow(path="shop/nightly", kind="Schedule", next_at=NOON, state=b'{"a":1}')
TIME = TriggerTime(path="shop/nightly", time=NOON, outcome="buffered", decided_at=NOON)


def change(row: TriggerRow = ROW, *times: TriggerTime, **fields: object) -> TriggerChange:
    return TriggerChange(row=msgspec.structs.replace(row, **fields), times=times)


async def made(store: Store) -> TriggerRow:
    assert await store.triggers.change(change())
    found = await store.triggers.get("shop/nightly")
    assert found is not None
    return found


async def test_a_row_comes_back_as_it_was_written(store: Store):
    assert await made(store) == msgspec.structs.replace(ROW, revision=1)
    assert await store.triggers.get("shop/other") is None


async def test_of_two_who_decide_on_the_same_revision_one_is_told_no(store: Store):
    row = await made(store)

    assert await store.triggers.change(change(row, next_at=NOON + 1))
    assert not await store.triggers.change(change(row, TIME, next_at=NOON + 2))
    assert not await store.triggers.change(change())  # it is not new any more
    found = await store.triggers.get("shop/nightly")
    assert found is not None
    assert (found.next_at, found.revision) == (NOON + 1, 2)
    assert await store.triggers.times("shop/nightly") == []


async def test_an_execution_is_kept_together_with_what_started_it(store: Store):
    row = await made(store)
    started = msgspec.structs.replace(TIME, outcome="started", execution_id=ONE)

    kept = start(ONE, trigger=change(row, started, next_at=NOON + 60))
    assert await store.log.commit([kept]) == []
    late = start(TWO, trigger=change(row, msgspec.structs.replace(started, execution_id=TWO)))
    assert await store.log.commit([late, start("7000000000000000009")]) == [TWO]

    assert await store.records.summary(TWO) is None
    assert await store.records.summary("7000000000000000009") is not None
    assert await store.triggers.times("shop/nightly") == [started]
    found = await store.triggers.get("shop/nightly")
    assert found is not None
    assert (found.next_at, found.revision) == (NOON + 60, 2)


async def test_an_execution_whose_key_is_taken_changes_nothing_about_what_starts_it(store: Store):
    row = await made(store)
    keyed = {"idempotency_key": "schedule/shop/nightly/1"}
    await store.log.commit([start(ONE, summary=summary(ONE, **keyed))])

    again = start(TWO, summary=summary(TWO, **keyed), trigger=change(row, TIME))
    assert await store.log.commit([again]) == [TWO]

    assert await store.triggers.get("shop/nightly") == row
    assert await store.triggers.times("shop/nightly") == []


async def test_what_was_started_stays_so(store: Store):
    row = await made(store)
    started = msgspec.structs.replace(TIME, outcome="started", execution_id=ONE)
    await store.triggers.change(change(row, started))
    row = msgspec.structs.replace(row, revision=2)

    assert await store.triggers.change(change(row, TIME))
    assert await store.triggers.times("shop/nightly") == [started]


async def test_times_are_listed_newest_first_and_those_that_wait_oldest_first(store: Store):
    row = await made(store)
    times = [
        msgspec.structs.replace(TIME, time=NOON + n, outcome=outcome)
        for n, outcome in enumerate(("skipped", "buffered", "missed", "buffered"))
    ]
    await store.triggers.change(change(row, *times))

    assert await store.triggers.times("shop/nightly", limit=2) == [times[3], times[2]]
    assert await store.triggers.times("shop/nightly", before=NOON + 1) == [times[0]]
    assert await store.triggers.times_between("shop/nightly", NOON + 1, NOON + 2) == times[1:3]
    assert await store.triggers.buffered("shop/nightly") == [times[1], times[3]]
    assert await store.triggers.buffered("shop/nightly", limit=1) == [times[1]]
    assert await store.triggers.buffered("shop/other") == []


async def test_the_newest_time_of_several_documents_is_found_at_once(store: Store):
    row = await made(store)
    other = msgspec.structs.replace(ROW, path="shop/hourly")
    times = [
        msgspec.structs.replace(TIME, path=path, time=NOON + after)
        for path, after in (("shop/nightly", 60), ("shop/nightly", 0), ("shop/hourly", 30))
    ]
    assert await store.triggers.change(change(row, *times[:2]))
    assert await store.triggers.change(change(other, times[2]))

    asked = ["shop/nightly", "shop/hourly", "shop/nightly", "shop/never"]
    found = await store.triggers.last_times(asked)

    assert sorted(found, key=lambda one: one.time) == [times[2], times[0]]
    assert await store.triggers.last_times([]) == []
    found = await store.triggers.last_times(asked, limit=2)
    assert sorted(found, key=lambda one: one.time) == [times[1], times[2], times[0]]


async def test_what_is_due_comes_earliest_first_and_what_has_no_moment_never(store: Store):
    for number, at in enumerate((NOON + 2, NOON, None, NOON + 9)):
        row = TriggerRow(path=f"p{number}", kind="Schedule", next_at=at)
        await store.triggers.change(TriggerChange(row=row))

    found = await store.triggers.due(now=NOON + 5)
    assert [row.path for row in found] == ["p1", "p0"]
    assert [row.path for row in await store.triggers.due(now=NOON)] == ["p1"]
    assert await store.triggers.next_due() == NOON


async def test_nothing_is_due_where_nothing_is(store: Store):
    assert await store.triggers.due(now=NOON) == []
    assert await store.triggers.next_due() is None


async def test_rows_are_listed_by_kind_and_prefix_page_by_page(store: Store):
    for path in ("a/1", "a/2", "a/3", "b/1"):
        await store.triggers.change(TriggerChange(row=TriggerRow(path=path, kind="Schedule")))
    await store.triggers.change(TriggerChange(row=TriggerRow(path="a/h", key="k", kind="Hook")))

    found = await store.triggers.of_kind("Schedule", prefix="a/", limit=2)
    assert [row.path for row in found] == ["a/1", "a/2"]
    found = await store.triggers.of_kind("Schedule", prefix="a/", after=("a/2", ""))
    assert [row.path for row in found] == ["a/3"]
    for key in ("l", "m"):
        await store.triggers.change(TriggerChange(row=TriggerRow(path="a/h", key=key, kind="Hook")))
    found = await store.triggers.of_kind("Hook", after=("a/h", "k"))
    assert [row.key for row in found] == ["l", "m"]


async def test_a_row_can_be_removed(store: Store):
    row = await made(store)
    assert await store.triggers.change(change(row, next_at=NOON + 1))

    assert not await store.triggers.change(TriggerChange(row=row, gone=True)), "it has moved"
    moved = await store.triggers.get("shop/nightly")
    assert moved is not None
    assert await store.triggers.change(TriggerChange(row=moved, gone=True))
    assert await store.triggers.get("shop/nightly") is None


async def test_what_belongs_to_a_document_can_be_forgotten_without_it(store: Store):
    own = TriggerRow(path="ops/a", kind="Notification")
    rows = [
        TriggerRow(path=path, key=key, kind=kind)
        for path, key, kind in (
            ("ops/a", "window/1", "Notice"),
            ("ops/a", "pending", "Hook"),
            ("ops/ab", "window/1", "Notice"),
        )
    ]
    assert await store.triggers.change(TriggerChange(row=own, rows=tuple(rows)))

    await store.triggers.forget("ops/a", "Notice")

    assert await store.triggers.get("ops/a", "window/1") is None
    for path, key in (("ops/a", ""), ("ops/a", "pending"), ("ops/ab", "window/1")):
        assert await store.triggers.get(path, key) is not None


async def test_a_document_is_registered_together_with_its_row(store: Store):
    def renewed(version: int, before: TriggerRow | None) -> TriggerRow:
        state = b"%d" % version
        return msgspec.structs.replace(before or ROW, state=state)

    first, second = (entry(text, path="shop/nightly", kind="Schedule") for text in ("one", "two"))
    assert (await store.catalog.register(first, b"n", renewed)).version == 1
    assert (await store.catalog.register(second, b"n", renewed)).version == 2

    found = await store.triggers.get("shop/nightly")
    assert found is not None
    assert (found.state, found.revision) == (b"2", 2)


async def test_a_document_is_registered_over_what_another_server_decides_just_now(
    database_url: str,
):
    store = await PostgresStore.open(database_url)
    await made(store)

    def renewed(_: int, before: TriggerRow | None) -> TriggerRow:
        assert before is not None
        return msgspec.structs.replace(before, state=before.state + b" renewed")

    with (
        psycopg.connect(database_url) as theirs,
        psycopg.connect(database_url, autocommit=True) as looking,
    ):
        theirs.execute("UPDATE noetl.trigger SET revision = revision + 1, state = 'decided'")
        document = entry("one", path="shop/nightly", kind="Schedule")
        registering = asyncio.create_task(store.catalog.register(document, b"n", renewed))
        waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while not looking.execute(waits).fetchall():
            await asyncio.sleep(0.01)
        theirs.commit()
        await registering

    found = await store.triggers.get("shop/nightly")
    assert found is not None
    assert (found.state, found.revision) == (b"decided renewed", 3)
    await store.close()


async def test_documents_registered_under_a_path_at_once_are_versions_of_it(store: Store):
    found = await asyncio.gather(
        *(store.catalog.register(entry(str(number)), b"n") for number in range(8))
    )

    assert sorted(one.version for one in found) == list(range(1, 9))


async def test_a_path_belongs_to_one_kind(store: Store):
    await store.catalog.register(entry("one"), b"n")

    with pytest.raises(Conflict, match=r'"orders/sync" is a Playbook .* no Schedule'):
        await store.catalog.register(entry("two", kind="Schedule"), b"n", lambda *_: ROW)
    assert await store.triggers.get("shop/nightly") is None


def message(name: str, **fields: object) -> TriggerMessage:
    made = TriggerMessage(path="shop/in", id=name, at=NOON, outcome="started")
    return msgspec.structs.replace(made, **fields)


async def test_a_message_starts_one_execution_and_is_known_from_then_on(store: Store):
    first = message("a", execution_id=ONE, reason="nul \0 in it")
    kept = start(ONE, trigger=TriggerChange(messages=(first,)))
    assert await store.log.commit([kept]) == []
    again = TriggerChange(messages=(message("a", execution_id=TWO),))
    assert await store.log.commit([start(TWO, trigger=again)]) == [TWO]

    assert await store.records.summary(TWO) is None
    assert await store.messages.known("shop/in", ["a", "b"]) == {"a"}
    assert await store.messages.known("shop/other", ["a"]) == set()
    [found] = await store.messages.of("shop/in")
    assert (found.id, found.execution_id, found.outcome) == ("a", ONE, "started")


async def test_executions_of_messages_that_have_not_ended_are_listed_oldest_first(store: Store):
    for number, (name, one) in enumerate((("b", TWO), ("a", ONE), ("c", THREE))):
        change = TriggerChange(messages=(message(name, execution_id=one, at=NOON + number),))
        assert await store.log.commit([start(one, trigger=change)]) == []
    assert await store.messages.open("shop/in") == [TWO, ONE, THREE]

    ended = summary(ONE, status="COMPLETED", ended_at=NOON)
    assert await store.log.commit([more(1, summary=ended)]) == []

    assert await store.messages.open("shop/in") == [TWO, THREE]
    assert await store.messages.open("shop/in", limit=1) == [TWO]
    assert await store.messages.open("shop/other") == []


async def test_a_change_with_a_known_message_writes_nothing_at_all(store: Store):
    row = await made(store)
    assert await store.triggers.change(TriggerChange(messages=(message("a", outcome="refused"),)))
    both = (message("b"), message("a"))

    whole = TriggerChange(row=row, messages=both, times=(TIME,))

    assert not await store.triggers.change(whole)
    assert await store.log.commit([start(TWO), start(ONE, trigger=whole)]) == [ONE]
    assert await store.records.summary(TWO) is not None
    assert await store.triggers.get("shop/nightly") == row
    assert await store.messages.known("shop/in", ["a", "b"]) == {"a"}
    assert await store.triggers.times("shop/nightly") == []


async def test_messages_are_listed_newest_first_and_forgotten(store: Store):
    found = tuple(message(name, at=NOON + number) for number, name in enumerate("abcd"))
    others = tuple(message(name, path="shop/other") for name in "ab")
    assert await store.triggers.change(TriggerChange(messages=found + others))

    listed = await store.messages.of("shop/in", before=NOON + 3, limit=2)
    assert [one.id for one in listed] == ["c", "b"]
    await store.messages.forget("shop/in", ["b", "none"])
    await store.messages.forget_old("shop/in", before=NOON + 1)
    assert [one.id for one in await store.messages.of("shop/in")] == ["d", "c"]
    assert [one.id for one in await store.messages.of("shop/other")] == ["b", "a"]


async def test_new_rows_go_along_with_a_decision_and_change_nothing_that_is_there(store: Store):
    row = await made(store)
    other = TriggerRow(path="ops/failed", key="one", kind="Notification", next_at=NOON, state=b"1")
    known = msgspec.structs.replace(row, revision=0, state=b"2")
    kept = start(ONE, trigger=TriggerChange(rows=(other, known)))

    assert await store.log.commit([kept]) == []
    assert await store.triggers.get("ops/failed", "one") == msgspec.structs.replace(
        other, revision=1
    )
    assert await store.triggers.get("shop/nightly") == row


async def test_moments_of_a_rate_lie_apart_whoever_takes_them(store: Store):
    taken = await asyncio.gather(
        *(store.limits.take_moment("host", apart=0.5, now=NOON) for _ in range(6))
    )
    assert sorted(taken) == [NOON + 0.5 * number for number in range(6)]
    assert await store.limits.take_moment("host", apart=0.5, now=NOON + 100) == NOON + 100
    assert await store.limits.take_moment("other", apart=0.5, now=NOON) == NOON
    await store.limits.forget_moments(before=NOON + 50)
    assert await store.limits.take_moment("host", apart=0.5, now=NOON + 100) == NOON + 100.5


async def test_ids_of_messages_are_given_another_beginning(store: Store):
    found = tuple(message(one) for one in ("a/1", "a/2", "a/3", "a/4", "ab/1", "new/4"))
    assert await store.triggers.change(TriggerChange(messages=found))

    assert await store.messages.rename("shop/in", "a/", "new/", limit=2) == 2
    assert await store.messages.rename("shop/in", "a/", "new/", limit=2) == 1
    assert await store.messages.rename("shop/in", "a/", "new/", limit=2) == 0
    assert await store.messages.rename("shop/other", "ab/", "new/") == 0
    known = {one.id for one in await store.messages.of("shop/in")}
    assert known == {"new/1", "new/2", "new/3", "a/4", "new/4", "ab/1"}


def noticed(execution_id: str) -> TriggerChange:
    return TriggerChange(rows=(TriggerRow(path="shop/told", key=execution_id, kind="Notice"),))


async def test_rows_that_are_added_go_with_what_is_kept_of_a_batch(store: Store):
    await store.log.commit([start(TWO)])
    has_moved = more(7, TWO, trigger=noticed(TWO))

    writes = [start(ONE, trigger=noticed(ONE)), has_moved, start(THREE, trigger=noticed(THREE))]
    assert await store.log.commit(writes) == [TWO]

    told = await store.triggers.of_kind("Notice")
    assert [row.key for row in told] == [ONE, THREE]


async def test_executions_that_are_told_of_are_written_in_one_transaction(new_database_url: str):
    store = await PostgresStore.open(new_database_url)
    ids = [str(int(ONE) + number) for number in range(50)]
    writes = [start(one, summary=summary(one, path="p"), trigger=noticed(one)) for one in ids]
    async with await psycopg.AsyncConnection.connect(new_database_url, autocommit=True) as db:

        async def transactions() -> int:
            cursor = await db.execute("SELECT pg_current_xact_id()::text::bigint")
            return int((await cursor.fetchone())[0])  # type: ignore[index]

        before = await transactions()
        assert await store.log.commit(writes) == []
        assert await transactions() - before <= 3
    await store.close()
