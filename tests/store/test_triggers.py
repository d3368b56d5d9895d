"""What starts executions, in every store: one decision at a time, and with it the execution."""

from __future__ import annotations

import msgspec
import pytest

from noetl.errors import Conflict
from noetl.model.triggers import TriggerChange, TriggerRow, TriggerTime
from noetl.store.base import Store
from tests.store.making import NOON, ONE, TWO, entry, start, summary

ROW = TriggerRow(path="shop/nightly", kind="Schedule", next_at=NOON, state=b'{"a":1}')
TIME = TriggerTime(path="shop/nightly", time=NOON, outcome="buffered", decided_at=NOON)


def change(row: TriggerRow = ROW, *times: TriggerTime, **fields: object) -> TriggerChange:
    return TriggerChange(row=msgspec.structs.replace(row, **fields), times=times)


async def made(store: Store) -> TriggerRow:
    assert await store.change_trigger(change())
    found = await store.trigger("shop/nightly")
    assert found is not None
    return found


async def test_a_row_comes_back_as_it_was_written(store: Store):
    assert await made(store) == msgspec.structs.replace(ROW, revision=1)
    assert await store.trigger("shop/other") is None


async def test_of_two_who_decide_on_the_same_revision_one_is_told_no(store: Store):
    row = await made(store)

    assert await store.change_trigger(change(row, next_at=NOON + 1))
    assert not await store.change_trigger(change(row, TIME, next_at=NOON + 2))
    assert not await store.change_trigger(change())  # it is not new any more
    found = await store.trigger("shop/nightly")
    assert found is not None
    assert (found.next_at, found.revision) == (NOON + 1, 2)
    assert await store.trigger_times("shop/nightly") == []


async def test_an_execution_is_kept_together_with_what_started_it(store: Store):
    row = await made(store)
    started = msgspec.structs.replace(TIME, outcome="started", execution_id=ONE)

    kept = start(ONE, trigger=change(row, started, next_at=NOON + 60))
    assert await store.commit([kept]) == []
    late = start(TWO, trigger=change(row, msgspec.structs.replace(started, execution_id=TWO)))
    assert await store.commit([late, start("7000000000000000009")]) == [TWO]

    assert await store.summary(TWO) is None
    assert await store.summary("7000000000000000009") is not None
    assert await store.trigger_times("shop/nightly") == [started]
    found = await store.trigger("shop/nightly")
    assert found is not None
    assert (found.next_at, found.revision) == (NOON + 60, 2)


async def test_an_execution_whose_key_is_taken_changes_nothing_about_what_starts_it(store: Store):
    row = await made(store)
    keyed = {"idempotency_key": "schedule/shop/nightly/1"}
    await store.commit([start(ONE, summary=summary(ONE, **keyed))])

    again = start(TWO, summary=summary(TWO, **keyed), trigger=change(row, TIME))
    assert await store.commit([again]) == [TWO]

    assert await store.trigger("shop/nightly") == row
    assert await store.trigger_times("shop/nightly") == []


async def test_what_was_started_stays_so(store: Store):
    row = await made(store)
    started = msgspec.structs.replace(TIME, outcome="started", execution_id=ONE)
    await store.change_trigger(change(row, started))
    row = msgspec.structs.replace(row, revision=2)

    assert await store.change_trigger(change(row, TIME))
    assert await store.trigger_times("shop/nightly") == [started]


async def test_times_are_listed_newest_first_and_those_that_wait_oldest_first(store: Store):
    row = await made(store)
    times = [
        msgspec.structs.replace(TIME, time=NOON + n, outcome=outcome)
        for n, outcome in enumerate(("skipped", "buffered", "missed", "buffered"))
    ]
    await store.change_trigger(change(row, *times))

    assert await store.trigger_times("shop/nightly", limit=2) == [times[3], times[2]]
    assert await store.trigger_times("shop/nightly", before=NOON + 1) == [times[0]]
    assert await store.trigger_times_between("shop/nightly", NOON + 1, NOON + 2) == times[1:3]
    assert await store.buffered_times("shop/nightly") == [times[1], times[3]]
    assert await store.buffered_times("shop/nightly", limit=1) == [times[1]]


async def test_what_is_due_comes_earliest_first_and_what_has_no_moment_never(store: Store):
    for number, at in enumerate((NOON + 2, NOON, None, NOON + 9)):
        row = TriggerRow(path=f"p{number}", kind="Schedule", next_at=at)
        await store.change_trigger(TriggerChange(row=row))

    found = await store.due_triggers(now=NOON + 5)
    assert [row.path for row in found] == ["p1", "p0"]
    assert await store.next_trigger() == NOON


async def test_nothing_is_due_where_nothing_is(store: Store):
    assert await store.due_triggers(now=NOON) == []
    assert await store.next_trigger() is None


async def test_rows_are_listed_by_kind_and_prefix_page_by_page(store: Store):
    for path in ("a/1", "a/2", "a/3", "b/1"):
        await store.change_trigger(TriggerChange(row=TriggerRow(path=path, kind="Schedule")))
    await store.change_trigger(TriggerChange(row=TriggerRow(path="a/h", key="k", kind="Hook")))

    found = await store.triggers("Schedule", prefix="a/", limit=2)
    assert [row.path for row in found] == ["a/1", "a/2"]
    found = await store.triggers("Schedule", prefix="a/", after=("a/2", ""))
    assert [row.path for row in found] == ["a/3"]


async def test_a_row_can_be_removed(store: Store):
    row = await made(store)

    assert await store.change_trigger(TriggerChange(row=row, gone=True))
    assert await store.trigger("shop/nightly") is None


async def test_a_document_is_registered_together_with_its_row(store: Store):
    def renewed(version: int, before: TriggerRow | None) -> TriggerRow:
        state = b"%d" % version
        return msgspec.structs.replace(before or ROW, state=state)

    first, second = (entry(text, path="shop/nightly", kind="Schedule") for text in ("one", "two"))
    assert (await store.register(first, b"n", renewed)).version == 1
    assert (await store.register(second, b"n", renewed)).version == 2

    found = await store.trigger("shop/nightly")
    assert found is not None
    assert (found.state, found.revision) == (b"2", 2)


async def test_a_path_belongs_to_one_kind(store: Store):
    await store.register(entry("one"), b"n")

    with pytest.raises(Conflict, match=r'"orders/sync" is a Playbook .* no Schedule'):
        await store.register(entry("two", kind="Schedule"), b"n", lambda *_: ROW)
    assert await store.trigger("shop/nightly") is None
