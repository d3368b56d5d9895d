"""Who is there: servers and workers that register, beat and leave."""

from __future__ import annotations

import msgspec

from noetl.store.base import Runtime, Store
from tests.store.making import NOON

SERVER = Runtime(name="s1", kind="server", started_at=NOON, seen_at=NOON, host="ü", version="1")
WORKER = Runtime(
    name="w1", kind="worker", started_at=NOON, seen_at=NOON + 5, pool="gpu", slots=8, draining=True
)


async def test_processes_are_listed_by_name_as_they_are(store: Store):
    await store.runtimes.beat(WORKER)
    await store.runtimes.beat(SERVER)

    assert await store.runtimes.all() == [SERVER, WORKER]


async def test_a_beat_changes_everything_but_the_start(store: Store):
    await store.runtimes.beat(SERVER)
    later = Runtime(
        name="s1", kind="server", started_at=NOON + 7, seen_at=NOON + 7, slots=3, draining=True
    )
    await store.runtimes.beat(later)

    assert await store.runtimes.all() == [msgspec.structs.replace(later, started_at=NOON)]


async def test_processes_can_be_chosen_by_kind_and_by_when_they_were_seen(store: Store):
    await store.runtimes.beat(SERVER)
    await store.runtimes.beat(WORKER)

    assert await store.runtimes.all(kind="server") == [SERVER]
    assert await store.runtimes.all(since=NOON + 5) == [WORKER]
    assert await store.runtimes.all(kind="server", since=NOON + 1) == []


async def test_who_leaves_is_not_there_any_more(store: Store):
    await store.runtimes.beat(SERVER)

    assert await store.runtimes.leave("s1") is True
    assert await store.runtimes.leave("s1") is False
    assert await store.runtimes.all() == []


async def test_the_time_goes_on(store: Store):
    first = await store.time()

    assert NOON < first <= await store.time()
