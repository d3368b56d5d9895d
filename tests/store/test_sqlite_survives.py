"""What a database file goes through: killed processes, several processes, a full disk."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from noetl.errors import StoreBusy, StoreError
from noetl.store.log import Write
from noetl.store.sqlite import SqliteStore
from noetl.store.sqlite.connections import LOG_BYTES
from noetl.store.sqlite.database import MANY_CHANGES
from tests import forked
from tests.cli.conftest import clean_environment
from tests.effort import TIMES
from tests.store.making import ONE, event, events, more, start
from tests.store.writing_forever import GROUPS, MEMBERS, member, rounds_done

ROOT = Path(__file__).parents[2]
KILLS = 8 * TIMES
MIB = 1 << 20


def python(*arguments: str) -> subprocess.Popen[str]:
    return forked.popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean_environment(),
    )


def killed_while_writing(path: Path, seconds: float) -> list[tuple[int, int]]:
    """Kill -9 a writing process after so long; what it had acknowledged: (group, round)."""
    process = python("-m", "tests.store.writing_forever", str(path))
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate()
    assert first == "ready\n", err
    assert process.returncode == -signal.SIGKILL, err
    whole_lines = out.split("\n")[:-1]
    return [(int(group), int(done)) for group, done in map(str.split, whole_lines)]


async def test_a_killed_process_loses_nothing_acknowledged_and_leaves_no_half_commit(
    tmp_path: Path,
):
    path, dice = tmp_path / "noetl.db", random.Random(13)
    acknowledged = 0
    for _ in range(KILLS):
        said = killed_while_writing(path, dice.uniform(0.0, 0.25))
        acknowledged += len(said)

        store = await SqliteStore.open(str(path))
        for group in range(GROUPS):
            last = max((done for at, done in said if at == group), default=0)
            rounds = [await rounds_done(store, member(group, n)) for n in range(MEMBERS)]
            assert min(rounds) >= last
            assert len(set(rounds)) == 1
            for number in range(MEMBERS if rounds[0] else 0):
                await assert_whole(store, member(group, number), rounds[0])
        assert await store.check() == []
        await store.close()
    assert acknowledged > KILLS


async def assert_whole(store: SqliteStore, execution_id: str, rounds: int) -> None:
    """Everything that belongs to a round is there, and nothing of a later one."""
    assert await store.log.events(execution_id, limit=1_000_000) == events(1, 2 * rounds)
    assert await store.log.variables(execution_id) == {"round": b"%d" % rounds}
    open_names = [
        command.command_id for command, _, _ in await store.queue.open_commands(execution_id)
    ]
    assert open_names == [f"command {rounds}"]


# --- Several processes -------------------------------------------------------------------------

HOLD = """
import asyncio, sys
from noetl.store.sqlite import SqliteStore
async def main():
    store = await SqliteStore.open(sys.argv[1])
    print("held", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


@contextmanager
def held_by_another_process(path: Path) -> Iterator[int]:
    process = python("-c", HOLD, str(path))
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


async def test_a_second_process_is_told_who_holds_the_file_and_what_to_do(tmp_path: Path):
    path = tmp_path / "noetl.db"
    with held_by_another_process(path) as pid:
        with pytest.raises(StoreBusy) as raised:
            await SqliteStore.open(str(path))
        assert str(path) in str(raised.value)
        assert f"process {pid}," in str(raised.value)
        assert "noetl executions list" in str(raised.value)

    store = await SqliteStore.open(str(path))
    await store.close()


async def test_the_same_process_cannot_open_it_twice_but_again_after_closing(tmp_path: Path):
    path = str(tmp_path / "noetl.db")
    store = await SqliteStore.open(path)
    with pytest.raises(StoreBusy, match=f"process {os.getpid()}"):
        await SqliteStore.open(path)
    await store.close()

    again = await SqliteStore.open(path)
    await again.close()
    await again.close()


async def test_a_link_to_the_file_is_the_same_database(tmp_path: Path):
    """Its lock and its large results lie beside the file, whatever name leads there."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(tmp_path / "noetl.db")
    store, large = await SqliteStore.open(f"sqlite:///{link}"), b"y" * (3 * MIB)
    await store.log.commit([start(ONE, results=[("k", large)])])

    with pytest.raises(StoreBusy):
        await SqliteStore.open(f"sqlite:///{tmp_path / 'noetl.db'}")
    await store.close()

    again = await SqliteStore.open(f"sqlite:///{tmp_path / 'noetl.db'}")
    assert await again.bodies.get(ONE, "k") == large
    await again.close()
    assert [path.name for path in link.parent.iterdir()] == ["link.db"]


async def test_readers_see_what_is_committed_beside_the_writer_and_after_it(tmp_path: Path):
    path = str(tmp_path / "noetl.db")
    store = await SqliteStore.open(path)
    await store.log.commit([start(ONE)])
    reader = await SqliteStore.open(path, read_only=True)
    assert await reader.log.events(ONE) == events(1, 1)

    await store.log.commit([more(1)])
    assert await reader.log.events(ONE) == events(1, 2)
    await store.close()
    await reader.close()

    alone = await SqliteStore.open(path, read_only=True)
    assert await alone.log.events(ONE) == events(1, 2)
    await alone.close()


async def test_readers_do_not_write(tmp_path: Path):
    path = str(tmp_path / "noetl.db")
    await (await SqliteStore.open(path)).close()
    reader = await SqliteStore.open(path, read_only=True)

    with pytest.raises(StoreError, match="reading only"):
        await reader.log.commit([start(ONE)])
    with pytest.raises(StoreError, match="reading only"):
        await reader.bodies.put(ONE, "k", b"x" * (2 * MIB))
    assert not (tmp_path / "noetl.db.results").exists()
    await reader.close()


async def test_reading_what_does_not_exist_says_so_and_creates_nothing(tmp_path: Path):
    with pytest.raises(StoreError, match="does not exist: nothing was run, registered or stored"):
        await SqliteStore.open(str(tmp_path / "noetl.db"), read_only=True)

    assert list(tmp_path.iterdir()) == []


# --- A full disk -------------------------------------------------------------------------------


@contextmanager
def no_file_beyond(size: int) -> Iterator[Callable[[], None]]:
    """The operating system lets no file of this process grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    try:
        yield lift
    finally:
        lift()


@contextmanager
def small_disk(directory: Path, size: int) -> Iterator[Callable[[], None]]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    try:
        yield (
            lambda: (
                subprocess.run(
                    ["mount", "-o", f"remount,size={size * 8}", str(directory)], check=True
                )
                and None
            )
        )
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture(params=["no file may grow", "no space left"])
def full_disk(request: pytest.FixtureRequest, tmp_path: Path):
    """A directory that soon has no room, and a function that makes room again."""
    limited = no_file_beyond(MIB)
    if request.param == "no space left":
        (tmp_path / "small").mkdir()
        limited = small_disk(tmp_path / "small", 2 * MIB)
    with limited as lift:
        yield tmp_path / "small" if request.param == "no space left" else tmp_path, lift


def filling(seq: int) -> Write:
    """A write of 30 kB that brings execution ONE to this seq."""
    text = random.Random(seq).randbytes(15_000).hex()
    changed = {"events": [event(seq, text=text)], "vars": {"seq": b"%d" % seq}}
    return more(seq - 1, ONE, **changed) if seq > 1 else start(ONE, **changed)


async def fill_up(store: SqliteStore) -> None:
    for seq in range(1, 1000):
        assert await store.log.commit([filling(seq)]) == []


async def test_a_full_disk_keeps_nothing_half_and_writing_goes_on_when_there_is_room(full_disk):
    directory, make_room = full_disk
    store = await SqliteStore.open(str(directory / "noetl.db"))
    with pytest.raises(StoreError, match=r"noetl\.db.*space"):
        await fill_up(store)

    seq = len(await store.log.events(ONE))
    assert seq > 3
    assert await store.log.variables(ONE) == {"seq": b"%d" % seq}
    assert await store.check() == []
    with pytest.raises(StoreError):
        await store.log.commit([filling(seq + 1)])

    make_room()
    assert await store.log.commit([filling(seq + 1)]) == []
    assert len(await store.log.events(ONE)) == seq + 1
    assert await store.check() == []
    await store.close()


async def test_a_large_result_that_does_not_fit_leaves_nothing(full_disk):
    directory, make_room = full_disk
    store = await SqliteStore.open(str(directory / "noetl.db"))
    body = random.Random(1).randbytes(4 * MIB)

    with pytest.raises(StoreError, match=r"Nothing of this was (kept|written)"):
        await store.bodies.put(ONE, "k", body)
    with pytest.raises(StoreError):
        await store.log.commit([start(ONE, results=[("k", body)])])

    assert await store.log.load(ONE) is None
    assert await store.bodies.get(ONE, "k") is None
    assert list((directory / "noetl.db.results").iterdir()) == []
    make_room()
    await store.log.commit([start(ONE, results=[("k", body)])])
    assert await store.bodies.get(ONE, "k") == body
    await store.close()


# --- What waits together ------------------------------------------------------------------------


async def test_commits_that_wait_together_share_a_flush(tmp_path: Path):
    sizes = []
    for name in ("one by one", "together"):
        store = await SqliteStore.open(str(tmp_path / name))
        commits = [store.log.commit([start(str(number))]) for number in range(100, 160)]
        if name == "together":
            await asyncio.gather(*commits)
        else:
            for commit in commits:
                await commit
        sizes.append((tmp_path / f"{name}-wal").stat().st_size)
        await store.close()

    one_by_one, together = sizes
    assert together < one_by_one / 3


async def test_the_event_loop_goes_on_while_a_large_result_is_kept_and_read(tmp_path: Path):
    store = await SqliteStore.open(str(tmp_path / "noetl.db"))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    await store.bodies.put(ONE, "k", bytes(50 * MIB))
    assert ticks > 5
    ticks = 0
    await store.bodies.get(ONE, "k")
    assert ticks > 5
    ticking.cancel()
    await store.close()


# --- The files ---------------------------------------------------------------------------------


async def test_the_log_file_stays_bounded_under_steady_load(tmp_path: Path):
    store = await SqliteStore.open(str(tmp_path / "noetl.db"))
    text, seq, largest = "x" * 200_000, 0, 0
    await store.log.commit([start(ONE)])
    for seq in range(1, 251):
        await store.log.commit([more(seq, events=[event(seq + 1, text=text)])])
        largest = max(largest, (tmp_path / "noetl.db-wal").stat().st_size)
    await store.close()

    assert (tmp_path / "noetl.db").stat().st_size > 45 * MIB
    assert largest < 20 * MIB
    assert not (tmp_path / "noetl.db-wal").exists()


async def test_a_log_made_ready_for_more_holds_what_was_committed_and_nothing_else(tmp_path: Path):
    path, copy = tmp_path / "noetl.db", tmp_path / "crashed" / "noetl.db"
    store = await SqliteStore.open(str(path))
    await store.log.commit([start(ONE)])
    small = Path(f"{path}-wal").stat().st_size
    for seq in range(1, MANY_CHANGES):
        await store.log.commit([more(seq)])
    copy.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    await store.close()

    assert small < LOG_BYTES <= Path(f"{copy}-wal").stat().st_size
    crashed = await SqliteStore.open(str(copy))
    assert await crashed.log.events(ONE) == events(1, MANY_CHANGES)
    assert await crashed.check() == []
    await crashed.close()


async def test_in_idle_moments_the_log_is_written_back(tmp_path: Path):
    path = tmp_path / "noetl.db"
    store = await SqliteStore.open(str(path))
    await store.log.commit([start(str(number)) for number in range(1, MANY_CHANGES)])
    written = path.stat().st_size
    for _ in range(100):
        if path.stat().st_size > written:
            break
        await asyncio.sleep(0.05)

    assert path.stat().st_size > written
    await store.close()


async def test_what_people_work_with_is_not_for_others_to_read(tmp_path: Path):
    store = await SqliteStore.open(str(tmp_path / "data" / "noetl.db"))
    await store.log.commit([start(ONE, results=[("k", b"x" * (2 * MIB))])])

    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "data").rglob("*")}
    await store.close()
    assert {"noetl.db", "noetl.db-wal", "noetl.db.lock", "noetl.db.results"} < set(modes)
    assert set(modes.values()) == {0}


