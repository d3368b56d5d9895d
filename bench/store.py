"""How fast are the stores? On the disk you name, durable: SQLite at `synchronous=FULL`, PostgreSQL
at `synchronous_commit=on`.

    python bench/store.py [--json] [--directory DIR] [--postgres]

Round trip: one decision (8 events, 1 command, 1 closed) from the event loop to the disk and back,
one at a time. Throughput: 100 decisions per commit. Group commit: 100 callers, each with its own
commit of one decision. Claims: 50 at a time out of a queue of 10 000. Loads: executions of 400
events, read and verified. Beside them what a flush of the disk costs, the floor of a round trip.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from postgres import server_in

from noetl.configured import open_store
from noetl.model.commands import Command
from noetl.model.ids import derive
from noetl.store.base import Store
from noetl.store.log import Facts, Write
from noetl.store.queue import NewCommand
from noetl.store.records import Summary

NOW = 1_760_000_000.0
EVENTS = 8
BODY = json.dumps({"type": "task.done", "at": NOW, "result": {"rows": list(range(40))}}).encode()


def execution(number: int) -> str:
    return str(7_000_000_000_000_000_000 + number)


def decision(execution_id: str, round_: int) -> Write:
    """What one report of a worker leads to."""
    seq_before = round_ * EVENTS
    events = [Facts(EVENTS, b",".join([BODY] * EVENTS))]
    command = Command(
        command_id=derive(execution_id, round_),
        execution_id=execution_id,
        digest="d" * 64,
        step="fetch",
        step_run_id="run-1",
        args={"page": round_, "url": "https://api.example.com/orders"},
        at=NOW,
    )
    summary = Summary(
        execution_id=execution_id,
        path="bench/store",
        version=1,
        digest="d" * 64,
        status="RUNNING",
        requested_at=NOW,
        current_steps=("fetch",),
    )
    return Write(
        execution_id=execution_id,
        seq_before=seq_before,
        events=events,
        commands=[NewCommand(command, "w1", NOW + 60)],
        closed=[derive(execution_id, round_ - 1)],
        summary=summary if round_ == 0 else None,
    )


def flush_us(directory: Path) -> float:
    """What it costs to have 16 KiB on the disk for sure, over blocks that exist."""
    times = []
    with open(directory / "flush", "w+b", buffering=0) as file:
        file.write(bytes(1 << 23))
        os.fsync(file.fileno())
        for number in range(200):
            file.seek(number * 16384)
            started = perf_counter()
            file.write(bytes(16384))
            os.fdatasync(file.fileno())
            times.append(perf_counter() - started)
    return statistics.median(times) * 1e6


async def round_trip(store: Store, rounds: int) -> dict[str, float]:
    writes = [decision(execution(0), number) for number in range(rounds)]
    times = []
    for write in writes:
        started = perf_counter()
        await store.log.commit([write])
        times.append((perf_counter() - started) * 1e6)
    times.sort()
    return {"round trip p50 µs": times[rounds // 2], "round trip p95 µs": times[rounds * 95 // 100]}


async def throughput(store: Store, rounds: int) -> dict[str, float]:
    batches = [
        [decision(execution(1000 + number), round_) for number in range(100)]
        for round_ in range(rounds)
    ]
    started = perf_counter()
    for batch in batches:
        moved = await store.log.commit(batch)
        assert not moved
    return {"events/s, 100 per commit": rounds * 100 * EVENTS / (perf_counter() - started)}


async def group_commit(store: Store, rounds: int) -> dict[str, float]:
    async def caller(number: int) -> None:
        for write in [decision(execution(5000 + number), round_) for round_ in range(rounds)]:
            await store.log.commit([write])

    started = perf_counter()
    await asyncio.gather(*(caller(number) for number in range(100)))
    return {"events/s, 100 callers": rounds * 100 * EVENTS / (perf_counter() - started)}


async def claims(store: Store, count: int) -> dict[str, float]:
    write = decision(execution(9000), 0)
    [(command, *_)] = write.commands
    write.commands = [
        NewCommand(
            Command(
                command_id=derive("claims", number),
                execution_id=command.execution_id,
                digest=command.digest,
                step=command.step,
                step_run_id=command.step_run_id,
                pool="bench",
            )
        )
        for number in range(count)
    ]
    await store.log.commit([write])
    started = perf_counter()
    taken = 0
    while leases := await store.queue.claim("w1", pool="bench", limit=50, expires_at=NOW + 60):
        taken += len(leases)
    assert taken == count
    return {"claims/s, 50 at a time": count / (perf_counter() - started)}


async def loads(store: Store) -> dict[str, float]:
    started = perf_counter()
    events = 0
    for number in range(100):
        loaded = await store.log.load(execution(1000 + number))
        assert loaded is not None
        events += EVENTS * len(loaded.events)
    return {"events/s loaded": events / (perf_counter() - started)}


@contextmanager
def database(directory: Path, kind: str) -> Iterator[str]:
    """The URL of an empty database there."""
    if kind == "sqlite":
        yield f"sqlite:///{directory}/bench.db"
    else:
        with server_in(directory) as url:
            yield url


async def measure(directory: Path, url: str) -> dict[str, float]:
    figures = {"disk flush p50 µs": flush_us(directory)}
    store = await open_store(url)
    try:
        await round_trip_warm_up(store)
        figures |= await round_trip(store, 1000)
        figures |= await throughput(store, 50)
        figures |= await group_commit(store, 20)
        figures |= await claims(store, 10_000)
        figures |= await loads(store)
    finally:
        await store.close()
    return figures


async def round_trip_warm_up(store: Store) -> None:
    """Let the log reach its size: a file that grows is slower to flush."""
    for number in range(200):
        await store.log.commit([decision(execution(100), number)])


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main(show: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", help="where to put the database (default: the temp dir)")
    parser.add_argument("--postgres", action="store_true", help="measure PostgreSQL instead")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    runs = []
    for _ in range(arguments.runs):
        directory = Path(tempfile.mkdtemp(prefix="noetl-bench-", dir=arguments.directory))
        try:
            with database(directory, "postgres" if arguments.postgres else "sqlite") as url:
                runs.append(asyncio.run(measure(directory, url)))
        finally:
            shutil.rmtree(directory)
    figures = medians(runs)
    if arguments.json:
        show(json.dumps(figures))
    else:
        for name, value in figures.items():
            show(f"{name:28} {value:>12,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
