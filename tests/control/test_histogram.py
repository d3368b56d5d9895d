"""Histograms of executions: every one is counted once, in round buckets, however they lie."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from itertools import pairwise

import pytest

from noetl.control.records import WIDTHS, Records
from noetl.model.execution_query import parse
from noetl.store.sqlite import SqliteStore
from tests.store.making import NOON, start, summary

DAY = 86_400.0


def moments(kind: str) -> list[float]:
    dice = random.Random(4)
    match kind:
        case "spread":
            return [NOON + dice.random() * 90 * DAY for _ in range(300)]
        case "one":
            return [NOON]
        case "close":  # an hour, in two years of others
            return [NOON + 400 * DAY + dice.random() * 3600 for _ in range(300)]
    return [NOON + number for number in range(300)]


@pytest.mark.parametrize("kind", ["spread", "one", "close", "seconds"])
@pytest.mark.parametrize("buckets", [4, 60, 1000])
def test_every_execution_is_in_one_bucket(kind: str, buckets: int):
    async def story() -> None:
        store = await SqliteStore.open(":memory:")
        times = moments(kind)
        rows = [summary(str(number), requested_at=at) for number, at in enumerate(times, 1000)]
        others = [summary("1", path="x", requested_at=NOON - 300 * DAY)]
        others.append(summary("2", path="x", requested_at=NOON + 450 * DAY))
        await store.log.commit([start(row.execution_id, summary=row) for row in (*rows, *others)])
        drawn = await Records(store.log, store.records, store.catalog).histogram(
            parse("-path:x", NOON), now=NOON, buckets=buckets
        )

        assert drawn.total == len(times)
        width = drawn.bucket_seconds
        assert width in WIDTHS
        assert drawn.start is not None
        assert drawn.end is not None
        begin, end = (datetime.fromisoformat(one).timestamp() for one in (drawn.start, drawn.end))
        assert round((end - begin) / width) <= buckets
        assert begin <= min(times) < begin + width
        assert end - width <= max(times) < end
        for bucket in drawn.buckets:
            assert bucket.start is not None
            at = datetime.fromisoformat(bucket.start).timestamp()
            inside = sum(at <= one < at + width for one in times)
            assert bucket.counts == {"RUNNING": inside}
        await store.close()

    asyncio.run(story())


def test_each_width_is_a_multiple_of_the_one_before():
    assert all(wide % narrow == 0 for narrow, wide in pairwise(WIDTHS))