async def test_results_outlive_the_process_that_wrote_them(tmp_path: Path):
    path, body = str(tmp_path / "noetl.db"), b"y" * (3 * MIB)
    store = await SqliteStore.open(path)
    await store.log.commit([start(ONE, results=[("k", body)])])
    await store.close()

    again = await SqliteStore.open(path)
    assert await again.bodies.get(ONE, "k") == body
    await again.close()


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///a.db", "a.db"),
        ("sqlite:///sub/a%20b.db", "sub/a b.db"),
        ("a?b#c%.db", "a?b#c%.db"),
        ("sqlite:///{cwd}/d.db", "d.db"),
        ("{cwd}/e.db", "e.db"),
    ],
)
async def test_a_url_names_a_file(
    url: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    store = await SqliteStore.open(url.format(cwd=tmp_path))
    await store.log.commit([start(ONE)])
    await store.close()

    assert (tmp_path / file).is_file()


@pytest.mark.parametrize("url", [":memory:", "sqlite:///:memory:", "sqlite://"])
async def test_a_url_may_name_no_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = await SqliteStore.open(url)
    await store.log.commit([start(ONE, results=[("k", b"z" * (2 * MIB))])])
    await store.close()

    assert list(tmp_path.iterdir()) == []


async def test_databases_in_memory_know_nothing_of_each_other():
    one, other = [await SqliteStore.open(":memory:", threads=False) for _ in range(2)]
    await one.log.commit([start(ONE)])

    assert await one.installation() != await other.installation()
    assert await other.log.events(ONE, limit=1) == []
    for store in (one, other):
        await store.close()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "noetl.db").write_bytes(b"this is not a database, whatever it is called " * 200)

    with pytest.raises(StoreError, match=r"noetl\.db: .*not a database"):
        await SqliteStore.open(str(tmp_path / "noetl.db"))
    assert (tmp_path / "noetl.db").read_bytes().startswith(b"this is not")


async def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="Check"):
        await SqliteStore.open(str(tmp_path / "file" / "noetl.db"))
