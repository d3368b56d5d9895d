"""The store remembers where executions stand, and writes by that only what is true."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from noetl.errors import StoreError
from noetl.store.log import HEADS_MAX, Head, Heads
from noetl.store.sqlite import SqliteStore
from tests.store.making import NOON, ONE, TWO, events, more, start, summary


def behind_its_back(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement, (ONE,))
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE noetl_execution SET seq = 7 WHERE execution_id = ?",
        "DELETE FROM noetl_execution WHERE execution_id = ?",
    ],
)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"summary": summary(current_steps=("next",))},
        {"summary": summary(status="COMPLETED", ended_at=NOON)},
        {"events": []},
    ],
    ids=["events", "steps", "status", "neither"],
)
async def test_whoever_moved_behind_its_back_is_found_out_and_others_are_kept(
    tmp_path: Path, statement: str, changed: dict[str, Any]
):
    path = tmp_path / "noetl.db"
    store = await SqliteStore.open(str(path))
    await store.log.commit([start(ONE), start(TWO)])
    behind_its_back(path, statement)

    moved = await store.log.commit([more(1, ONE, vars={"x": b"1"}, **changed), more(1, TWO)])

    assert moved == [ONE]
    assert await store.log.variables(ONE) == {}
    assert await store.log.events(TWO) == events(1, 2)
    assert await store.log.commit([more(2, TWO)]) == []
    await store.close()


async def test_a_status_that_changed_behind_its_back_is_written_over(tmp_path: Path):
    path = tmp_path / "noetl.db"
    store = await SqliteStore.open(str(path))
    await store.log.commit([start(ONE)])
    behind_its_back(path, "UPDATE noetl_execution SET status = 'PAUSED' WHERE execution_id = ?")

    assert await store.log.commit([more(1, summary=summary(current_steps=("next",)))]) == []

    assert await store.records.summary(ONE) == summary(current_steps=("next",))
    await store.close()


async def test_what_was_rolled_back_is_not_remembered(tmp_path: Path):
    store = await SqliteStore.open(str(tmp_path / "noetl.db"))
    await store.log.commit([start(ONE)])
    with pytest.raises(StoreError, match="no summary"):
        await store.log.commit([more(1, events=events(2, 3)), start(TWO, summary=None)])

    assert await store.log.commit([more(3)]) == [ONE]
    assert await store.log.commit([more(1)]) == []

    assert await store.log.events(ONE) == events(1, 2)
    assert await store.check() == []
    await store.close()


def test_no_more_is_remembered_than_there_is_room_for():
    heads: Heads[Head] = Heads()
    for number in range(HEADS_MAX + 1):
        heads.remember(str(number), Head(1, number))

    assert heads.get("0") is None
    assert heads.get("1") == Head(1, 1)
