"""Reading executions back, one by one and in lists."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from noetl.model.execution_query import exactly
from noetl.store.base import Store
from tests.store.making import (
    MINUTE,
    NOON,
    ONE,
    THREE,
    TWO,
    array,
    event,
    events,
    more,
    start,
    summary,
)


async def test_what_is_not_there_is_none_or_empty(store: Store):
    assert await store.log.load(ONE) is None
    assert await store.records.summary(ONE) is None
    assert await store.records.by_key("k") is None
    assert await store.log.events(ONE) == []
    assert await store.records.summaries() == []
    assert await store.records.unfinished() == []
    assert await store.log.variables(ONE) == {}


async def test_without_a_snapshot_all_events_are_loaded(store: Store):
    await store.log.commit([start(count=3)])

    assert await store.log.load(ONE) == (0, None, [array(events(1, 3))])


async def test_the_newest_snapshot_is_loaded_with_the_events_after_it(store: Store):
    await store.log.commit([start(count=2, snapshot=b"first")])
    await store.log.commit([more(2, events=events(3, 4), snapshot=b"second")])
    await store.log.commit([more(4, events=events(5, 6))])

    assert await store.log.load(ONE) == (4, b"second", [array(events(5, 6))])


async def test_the_log_stays_whole_beside_a_snapshot(store: Store):
    await store.log.commit([start(count=5, snapshot=b"state")])

    assert await store.log.events(ONE) == events(1, 5)


async def test_events_come_back_as_they_were_written(store: Store):
    odd = [
        event(1, text="\x00\xff" * 3, step="", step_run_id="", type="ünïcode", at=0.1 + 0.2),
        event(2, at=5.0, step="a'b\"c\n\0"),
        event(3, text="x" * 300_000),
    ]
    await store.log.commit([start(events=odd)])

    assert await store.log.events(ONE) == odd
    assert await store.log.load(ONE) == (0, None, [array(odd)])


async def test_the_events_of_a_report_were_all_recorded_with_it(store: Store):
    await store.log.commit([start(events=[event(1), event(2, recorded_at=NOON + 5), event(3)])])
    await store.log.commit([more(3)])

    found = await store.log.events(ONE)
    assert [row.recorded_at for row in found] == [0.0, NOON + 5, NOON + 5, 0.0]


async def test_events_can_be_paged_through(store: Store):
    await store.log.commit([start(count=25)])
    pages, after = [], 0
    while page := await store.log.events(ONE, after=after, limit=10):
        pages.append(page)
        after = page[-1].seq

    assert [len(page) for page in pages] == [10, 10, 5]
    assert [row for page in pages for row in page] == events(1, 25)


async def test_a_long_log_is_read_to_its_end_or_as_far_as_was_asked_for(store: Store):
    whole = events(1, 150)
    await store.log.commit([start(), *(more(seq) for seq in range(1, 150))])
    first = whole[:120]

    assert await store.log.events(ONE) == whole
    assert await store.log.events(ONE, limit=120) == first
    assert await store.log.events(ONE, size=sum(len(row.body) for row in first)) == first
    assert await store.log.events(ONE, after=120, size=1) == whole[120:121]


async def test_events_can_be_chosen_by_type_and_step(store: Store):
    rows = [
        event(1, type="a", step="x"),
        event(2, type="b", step="x"),
        event(3, type="c", step="y"),
        event(4, type="a", step="y"),
    ]
    await store.log.commit([start(events=rows)])

    async def seqs(**chosen: Any) -> list[int]:
        return [row.seq for row in await store.log.events(ONE, **chosen)]

    assert await seqs(types=["a"]) == [1, 4]
    assert await seqs(types=["a", "c"]) == [1, 3, 4]
    assert await seqs(types=["nothing"]) == []
    assert await seqs(step="x") == [1, 2]
    assert await seqs(types=("a", "b"), step="y") == [4]
    assert await seqs(types=["a"], after=1) == [4]
    assert await seqs(types=["a"], limit=1) == [1]


async def test_a_summary_has_every_field(store: Store):
    whole = summary(
        status="FAILED",
        ended_at=NOON + 9,
        parent_execution_id=TWO,
        idempotency_key="k",
        current_steps=("a", "ü"),
        error="it broke",
    )
    await store.log.commit([start(summary=whole)])

    assert await store.records.summary(ONE) == whole


@pytest.mark.parametrize("with_another", [False, True])
async def test_a_summary_follows_its_execution_and_stays_if_none_is_given(
    store: Store, with_another: bool
):
    await store.log.commit([start(summary=summary(status="PENDING", version=None))])
    running = summary(status="RUNNING", version=None, current_steps=("fetch",))
    await store.log.commit([more(1, summary=running)])
    await store.log.commit([more(2)])
    assert await store.records.summary(ONE) == running

    failing = msgspec.structs.replace(running, error="it broke", failed_step="fetch")
    await store.log.commit([more(3, summary=failing)])
    assert await store.records.summary(ONE) == failing

    done = summary(status="COMPLETED", version=None, ended_at=NOON + 5, failed_step="")
    beside = [start(TWO)] if with_another else []
    await store.log.commit([more(4, summary=done), *beside])
    assert await store.records.summary(ONE) == done


@pytest.mark.parametrize("with_another", [False, True])
async def test_an_error_with_any_character_is_kept_in_lists(store: Store, with_another: bool):
    await store.log.commit([start()])
    broken = summary(status="FAILED", ended_at=NOON, error="nul \0 in it")
    beside = [start(TWO, summary=msgspec.structs.replace(broken, execution_id=TWO))]

    assert await store.log.commit([more(1, summary=broken), *beside[: int(with_another)]]) == []

    for row in await store.records.summaries():
        assert (row.error or "").replace("\ufffd", "\0") == "nul \0 in it"


async def test_an_execution_is_found_by_its_idempotency_key(store: Store):
    keyed = summary(idempotency_key="order-7")
    await store.log.commit([start(summary=keyed), start(TWO)])

    assert await store.records.by_key("order-7") == keyed
    assert await store.records.by_key("order-8") is None


async def test_a_second_execution_under_a_taken_key_has_moved(store: Store):
    await store.log.commit([start(ONE, summary=summary(ONE, idempotency_key="k"))])
    second = start(TWO, summary=summary(TWO, idempotency_key="k"))
    third = start(THREE, summary=summary(THREE, idempotency_key="another"))

    goes_on = more(1, summary=summary(ONE, idempotency_key="k", current_steps=("next",)))

    assert await store.log.commit([goes_on, second, third]) == [TWO]

    assert await store.log.load(TWO) is None
    assert await store.records.by_key("k") == goes_on.summary
    assert await store.records.by_key("another") is not None


async def test_of_two_executions_with_one_key_in_one_batch_the_first_wins(store: Store):
    moved = await store.log.commit(
        [start(name, summary=summary(name, idempotency_key="k")) for name in (ONE, TWO)]
    )

    assert moved == [TWO]


async def test_unfinished_are_those_that_have_not_ended(store: Store):
    ended = {"COMPLETED", "FAILED", "CANCELLED"}
    for number, status in enumerate(["PENDING", "RUNNING", "PAUSED", *sorted(ended)]):
        ended_at = NOON if status in ended else None
        row = summary(str(number), status=status, ended_at=ended_at, requested_at=NOON + number)
        await store.log.commit([start(str(number), summary=row)])

    assert await store.records.unfinished() == ["0", "1", "2"]


async def test_heads_are_where_logs_end(store: Store):
    await store.log.commit([start(ONE, count=3), start(TWO)])

    assert await store.log.heads([ONE, TWO, THREE]) == {ONE: 3, TWO: 1}
    assert await store.log.heads([]) == {}


async def fill(store: Store) -> None:
    """Twelve executions, two at each minute; every third failed, every fourth is a child."""
    for number in range(12):
        failed = number % 3 == 0
        row = summary(
            f"{number:02}",
            path="even" if number % 2 == 0 else "odd",
            status="FAILED" if failed else "RUNNING",
            ended_at=NOON if failed else None,
            requested_at=NOON + number // 2 * MINUTE,
            parent_execution_id="00" if number % 4 == 1 else None,
            labels={"team": "a" if number < 7 else "b", "third": str(number % 3)} if number else {},
        )
        await store.log.commit([start(row.execution_id, summary=row)])


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "11 10 09 08 07 06 05 04 03 02 01 00"),
        ({"status": "FAILED"}, "09 06 03 00"),
        ({"status": "PAUSED"}, ""),
        ({"path": "odd"}, "11 09 07 05 03 01"),
        ({"parent": "00"}, "09 05 01"),
        ({"since": NOON + 4 * MINUTE}, "11 10 09 08"),
        ({"path": "odd", "status": "FAILED"}, "09 03"),
        ({"parent": "00", "status": "RUNNING"}, "05 01"),
        ({"parent": "00", "path": "odd", "status": "FAILED"}, "09"),
        ({"parent": "00", "path": "even"}, ""),
        ({"status": "FAILED", "since": NOON + 3 * MINUTE}, "09 06"),
        ({"path": "odd", "since": NOON + 4 * MINUTE}, "11 09"),
        ({"labels": {"team": "b"}}, "11 10 09 08 07"),
        ({"labels": {"team": "b", "third": "0"}}, "09"),
        ({"labels": {"team": "a"}, "path": "odd", "status": "RUNNING"}, "05 01"),
        ({"labels": {"team": "a"}, "parent": "00", "since": NOON + MINUTE}, "05"),
        ({"labels": {"team": "c"}}, ""),
    ],
)
async def test_summaries_newest_first(store: Store, chosen: dict[str, Any], expected: str):
    await fill(store)

    found = await store.records.summaries(exactly(**chosen))

    assert " ".join(row.execution_id for row in found) == expected


@pytest.mark.parametrize(
    "chosen",
    [{}, {"status": "RUNNING"}, {"path": "odd"}, {"parent": "00"}, {"labels": {"team": "a"}}],
)
async def test_pages_of_summaries_join_without_gap_or_overlap(store: Store, chosen: dict[str, Any]):
    await fill(store)
    wanted = exactly(**chosen)
    whole = await store.records.summaries(wanted)
    pages, before = [], None
    while page := await store.records.summaries(wanted, before=before, limit=2):
        pages += page
        before = (page[-1].requested_at, page[-1].execution_id)

    assert len(whole) > 2
    assert pages == whole


async def test_labels_are_kept_and_their_values_counted(store: Store):
    await fill(store)

    found = await store.records.summary("08")
    assert found is not None
    assert found.labels == {"team": "b", "third": "2"}
    assert await store.records.label_counts("team") == [("a", 6), ("b", 5)]
    assert await store.records.label_counts("team", since=NOON + 3 * MINUTE) == [("b", 5), ("a", 1)]
    assert await store.records.label_counts("third", limit=1) == [("1", 4)]


async def test_variables_are_set_replaced_and_deleted(store: Store):
    odd = {"ü \x00": b"[]", "\\0": b"3", "\\\x00\\": b"4"}
    await store.log.commit([start(vars={"a": b"1", "b": b'"x"', **odd}), start(TWO)])
    await store.log.commit([more(1, vars={"a": b"2", "b": None, "never there": None})])

    assert await store.log.variables(ONE) == {"a": b"2", **odd}
    assert await store.log.variables(TWO) == {}
