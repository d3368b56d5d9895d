"""PostgreSQL keeps log and results by day: a day that may go is dropped whole, others stay."""

from __future__ import annotations

from pathlib import Path

import psycopg

from noetl.control.identity import new_id
from noetl.control.retention import Retention
from noetl.model.ids import ExecutionId
from noetl.model.retention import keep_rules
from noetl.store.archive import Folder
from noetl.store.log import Write
from noetl.store.postgres import PostgresStore
from noetl.store.postgres.database import connect
from noetl.store.postgres.schema import MIGRATIONS, migrate
from noetl.store.retention import Hold
from tests.effort import IS_LONG
from tests.store.making import more, start, summary

DAY = 86400.0
PARTITIONED = next(one for one in MIGRATIONS if one.name == "partitions")


def ended(at: float, **fields: object) -> Write:
    """An execution that was requested and ended then."""
    execution_id = new_id(at)
    row = summary(execution_id, requested_at=at, status="COMPLETED", ended_at=at + 60, **fields)
    return start(execution_id, count=3, summary=row, results=[("k", b"body")])


def children(url: str) -> set[str]:
    """The partitions of the log."""
    with psycopg.connect(url) as db:
        found = db.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'noetl.log'::regclass"
        ).fetchall()
    return {name.removeprefix("noetl.log_") for (name,) in found}


async def days_with(store: PostgresStore, count: int) -> tuple[float, list[ExecutionId]]:
    """The next days have partitions and two executions each; now is after them."""
    today = (await store.time()) // DAY * DAY
    ids = []
    for number in range(1, count + 1):
        writes = [ended(today + number * DAY + hours * 3600) for hours in (1, 13)]
        assert await store.log.commit(writes) == []
        ids += [write.execution_id for write in writes]
    return today + (count + 1) * DAY, ids


async def test_a_day_of_which_all_may_go_is_dropped_whole(database_url: str):
    store = await PostgresStore.open(database_url)
    now, ids = await days_with(store, 3)
    before = children(database_url)

    spans = await store.retention.spans(before=now - DAY, now=now)
    days = [span for span in spans if span != "before"]
    assert len(days) == 2
    for span in spans:
        gone = []
        while some := await store.retention.forget_span(span, limit=1):
            gone += some
        assert len(gone) == (0 if span == "before" else 2)

    assert children(database_url) >= before - {*spans}
    assert not children(database_url) & {*spans}
    assert [await store.log.load(one) for one in ids[:4]] == [None] * 4
    assert [await store.log.events(one) for one in ids[:4]] == [[]] * 4
    assert [await store.bodies.get(one, "k") for one in ids] == [None] * 4 + [b"body"] * 2
    assert sum(one.executions for one in await store.retention.forgotten()) == 4
    assert await store.check() == []
    await store.close()


async def test_a_day_stays_while_one_of_it_must(database_url: str):
    store = await PostgresStore.open(database_url)
    now, ids = await days_with(store, 6)
    await store.retention.hold(Hold(ids[0], "mine", "ada", now))
    called = ended(now - 2 * DAY - 3600, parent_execution_id=ids[3])
    standing = ended(now - 2 * DAY - 3600)
    begun = now - 2 * DAY + 7200
    fresh = new_id(begun)
    runs = start(fresh, summary=summary(fresh, requested_at=begun))
    assert await store.log.commit([called, standing, runs]) == []
    await store.retention.reuse(standing.execution_id, ids[4])

    spans = await store.retention.spans(before=now, now=now)

    # Held, caller, stood upon, called from another day, and one runs: only the sixth is left.
    assert len([span for span in spans if span != "before"]) == 1
    for span in spans:
        while await store.retention.forget_span(span):
            pass
    assert [await store.log.load(one) is None for one in ids] == [False] * 10 + [True] * 2
    await store.close()


async def test_what_has_not_ended_outlives_its_day(database_url: str):
    store = await PostgresStore.open(database_url)
    now, _ = await days_with(store, 1)
    [span] = [one for one in await store.retention.spans(before=now, now=now) if one != "before"]
    runs = new_id(now - DAY + 1)
    assert await store.log.commit([start(runs, summary=summary(runs))]) == []

    gone = await store.retention.forget_span(span)

    assert len(gone) == 2
    assert await store.retention.forget_span(span) == []
    assert len(await store.log.events(runs)) == 1
    await store.close()


async def test_what_is_held_at_the_last_moment_outlives_its_day(database_url: str):
    store = await PostgresStore.open(database_url)
    now, ids = await days_with(store, 1)
    spans = await store.retention.spans(before=now, now=now)
    await store.retention.hold(Hold(ids[0], "mine", "ada", now))

    for span in spans:
        while await store.retention.forget_span(span):
            pass

    assert len(await store.log.events(ids[0])) == 3
    assert await store.bodies.get(ids[0], "k") == b"body"
    await store.close()


async def test_an_execution_of_a_day_that_was_dropped_is_kept_all_the_same(database_url: str):
    store = await PostgresStore.open(database_url)
    now, _ = await days_with(store, 1)
    for span in await store.retention.spans(before=now, now=now):
        while await store.retention.forget_span(span):
            pass
    late = ended(now - DAY / 2)
    assert await store.log.commit([late]) == []
    assert await store.log.commit([more(3, late.execution_id)]) == []

    assert [row.seq for row in await store.log.events(late.execution_id)] == [1, 2, 3, 4]
    await store.close()


