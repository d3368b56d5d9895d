"""Bytes that changed on disk are noticed, and only those who own them suffer."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from noetl.errors import Corrupted
from noetl.store.log import chain, chain_start, continues
from noetl.store.sqlite import SqliteStore
from tests.store.making import (
    MINUTE,
    NOON,
    ONE,
    TWO,
    array,
    event,
    events,
    free,
    more,
    start,
    summary,
)

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "noetl.db"


async def filled(path: Path) -> None:
    """Two executions; what belongs to the first has "precious" in it."""
    store = await SqliteStore.open(str(path))
    await store.log.commit(
        [
            start(
                ONE,
                events=[event(1, text="precious event 1")],
                commands=free("precious", args={"x": "precious argument"}),
                results=[("k", b"precious result"), ("big", b"precious file" * 100_000)],
            )
        ]
    )
    for seq in range(2, 8):
        await store.log.commit([more(seq - 1, events=[event(seq, text=f"precious event {seq}")])])
    await store.log.commit([start(TWO, count=7, commands=free("other", execution_id=TWO))])
    await store.close()


def flip(path: Path, text: bytes, *, offset: int = 0) -> None:
    """Change one bit of the byte at `offset` after the only occurrence of `text`."""
    data = bytearray(path.read_bytes())
    assert data.count(text) == 1
    data[data.index(text) + offset] ^= 0x04
    path.write_bytes(data)


async def assert_only_the_first_suffers(path: Path) -> None:
    store = await SqliteStore.open(str(path))
    with pytest.raises(Corrupted, match=ONE) as raised:
        await store.log.load(ONE)
    assert "noetl db check" in str(raised.value)
    assert await store.log.load(TWO) == (0, None, [array(events(1, 7))])
    assert await store.log.events(TWO) == events(1, 7)
    assert {row.execution_id for row in await store.records.summaries()} == {ONE, TWO}
    assert await store.log.commit([more(7, TWO)]) == []
    problems = await store.check()
    assert problems
    assert all(ONE in problem for problem in problems if not problem.startswith("The file"))
    await store.close()


async def test_an_untouched_database_has_no_problems(path: Path):
    await filled(path)
    store = await SqliteStore.open(str(path))

    assert await store.check() == []
    await store.close()


@pytest.mark.parametrize("seq", range(1, 8))
async def test_a_changed_byte_of_any_event_is_noticed(path: Path, seq: int):
    await filled(path)
    flip(path, b"precious event %d" % seq, offset=3)

    await assert_only_the_first_suffers(path)


async def test_a_changed_event_is_not_served_and_the_events_before_it_are(path: Path):
    await filled(path)
    flip(path, b"precious event 5")
    store = await SqliteStore.open(str(path))

    assert len(await store.log.events(ONE, limit=4)) == 4
    with pytest.raises(Corrupted, match="event 5"):
        await store.log.events(ONE)
    with pytest.raises(Corrupted, match="event 5"):
        await store.log.events(ONE, after=4, types=["task.done"], limit=1)
    await store.close()


async def test_an_error_that_is_kept_holds_no_reader_at_its_moment(path: Path):
    await filled(path)
    flip(path, b"precious event 5")
    store = await SqliteStore.open(str(path))
    kept = []
    for _ in range(8):  # every reader meets it
        with pytest.raises(Corrupted) as raised:
            await store.log.load(ONE)
        kept.append(raised)

    assert await store.log.commit([more(7, TWO)]) == []
    ends = [await store.log.heads([TWO]) for _ in range(8)]

    assert {found[TWO] for found in ends} == {8}
    await store.close()


async def test_a_text_that_is_no_text_any_more_is_noticed(path: Path):
    store = await SqliteStore.open(str(path))
    odd = [event(1), event(2, step="peculiar")]
    await store.log.commit(
        [start(ONE, events=odd, summary=summary(current_steps=("peculiarity",)))]
    )
    await store.log.commit([start(TWO, count=7)])
    await store.close()
    data = path.read_bytes()
    assert data.count(b'peculiar"') == 1
    path.write_bytes(data.replace(b'peculiar"', b'peculi\xffr"'))

    await assert_only_the_first_suffers(path)


def change(path: Path, statement: str, *parameters: object) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(statement, parameters).rowcount >= 1
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM noetl_log WHERE execution_id = ? AND seq = 1",
        "DELETE FROM noetl_log WHERE execution_id = ? AND seq = 4",
        "DELETE FROM noetl_log WHERE execution_id = ? AND seq = 7",
        "DELETE FROM noetl_log WHERE execution_id = ?",
        "UPDATE noetl_log SET seq = 9 WHERE execution_id = ? AND seq = 7",
        "UPDATE noetl_log SET events = x'5b5d' WHERE execution_id = ? AND seq = 3",
        "UPDATE noetl_log SET events = zeroblob(0) WHERE execution_id = ? AND seq = 3",
        "UPDATE noetl_log SET checksum = checksum + 1 WHERE execution_id = ? AND seq = 7",
        "UPDATE noetl_execution SET seq = seq - 1 WHERE execution_id = ?",
    ],
)
async def test_every_column_and_every_row_of_the_log_is_covered(path: Path, statement: str):
    await filled(path)
    change(path, statement, ONE)

    await assert_only_the_first_suffers(path)


@pytest.mark.parametrize("is_damaged", [True, False])
async def test_a_log_that_grows_while_it_is_read_is_judged_as_any_other(
    path: Path, is_damaged: bool
):
    await filled(path)
    if is_damaged:
        statement = "UPDATE noetl_log SET events = x'5b5d' WHERE execution_id = ? AND seq = 3"
        change(path, statement, ONE)
    store = await SqliteStore.open(str(path))

    async def grow() -> None:
        for seq in itertools.count(7):
            await store.log.commit([more(seq)])

    growing = asyncio.create_task(grow())
    try:
        found = [await store.check() for _ in range(20)]
    finally:
        growing.cancel()
        with suppress(asyncio.CancelledError):
            await growing
        await store.close()

    assert [len(one) for one in found] == [int(is_damaged)] * 20, found


def test_the_checksum_of_a_row_covers_its_place_and_what_is_before_it():
    first = chain(chain_start(ONE), 1, b"[]")
    rows = {
        chain(first, 2, b"[]"),
        chain(first, 3, b"[]"),
        chain(first, 2, b"[1]"),
        chain(chain_start(ONE), 2, b"[]"),
        chain(chain_start(TWO), 2, b"[]"),
    }

    assert len(rows) == 5
    assert continues(first, 2, b"[]", chain(first, 2, b"[]"))
    assert not continues(first, 3, b"[]", chain(first, 2, b"[]"))


async def test_a_changed_snapshot_is_noticed(path: Path):
    store = await SqliteStore.open(str(path))
    await store.log.commit([start(ONE, snapshot=b"precious state"), start(TWO, count=7)])
    await store.close()
    flip(path, b"precious state")

    await assert_only_the_first_suffers(path)


async def test_a_snapshot_and_the_events_after_it_must_fit_together(path: Path):
    store = await SqliteStore.open(str(path))
    await store.log.commit([start(ONE, count=3, snapshot=b"state"), start(TWO, count=7)])
    await store.log.commit([more(3)])
    await store.close()
    change(path, "UPDATE noetl_snapshot SET seq = 2 WHERE execution_id = ?", ONE)

    store = await SqliteStore.open(str(path))
    with pytest.raises(Corrupted, match=ONE):
        await store.log.load(ONE)
    await store.close()


async def test_a_changed_command_is_nobodys_work_and_in_nobodys_way(path: Path):
    await filled(path)
    flip(path, b"precious argument", offset=2)
    store = await SqliteStore.open(str(path))

    async def claim() -> list[str]:
        leases = await store.queue.claim("w", pool="default", limit=1, expires_at=NOON + MINUTE)
        return [lease.command.command_id for lease in leases]

    assert await claim() == ["other"]
    assert await claim() == []
    assert [command.command_id for command, _, _ in await store.queue.open_commands()] == ["other"]
    assert await store.queue.lapsed(now=NOON) == []
    with pytest.raises(Corrupted, match="Command precious"):
        await store.queue.open_commands(ONE)
    await store.close()
    await assert_only_the_first_suffers(path)


async def read(path: Path, key: str) -> bytes | None:
    store = await SqliteStore.open(str(path))
    try:
        return await store.bodies.get(ONE, key)
    finally:
        await store.close()


def flip_file(path: Path) -> None:
    [file] = path.with_name("noetl.db.results").iterdir()
    data = bytearray(file.read_bytes())
    data[777_777] ^= 1
    file.write_bytes(data)


def remove_file(path: Path) -> None:
    [file] = path.with_name("noetl.db.results").iterdir()
    file.unlink()


def flip_row(path: Path) -> None:
    flip(path, b"precious result")


@pytest.mark.parametrize(
    ("damage", "key", "other"),
    [(flip_row, "k", "big"), (flip_file, "big", "k"), (remove_file, "big", "k")],
)
async def test_a_changed_result_is_noticed(
    path: Path, damage: Callable[[Path], None], key: str, other: str
):
    await filled(path)
    damage(path)

    with pytest.raises(Corrupted, match=ONE):
        await read(path, key)
    assert await read(path, other)
    store = await SqliteStore.open(str(path))
    [problem] = await store.check()
    assert ONE in problem
    await store.close()


async def test_a_torn_page_is_an_error_of_ours_and_the_rest_can_be_checked(path: Path):
    await filled(path)
    data = bytearray(path.read_bytes())
    page = data.index(b"precious event 3") // 4096 * 4096
    data[page : page + 100] = b"\xff" * 100
    path.write_bytes(data)

    store = await SqliteStore.open(str(path))
    with pytest.raises(Corrupted, match=r"noetl db check"):
        await store.log.load(ONE)
    assert await store.check()
    assert await store.records.summary(TWO) is not None
    await store.close()
