"""`noetl db check` reads everything, a little at a time, and names what is damaged."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from noetl.store.base import Store
from noetl.store.queue import NewCommand
from tests.store.making import ONE, TWO, free, start, unreadable

LARGE = 100_000
MANY = 200


@pytest.mark.parametrize("worker_id", [None, "w"])
async def test_a_command_that_cannot_be_decoded_is_named(store: Store, worker_id: str | None):
    leased = NewCommand(unreadable("later"), worker_id, None if worker_id is None else 1.0)
    await store.log.commit(
        [start(ONE, commands=[leased]), start(TWO, commands=free("b", execution_id=TWO))]
    )

    [problem] = await store.check()

    assert problem.startswith(f"Command later of execution {ONE} is not")
    assert "not readable for this version of NoETL" in problem


@pytest.mark.parametrize("what", ["snapshots", "commands", "events"])
async def test_the_check_holds_a_part_of_the_database_in_memory(store: Store, what: str):
    ids = [f"7{number:018}" for number in range(MANY)]
    text = "x" * LARGE
    for one in ids:
        fields: dict[str, Any] = {
            "snapshots": {"snapshot": text.encode()},
            "commands": {"commands": free("a", execution_id=one, args={"x": text})},
            "events": {},
        }[what]
        await store.log.commit([start(one, **fields)])

    tracemalloc.start()
    try:
        assert await store.check() == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < MANY * LARGE / 2
