"""How fast executions run here: W1–W7, embedded, every commit flushed to disk.

W1  one execution of 100 no-op steps, one after the other: ms per step
W2  a parallel loop over 1 000 no-ops and its join: tasks per second
W3  500 executions of 5 steps, submitted at once: steps per second
W4  an execution of one step on an idle system: p50 and p95 in ms
W5  `noetl run` of a hello-world from the shell, and the memory of an idle system
W6  a parallel loop over 2 000 calls of `kind: python` in warm processes: calls per second
W7  a parallel loop over 100 000 no-ops: time per iteration beside that of 1 000, and memory

Run `python bench/workloads.py [--json] [--runs N] [--db FILE]`. Medians; the time of a bare flush
to the same disk stands beside them, because on most machines it is what they consist of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from postgres import server_in

from noetl import wiring
from noetl.settings import Settings
from noetl.wiring import System

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: bench, path: bench/bench}\n"
LOOP = (
    HEAD
    + """\
workload: {n: 1000}
workflow:
  - step: start
    loop: {in: "{{ range(workload.n) | list }}", iterator: item, spec: {mode: parallel}}
    tool: {kind: noop}
    next: end
  - step: end
    tool: {kind: noop}
"""
)
CALLS = (
    HEAD
    + """\
workflow:
  - step: start
    loop: {in: "{{ range(2000) | list }}", iterator: item, spec: {mode: parallel}}
    tool: {kind: python, args: {n: "{{ iter.item }}"}, code: "result = n + 1"}
    next: end
  - step: end
    tool: {kind: noop}
"""
)
HELLO = HEAD + "workflow:\n  - step: start\n    tool: {kind: noop, result: hello}\n"


def chain(steps: int) -> str:
    """Steps one after the other."""
    lines = [HEAD + "workflow:"]
    for index in range(steps):
        name = "start" if index == 0 else f"s{index}"
        following = f", next: s{index + 1}" if index < steps - 1 else ""
        lines.append(f"  - {{step: {name}, tool: {{kind: noop}}{following}}}")
    return "\n".join(lines) + "\n"


async def run(system: System, text: str, count: int = 1) -> float:
    """Seconds until so many executions of a playbook, started at once, have ended."""
    compiled = system.catalog.check(text)
    net = compiled.unwrap()
    await system.orchestrator.programs.keep(net, compiled.digest)

    async def one() -> None:
        execution_id = await system.executions.start(compiled.digest, net.path, None, {})
        state = await system.orchestrator.wait_for_end(execution_id)
        assert state.status == "COMPLETED", state.failure

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - begin


async def median(runs: int, measure: Callable[[], Awaitable[float]]) -> float:
    await measure()
    return statistics.median([await measure() for _ in range(runs)])


def flush_ms(folder: Path) -> float:
    """What one small flush to this disk takes."""
    times = []
    with (folder / "flush").open("wb") as file:
        for _ in range(30):
            file.write(b"x" * 4096)
            begin = time.perf_counter()
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def cold_start(folder: Path) -> float:
    """Seconds from the shell prompt to the end of a hello-world."""
    (folder / "hello.yaml").write_text(HELLO)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "noetl.cli", "run", "hello.yaml", "--new"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - begin


async def loops(system: System) -> dict[str, float]:
    """What an iteration costs in a long loop, and what the loop leaves in memory."""
    long = LOOP.replace("n: 1000", "n: 100000")
    short_s = await median(3, lambda: run(system, LOOP))
    before = resident_mb()
    long_s = await run(system, long)
    return {
        "w7_iterations_per_second": 100_000 / long_s,
        "w7_ratio_to_short_loop": (long_s / 100_000) / (short_s / 1_000),
        "w7_memory_growth_mb": resident_mb() - before,
    }


def resident_mb() -> float:
    """What this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def machine() -> dict[str, str | int]:
    """Where and when this was measured."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "system": platform.platform(terse=True),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


async def figures(folder: Path, url: str, runs: int) -> dict[str, float]:
    settings = Settings.from_environment({"NOETL_DATABASE_URL": url})
    found: dict[str, float] = {"flush_ms": flush_ms(folder)}
    async with wiring.embedded(settings) as system:
        found["memory_idle_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        one_step, hundred, five = chain(1), chain(100), chain(5)
        found["w1_ms_per_step"] = await median(runs, lambda: run(system, hundred)) * 10
        found["w2_tasks_per_second"] = 1000 / await median(runs, lambda: run(system, LOOP))
        found["w3_steps_per_second"] = 2500 / await median(runs, lambda: run(system, five, 500))
        alone = sorted([await run(system, one_step) * 1000 for _ in range(50)])
        found["w4_p50_ms"], found["w4_p95_ms"] = alone[25], alone[47]
        found["w6_python_calls_per_second"] = 2000 / await median(3, lambda: run(system, CALLS))
        found |= await loops(system)
        found["memory_after_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["w5_cold_start_s"] = statistics.median(cold_start(folder) for _ in range(3))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--db", help="where to keep the database; default: a temporary directory")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.postgres:
            with server_in(folder) as url:
                found = asyncio.run(figures(folder, url, options.runs))
        else:
            url = f"sqlite:///{options.db or folder / 'bench.db'}"
            found = asyncio.run(figures(folder, url, options.runs))
    if options.json:
        print(json.dumps({"machine": machine(), "figures": found}, indent=2))
        return
    for key, value in found.items():
        print(f"{key:28} {value:12,.2f}")


if __name__ == "__main__":
    main()
