"""One server and one worker beside three servers and four workers, on one PostgreSQL.

W1  one execution of 100 no-op steps, one after the other, until whoever started it knows: ms per
    step
W2  a parallel loop over 1 000 no-ops and its join: tasks per second
W3  500 executions of 5 steps, submitted at once: steps per second
W4  an execution of one step on an idle system, until whoever started it knows: p50 in ms
reads  how long reading calls take while W3 runs: p50 and p95 in ms
W12  processor seconds per 1 000 steps of W3, in servers, workers and the database

Run `python bench/cluster.py [--json] [--runs N] [--only-w12] [--directory DIR]`. Every process is
one of its own, each commit is flushed (`synchronous_commit=on`). Both sizes take turns, so that a
machine that gets slower gets slower for both. Medians. Exits with 1 if the larger one is more than
a fifth slower, if it uses more than 1.3 times the processor per step, or if the p95 of reads is
above 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
from postgres import server_in

from noetl.cli.workloads import LOOP, chain, machine

EXECUTIONS, STEPS, TASKS = 500, 5, 1000
LOOK_SECONDS = 0.01
SLOWER_MAX = 0.2
READ_MS_MAX = 50.0
PROCESSOR_MAX = 1.3
SIZES = {"1+1": (1, 1), "3+4": (3, 4)}


@contextmanager
def process(folder: Path, *words: str, **environment: str) -> Iterator[tuple[str, int]]:
    """`noetl …` for as long as the body lasts; what it says when it is ready, and its number."""
    read_end, write_end = os.pipe()
    told = {**os.environ, **environment, "_NOETL_READY_FD": str(write_end)}
    with (folder / f"{words[0]}.log").open("ab") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "noetl.cli", *words],
            cwd=folder,
            env={**told, "NOETL_LOG": "warning"},
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=[write_end],
        )
    os.close(write_end)
    with os.fdopen(read_end) as ready:
        said = ready.readline().strip()
    try:
        assert said, (folder / f"{words[0]}.log").read_text()
        yield said, running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait()


def processor_seconds(pids: Iterable[int]) -> float:
    """What these processes have used, with those of their children that have ended."""
    ticks = 0
    for pid in pids:
        with suppress(
            FileNotFoundError, ProcessLookupError
        ):  # It has just ended, and counts as its parent's.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def postgres_processes(folder: Path) -> list[int]:
    """The server whose data is there, and its children."""
    server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    return [server, *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())]


class Cluster:
    """Servers that run, and how to use them."""

    def __init__(
        self,
        urls: list[str],
        database: str,
        session: aiohttp.ClientSession,
        pids: dict[str, list[int]],
    ) -> None:
        self.urls = urls
        self.database = database
        self.pids = pids
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None, *, at: int = 0) -> Any:
        url = self.urls[at % len(self.urls)] + path
        async with self._session.request(method, url, json=body) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def run(self, text: str, count: int) -> float:
        """Seconds until so many executions, started at once all over the servers, have ended."""
        entry = await self.ask("POST", "/api/catalog/register", {"content": text})
        wanted = {"path": entry["path"], "version": entry["version"]}
        begin = time.perf_counter()
        starts = [self.ask("POST", "/api/execute", wanted, at=number) for number in range(count)]
        await asyncio.gather(*starts)
        async with await psycopg.AsyncConnection.connect(self.database, autocommit=True) as db:
            query = "SELECT count(*) FROM noetl.execution WHERE status = 'RUNNING'"
            while (await (await db.execute(query)).fetchone()) != (0,):
                await asyncio.sleep(LOOK_SECONDS)
        return time.perf_counter() - begin

    async def run_alone(self, text: str) -> float:
        """Seconds until one execution has ended and whoever started it has been told."""
        entry = await self.ask("POST", "/api/catalog/register", {"content": text})
        begin = time.perf_counter()
        started = await self.ask("POST", "/api/execute", {"path": entry["path"]})
        end = f"/api/executions/{started['execution_id']}/events?type=playbook.processed&wait=20"
        assert (await self.ask("GET", end))["events"]
        return time.perf_counter() - begin

    async def read_for_ever(self, times: list[float]) -> None:
        """Look at executions in every way, and note how long each look takes."""
        number = 0
        while True:
            newest = await self.ask("GET", "/api/executions?limit=20")
            for row in newest["executions"]:
                number += 1
                path = f"/api/executions/{row['execution_id']}"
                for route in (path, f"{path}/status", f"{path}/events?limit=50"):
                    begin = time.perf_counter()
                    await self.ask("GET", route, at=number)
                    times.append(1000 * (time.perf_counter() - begin))
                    await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def cluster(
    folder: Path, database: str, servers: int, workers: int
) -> AsyncIterator[Cluster]:
    folder.mkdir()
    with ExitStack() as stack:
        key = base64.b64encode(os.urandom(32)).decode()
        about = {"NOETL_DATABASE_URL": database, "NOETL_SECRET_KEY": key}
        started = [
            stack.enter_context(process(folder, "server", "start", "--port", "0", **about))
            for _ in range(servers)
        ]
        urls = [url for url, _ in started]
        pids = {"server": [pid for _, pid in started], "worker": []}
        for number in range(workers):
            known = ",".join(urls[number % servers :] + urls[: number % servers])
            worker = stack.enter_context(process(folder, "worker", "start", "--server", known))
            pids["worker"].append(worker[1])
        async with asked_through(100) as session:
            yield Cluster(urls, database, session, pids)


def asked_through(connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections))


async def used(found: Cluster, folder: Path, runs: int) -> dict[str, float]:
    """W12: what W3 costs all processes of a kind."""
    await found.run(chain(STEPS), EXECUTIONS)
    several: list[dict[str, float]] = []

    def so_far() -> dict[str, float]:
        kinds = {**found.pids, "database": postgres_processes(folder)}
        return {f"w12_{kind}_s": processor_seconds(pids) for kind, pids in kinds.items()}

    for _ in range(2 * runs):
        before = so_far()
        await found.run(chain(STEPS), EXECUTIONS)
        thousands = EXECUTIONS * STEPS / 1000
        one = {kind: (seconds - before[kind]) / thousands for kind, seconds in so_far().items()}
        several.append({**one, "w12_s": sum(one.values())})
    return {name: statistics.median(one[name] for one in several) for name in several[0]}


async def figures(found: Cluster, runs: int) -> dict[str, float]:
    """Medians, and how long reading takes meanwhile; what runs first is not counted."""
    await found.run(LOOP, 1)
    await found.run(chain(STEPS), EXECUTIONS)
    w1 = [10 * await found.run_alone(chain(100)) for _ in range(2 * runs + 1)][1:]
    w4 = [1000 * await found.run_alone(chain(1)) for _ in range(30)]
    w2 = [TASKS / await found.run(LOOP, 1) for _ in range(5 * runs)]
    steps = EXECUTIONS * STEPS
    w3 = [steps / await found.run(chain(STEPS), EXECUTIONS) for _ in range(2 * runs)]
    reads: list[float] = []
    # Somebody else than who starts 500 executions: behind those, no connection would be free.
    async with asked_through(1) as session:
        reader = Cluster(found.urls, found.database, session, {})
        reading = asyncio.create_task(reader.read_for_ever(reads))
        for _ in range(2 * runs):
            await found.run(chain(STEPS), EXECUTIONS)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return {
        "w1_ms_per_step": statistics.median(w1),
        "w4_p50_ms": statistics.median(w4),
        "w2_tasks_per_second": statistics.median(w2),
        "w3_steps_per_second": statistics.median(w3),
        "read_p50_ms": statistics.median(reads),
        "read_p95_ms": statistics.quantiles(reads, n=20)[-1],
        "reads": len(reads),
    }


async def measure(folder: Path, runs: int, *, only_w12: bool) -> dict[str, Any]:
    with server_in(folder) as server:
        rounds: dict[str, list[dict[str, float]]] = {size: [] for size in SIZES}
        for turn in range(2):
            for size, (servers, workers) in SIZES.items():
                name = f"{size.replace('+', '_')}_{turn}"
                async with await psycopg.AsyncConnection.connect(server, autocommit=True) as db:
                    await db.execute(f'CREATE DATABASE "{name}"'.encode())
                place = server.replace("/postgres?", f"/{name}?")
                async with cluster(folder / name, place, servers, workers) as found:
                    measured = {} if only_w12 else await figures(found, runs)
                    rounds[size].append({**measured, **await used(found, folder, runs)})
    return {
        size: {name: statistics.median(one[name] for one in several) for name in several[0]}
        for size, several in rounds.items()
    }


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--json", action="store_true", help="print one JSON document")
    options.add_argument("--runs", type=int, default=3, help="measurements of each figure per turn")
    options.add_argument("--only-w12", action="store_true", help="processor time only")
    options.add_argument("--directory", help="where the database is put: the disk to measure")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="noetl-bench-", dir=chosen.directory) as folder:
        measuring = measure(Path(folder), chosen.runs, only_w12=chosen.only_w12)
        found = asyncio.run(measuring)
    small, large = found.values()
    compared = ("w2_tasks_per_second", "w3_steps_per_second", "w12_s")
    ratios = {name: large[name] / small[name] for name in compared if name in small}
    if chosen.json:
        print(json.dumps({"machine": machine(), **found, "ratio": ratios}))
    else:
        for name in small:
            ratio = f"{ratios[name]:8.2f}" if name in ratios else ""
            print(f"{name:24}{small[name]:12.2f}{large[name]:12.2f}{ratio}")
    is_fine = ratios.pop("w12_s") <= PROCESSOR_MAX
    if not chosen.only_w12:
        is_fine &= min(ratios.values()) >= 1 - SLOWER_MAX
        is_fine &= max(one["read_p95_ms"] for one in found.values()) <= READ_MS_MAX
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