async def test_a_database_without_partitions_is_upgraded_in_place(new_database_url: str):
    older = MIGRATIONS[: MIGRATIONS.index(PARTITIONED)]
    async with await connect(new_database_url) as db:
        await migrate(db, "here", older)
        for execution_id in ("7000000000000000001", "1"):
            await db.execute(
                b"INSERT INTO noetl.execution (execution_id, seq, checksum, path, digest, status,"
                b" requested_at) VALUES (%s, 0, 0, 'p', 'd', 'RUNNING', 0)",
                [execution_id],
            )
            await db.execute(
                b"INSERT INTO noetl.result VALUES (%s, 'k', %s, 1, 'x')", [execution_id, "0" * 64]
            )

    store = await PostgresStore.open(new_database_url)

    assert {"before", "other"} < children(new_database_url)
    async with await connect(new_database_url) as db:
        cursor = await db.execute(
            "SELECT execution_id, tableoid::regclass::text AS place FROM noetl.result"
        )
        found = {row["execution_id"]: row["place"] for row in await cursor.fetchall()}
    assert found == {"1": "noetl.result_before", "7000000000000000001": "noetl.result_other"}
    await store.close()


class _Simulated:
    """A clock that a test sets; nobody waits."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0


async def test_under_constant_load_whole_days_go_and_the_disk_stays_flat(database_url: str):
    """Days of load, more than half of them kept: a server that looks four times a day."""
    kept, days, at_once = (20, 30, 10) if IS_LONG else (8, 14, 10)
    store = await PostgresStore.open(database_url)
    clock = _Simulated((await store.time()) // DAY * DAY + DAY)
    retention = Retention(store, clock, keep_rules(f"{kept}d"))
    gone, sizes = [], []
    for _ in range(days):
        for _ in range(4):
            await store.log.commit([ended(clock.at + 60 * n) for n in range(at_once)])
            clock.at += DAY / 4
            gone.append((await retention.prune(lazily=True)).executions)
        sizes.append(_size(database_url))

    assert {*gone} == {0, 4 * at_once}
    assert len(await store.records.summaries(limit=10_000)) <= (kept + 2) * 4 * at_once
    assert max(sizes[kept + 2 :]) <= 1.05 * sizes[kept + 1], sizes
    assert await store.check() == []
    await store.close()


async def test_a_dry_run_and_rules_that_keep_leave_each_day_as_it_is(database_url: str):
    store = await PostgresStore.open(database_url)
    now, ids = await days_with(store, 3)
    clock = _Simulated(now + DAY)
    for rules in ("q/=1h", "1h, orders/=forever", "failed=1h", "30d, q/=1h"):
        pruned = await Retention(store, clock, keep_rules(rules)).prune(lazily=True)
        assert pruned.executions == 0, rules
    would = await Retention(store, clock, keep_rules("1h")).prune(dry_run=True)

    assert would.executions == len(ids)
    assert None not in [await store.log.load(one) for one in ids]
    await store.close()


async def test_only_the_longest_rule_waits_for_whole_days_and_nobody_who_asks(database_url: str):
    store = await PostgresStore.open(database_url)
    noon = (await store.time()) // DAY * DAY + 1.5 * DAY
    clock = _Simulated(noon + 10 * DAY)
    old, young = ended(noon - 3600), ended(noon + 3600)  # of one day, one of them old enough
    short = ended(clock.at - DAY - 3600, path="q/short")
    assert await store.log.commit([old, young, short]) == []
    retention = Retention(store, clock, keep_rules("10d, q/=1d"))

    by_itself = await retention.prune(lazily=True)
    asked_for = await retention.prune()

    assert dict(by_itself.by_path) == {"q/short": 1}
    assert asked_for.executions == 1
    left = [one.execution_id for one in await store.records.summaries()]
    assert left == [young.execution_id]
    await store.close()


async def test_no_day_goes_before_its_executions_are_archived(database_url: str, tmp_path: Path):
    store = await PostgresStore.open(database_url)
    now, ids = await days_with(store, 3)
    [one, *_] = await store.records.summaries()
    await store.catalog.put_net(one.digest, b"{}")
    (tmp_path / "no_folder").write_text("")
    archive = Folder(tmp_path / "no_folder")
    retention = Retention(store, _Simulated(now + DAY), keep_rules("1h"), archive=archive)

    pruned = await retention.prune(lazily=True)

    assert (pruned.executions, dict(pruned.kept)) == (0, {"not archived": len(ids)})
    assert all([await store.log.load(one) is not None for one in ids])
    await store.close()


def _size(url: str) -> int:
    """Of log and results with their indexes and what is stored beside the rows."""
    with psycopg.connect(url) as db:
        found = db.execute(
            "SELECT sum(pg_total_relation_size(inhrelid))::bigint FROM pg_inherits"
            " WHERE inhparent IN ('noetl.log'::regclass, 'noetl.result'::regclass)"
        ).fetchone()
    assert found is not None
    return int(found[0])
